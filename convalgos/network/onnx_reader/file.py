"""An ONNX model read from its file without its large weights, which stay there.

A model is a message of protobuf: fields one after the other, of which some are messages again. Protobuf gets
it without the data of large tensors, which are mapped where they lie, in the file of the model or beside it.

Source: protobuf.dev/programming-guides/encoding; onnx.proto of ONNX 1.23.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from convalgos.core.arguments import shown
from convalgos.network.mapped_weights import MAPPED, MappedWeights, mapped_weights
from convalgos.network.onnx_reader.messages import dtype_of, messages
from convalgos.network.onnx_reader.order import bodies_of

GRAPH, RAW_DATA = 7, 9  # fields of ModelProto and of TensorProto,
INITIALIZER, NODE = 5, 1  # of GraphProto,
ATTRIBUTE, TENSOR = 5, 5  # of NodeProto and of AttributeProto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields
PLAIN = frozenset({"float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"})
Weights = dict[str, MappedWeights]
TEXT = (".txtpb", ".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson", ".onnxtxt", ".onnxtext")


class Field(NamedTuple):
    """A field of a message, by where it begins with its number and kind, then its content, and ends."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


def read_onnx_file(path: Path) -> tuple[Any, Weights]:
    """(the ModelProto of a file, weights that its tensors and Constants of these names lack).

    Raises:
        google.protobuf.message.DecodeError: it is no model. OSError: as of `open`.
        ValueError: data beside it are not there.
    """
    weights: Weights = {}
    if path.stat().st_size < MAPPED:
        in_text = path.suffix in TEXT
        model = _model_of_text(path) if in_text else messages().ModelProto.FromString(path.read_bytes())
    else:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            outline = _Outline(data, path)
            model = messages().ModelProto.FromString(b"".join(outline.model()))
        weights = outline.weights
    if any(map(_lies_outside, tensors_within(model.graph))):
        import onnx

        try:
            weights |= _mapped_beside(model, path.parent)
            onnx.load_external_data_for_model(model, str(path.parent))
        except (onnx.checker.ValidationError, ValueError, LookupError) as error:
            raise ValueError(f"model={shown(str(path))} has data that cannot be read: {error}") from None
    return model, weights


def _mapped_beside(model: Any, folder: Path) -> Weights:
    """Large weights of a ModelProto that lie in other files of its folder; the tensors are no longer told
    to be there."""
    found: Weights = {}
    for tensor in filter(_lies_outside, tensors_within(model.graph)):
        for i in reversed(range(len(tensor.external_data))):
            if (tensor.external_data[i].key, tensor.external_data[i].value) == ("length", "0"):
                del tensor.external_data[i]  # up to the end of the file, as ONNX Runtime has it
    for tensor in filter(_lies_outside, model.graph.initializer):
        if (array := _beside(tensor, folder)) is not None:
            found[tensor.name] = array
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]
    return found


def _model_of_text(path: Path) -> Any:
    import onnx
    from google.protobuf import json_format, text_format

    try:
        return onnx.load(path, load_external_data=False)
    except (json_format.ParseError, text_format.ParseError) as error:
        raise ValueError(f"model={shown(str(path))} is no ONNX model: {error}") from None


def _lies_outside(tensor: Any) -> bool:
    return bool(tensor.data_location == tensor.EXTERNAL)


