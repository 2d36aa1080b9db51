"""Messages of ONNX models, read and made without the package `onnx` around their classes.

To import it, and to let it infer shapes, takes 20 MB and 0.2 s, of which the classes are 2. What is rare, as
types that NumPy has not, is left to it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = "onnx.onnx_ml_pb2"  # the module that protobuf has made
DTYPES = {  # of TensorProto.DataType, as far as NumPy has them
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "object",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128",
}  # fmt: skip
KINDS = {name: kind for kind, name in DTYPES.items()}
KIND_OF = {np.dtype(name): kind for name, kind in KINDS.items()}
FIELDS = {  # where a tensor has its numbers that has no bytes
    "float32": "float_data", "float64": "double_data", "int64": "int64_data",
    **dict.fromkeys(("int8", "uint8", "int16", "uint16", "int32", "bool"), "int32_data"),
}  # fmt: skip
VALUES = {  # of AttributeProto.AttributeType: the field of its value
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
}  # fmt: skip
Dim = int | str | None  # a word is the name of an open size, None one without a name


@cache
def messages() -> Any:
    """The module that has the classes of messages: those of `onnx`, whether it is imported or not."""
    if "onnx" not in sys.modules:
        found = importlib.util.find_spec("onnx")
        folders = (found.submodule_search_locations if found is not None else None) or ()
        for path in (Path(folder, "onnx_ml_pb2.py") for folder in folders):
            spec = importlib.util.spec_from_file_location(CLASSES, path) if path.is_file() else None
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    return importlib.import_module(CLASSES)


def dtype_of(kind: int) -> np.dtype:
    """NumPy's type of a TensorProto.DataType."""
    if kind in DTYPES:
        return np.dtype(DTYPES[kind])
    import onnx

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


def kind_of_dtype(dtype: np.dtype) -> int:
    """The TensorProto.DataType of a type of NumPy."""
    if (kind := KIND_OF.get(dtype)) is not None:  # its name takes NumPy 5 us
        return kind
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def is_of_others(dtype: str) -> bool:
    """Whether a type is one that NumPy has from another library, as bfloat16."""
    return bool(dtype) and np.dtype(dtype).isbuiltin == 2


def bound_type(dtype: np.dtype) -> Any:
    """A type as ONNX Runtime is told it: that of NumPy, or the TensorProto.DataType of others."""
    return kind_of_dtype(dtype) if dtype.isbuiltin == 2 else dtype


def attribute_value(attribute: Any) -> Any:
    """The value of an AttributeProto."""
    field = VALUES.get(attribute.type)
    if field is None or attribute.ref_attr_name:
        import onnx

        return onnx.helper.get_attribute_value(attribute)
    value = getattr(attribute, field)
    return value if len(field) == 1 else list(value)


def node_attributes(node: Any) -> dict[str, Any]:
    """The attributes of a NodeProto by name."""
    return {attribute.name: attribute_value(attribute) for attribute in node.attribute}


def array_of(tensor: Any) -> np.ndarray:
    """The values of a TensorProto, which may not be written."""
    name = DTYPES.get(tensor.data_type, "")
    outside = tensor.data_location == tensor.EXTERNAL or tensor.HasField("segment")
    if name not in FIELDS or outside or sys.byteorder == "big":
        from onnx import numpy_helper

        rare: np.ndarray = numpy_helper.to_array(tensor)
        return rare
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, name).reshape(tensor.dims)
    numbers = np.array(getattr(tensor, FIELDS[name]))  # of a wider type than some of these
    return numbers.astype(name).reshape(tensor.dims)


def tensor_of(array: np.ndarray, name: str) -> Any:
    """A TensorProto of this name."""
    if array.dtype.name not in FIELDS or sys.byteorder == "big" or not array.dtype.isnative:
        from onnx import numpy_helper

        return numpy_helper.from_array(array, name)
    kind = KINDS[array.dtype.name]
    return messages().TensorProto(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())


def constant_tensor(node: Any) -> Any:
    """The TensorProto that a Constant node writes; None where it is sparse or of strings."""
    kind, value = next(iter(node_attributes(node).items()), ("", None))
    if kind == "value" and value is not None and value.data_type != KINDS["object"]:
        return value
    if kind in ("value_float", "value_floats"):
        return tensor_of(np.array(value, np.float32), "")
    return tensor_of(np.array(value, np.int64), "") if kind in ("value_int", "value_ints") else None


def tensor_type(kind: int, dims: Sequence[Dim] | None) -> Any:
    """The TypeProto of a tensor; of no dimensions that are known where they are None."""
    found = messages().TypeProto()
    found.tensor_type.elem_type = kind
    if dims is not None:
        shape = found.tensor_type.shape
        shape.SetInParent()  # of a number, which has a shape of no sizes
        for n in dims:
            dim = shape.dim.add()
            if isinstance(n, str):
                dim.dim_param = n
            elif n is not None:
                dim.dim_value = n
    return found


def value_info(name: str, kind: int, dims: Sequence[Dim] | None) -> Any:
    """The ValueInfoProto of a tensor."""
    return messages().ValueInfoProto(name=name, type=tensor_type(kind, dims))


def dims_of(tensor: Any) -> list[Dim] | None:
    """The sizes that a TypeProto.Tensor tells; None where not even the rank is known."""
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]


def node_of(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> Any:
    """A NodeProto with attributes that are whole numbers, lists of them, or TensorProtos."""
    found = messages().NodeProto(op_type=op, name=name, input=inputs, output=outputs)
    for key, value in attributes.items():
        made = found.attribute.add(name=key)
        if isinstance(value, int):
            made.type, made.i = made.INT, value
        elif isinstance(value, list):
            made.type = made.INTS
            made.ints.extend(value)
        else:
            made.type = made.TENSOR
            made.t.CopyFrom(value)
    return found


def model_with(graph: Any, like: Any, ir_version: int) -> Any:
    """A ModelProto of a GraphProto, with the operators of another model."""
    found = messages().ModelProto(graph=graph, opset_import=like.opset_import, ir_version=ir_version)
    found.functions.extend(like.functions)
    return found


def without_shape(output: Any) -> Any:
    """An output of a model with what it declares, but for its shape: some declare a wrong one."""
    found = type(output)()
    found.CopyFrom(output)
    if found.type.HasField("tensor_type"):
        found.type.tensor_type.ClearField("shape")
    return found
