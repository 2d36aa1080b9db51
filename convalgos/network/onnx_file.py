"""An ONNX model read from its file without its large weights, which stay there.

A model is a message of protobuf: fields one after the other, of which some are messages again. Protobuf gets
it without the data of large tensors, which are mapped where they lie, in the file of the model or beside it.

Source: protobuf.dev/programming-guides/encoding; onnx.proto of ONNX 1.23.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from convalgos.network.mapped_weights import MAPPED, MappedWeights, mapped_weights

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields
PLAIN = frozenset({"float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"})
Weights = dict[str, MappedWeights]


class Field(NamedTuple):
    """A field of a message, by where it begins with its number and kind, then its content, and ends."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


def read_onnx_file(path: Path) -> tuple[Any, Weights]:
    """(the ModelProto of a file, weights that its tensors of these names lack).

    Raises:
        google.protobuf.message.DecodeError: it is no model. OSError: as of `open`.
        onnx.checker.ValidationError, ValueError: data beside it are not there.
    """
    import onnx

    weights: Weights = {}
    if path.stat().st_size < MAPPED:
        model = onnx.load(path, load_external_data=False)
    else:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            outline = _Outline(data, path)
            model = onnx.load_model_from_string(b"".join(outline.model()))
        weights = outline.weights
    for tensor in model.graph.initializer:
        outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if outside and (array := _beside(tensor, path.parent)) is not None:
            weights[tensor.name] = array
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    onnx.load_external_data_for_model(model, str(path.parent))  # all others
    return model, weights


def _beside(tensor: Any, folder: Path) -> MappedWeights | None:
    """The data of a tensor in another file of the folder; None where ONNX is to look for them."""
    import onnx

    own = onnx.external_data_helper.ExternalDataInfo(tensor)
    path = folder / own.location
    inside = path.is_file() and path.resolve().is_relative_to(folder.resolve())
    return _mapped(tensor, path, own.offset or 0, own.length) if inside else None


def _mapped(tensor: Any, path: Path, offset: int, length: int | None) -> MappedWeights | None:
    """The data of a tensor in a file; None of small ones, and of types that NumPy has not."""
    import onnx

    dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
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
        yield from self._without(0, len(self._data), (GRAPH, INITIALIZER))

    def _without(self, at: int, end: int, within: tuple[int, ...]) -> Iterator[bytes]:
        """A message of the file, without the weights that lie behind these fields."""
        begun = at
        for field in self._fields(at, end):
            if field.number == within[0] and field.kind == BYTES and field.end - field.content >= MAPPED:
                rest = within[1:]
                inside = self._without(field.content, field.end, rest) if rest else self._tensor(field)
                content = b"".join(inside)
                yield self._data[begun : field.begin]
                yield _varint(field.number << 3 | BYTES) + _varint(len(content)) + content
                begun = field.end
        yield self._data[begun:end]

    def _tensor(self, of: Field) -> Iterator[bytes]:
        """A tensor without its data, where these can be mapped."""
        import onnx

        found = [f for f in self._fields(of.content, of.end) if f.number == RAW_DATA and f.kind == BYTES]
        if len(found) == 1:
            (raw,) = found
            outline = self._data[of.content : raw.begin] + self._data[raw.end : of.end]
            tensor = onnx.TensorProto.FromString(outline)
            array = _mapped(tensor, self._path, raw.content, raw.end - raw.content)
            if array is not None:
                self.weights[tensor.name] = array
                yield outline
                return
        yield self._data[of.content : of.end]

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