def tensors_within(graph: Any) -> Iterator[Any]:
    """The tensors of a GraphProto, of its nodes, and of the bodies in these."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
        for body in bodies_of(node):
            yield from tensors_within(body)


def _beside(tensor: Any, folder: Path) -> MappedWeights | None:
    """The data of a tensor in another file of the folder; None where ONNX is to look for them."""
    own = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / own["location"]
    length = int(own["length"]) if "length" in own else None
    inside = path.is_file() and path.resolve().is_relative_to(folder.resolve())
    return _mapped(tensor, path, int(own.get("offset", 0)), length) if inside else None


def _mapped(tensor: Any, path: Path, offset: int, length: int | None) -> MappedWeights | None:
    """The data of a tensor in a file; None of small ones, and of types that NumPy has not."""
    dtype, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MAPPED or dtype.name not in PLAIN or length not in (None, nbytes):
        return None
    return mapped_weights(path, dtype.newbyteorder("<"), offset, shape)


class _Outline:
    """The bytes of a model without its large weights, which are mapped on the way."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.weights: Weights = {}
        self._data, self._path = data, path

    def model(self) -> Iterator[bytes]:
        """Its pieces; where it is no message they are as in the file, for protobuf to tell."""
        yield from self._without(0, len(self._data), {GRAPH: self._graph})

    def _without(self, at: int, end: int, inside: Mapping[int, Callable[[Field], bytes]]) -> Iterator[bytes]:
        """A message of the file, with large fields of these numbers as they are told to be."""
        begun = at
        for field in self._fields(at, end):
            if field.number in inside and field.kind == BYTES and field.end - field.content >= MAPPED:
                content = inside[field.number](field)
                yield self._data[begun : field.begin]
                yield _varint(field.number << 3 | BYTES) + _varint(len(content)) + content
                begun = field.end
        yield self._data[begun:end]

    def _graph(self, of: Field) -> bytes:
        inside = {INITIALIZER: self._initializer, NODE: self._node}
        return b"".join(self._without(of.content, of.end, inside))

    def _initializer(self, of: Field) -> bytes:
        """A tensor without its data, where these can be mapped."""
        outline, name, array = self._tensor(of)
        if array is not None:
            self.weights[name] = array
        return outline

    def _node(self, of: Field) -> bytes:
        """A node, a Constant without the data of its tensor, where these can be mapped."""
        found: list[MappedWeights] = []

        def tensor(field: Field) -> bytes:
            outline, _, array = self._tensor(field)
            found.extend([] if array is None else [array])
            return outline

        def attribute(field: Field) -> bytes:
            return b"".join(self._without(field.content, field.end, {TENSOR: tensor}))

        outline = b"".join(self._without(of.content, of.end, {ATTRIBUTE: attribute}))
        node = messages().NodeProto.FromString(outline) if found else None
        if node is None or node.op_type != "Constant" or len(node.output) != 1 or len(found) != 1:
            return self._data[of.content : of.end]
        self.weights[node.output[0]] = found[0]
        return outline

    def _tensor(self, of: Field) -> tuple[bytes, str, MappedWeights | None]:
        """(a tensor without its data, its name, these mapped); with them, and None, where they cannot be."""
        found = [f for f in self._fields(of.content, of.end) if f.number == RAW_DATA and f.kind == BYTES]
        if len(found) == 1:
            (raw,) = found
            outline = self._data[of.content : raw.begin] + self._data[raw.end : of.end]
            tensor = messages().TensorProto.FromString(outline)
            array = _mapped(tensor, self._path, raw.content, raw.end - raw.content)
            if array is not None:
                return outline, tensor.name, array
        return self._data[of.content : of.end], "", None

    def _fields(self, at: int, end: int) -> Iterator[Field]:
        """The fields of a message, as far as it is one."""
        while at < end:
            begin = at
            key, at = self._number(at, end)
            kind, content = key & 7, at
            if kind == VARINT:
                _, at = self._number(at, end)
            elif kind == BYTES:
                length, content = self._number(at, end)
                at = content + length
            elif kind in (FIXED64, FIXED32):
                at += 8 if kind == FIXED64 else 4
            else:
                return
            if at > end:
                return
            yield Field(key >> 3, kind, begin, content, at)

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """(a number of seven bits a byte, where it ends); beyond the end where it has none."""
        value = shift = 0
        while at < end:
            byte = self._data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value, at
        return value, end + 1


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def with_open_sizes(proto: Any) -> Any:
    """A ModelProto whose inputs leave open what some exporters call -1; the very one where none does."""
    inputs = [value.type.tensor_type.shape.dim for value in proto.graph.input]
    if any(d.dim_value < 0 for dims in inputs for d in dims):
        found = type(proto)()
        found.CopyFrom(proto)
        for value in found.graph.input:
            for d in value.type.tensor_type.shape.dim:
                if d.dim_value < 0:
                    d.Clear()
        return found
    return proto
