"""Signs of channels packed in bits, and maps of such words.

A word holds 64 channels of a pixel, the first one in its lowest bit, which is set where the channel is below
0. Words of a map lie as [image][group and word][d][h][phase][w], with their border, and with the columns
split into the phases of the stride: there every tap of neighbouring outputs is a vector of words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import arguments
from convalgos.cpu.vectors.simd import (
    Value,
    Vec,
    allocate,
    call,
    carray,
    copy_bytes,
    emitter,
    ir,
    pointer,
)

WORD = 64  # channels of a word
LEAST_PIXELS = 8  # that kernels pack together
SIGNED = {"int8": 1, "float32": 4}  # bytes of elements whose signs kernels take

# Fields of a map of words. x: an array of elements of `kind` bytes, or of words (0), whose images, channels
# (or words) and pixels lie so many bytes apart.
MAP_ARGUMENTS = arguments(
    "n groups words channels depth height width pad_d pad_h pad_w map_d map_h phases phase slabs tasks "
    "kind x_n x_group x_word x_channel x_pixel pack temp temp_stride maps"
)


def _below_zero(v: Vec, address: Any, kind: int, lanes: int) -> Any:
    """Whether elements from an address on are below 0: `lanes` bits. -0.0 and NaN are not."""
    several = ir.VectorType(ir.IntType(8) if kind == 1 else ir.FloatType(), lanes)
    value = v.b.load(v.pointer(address), typ=several)
    value.align = kind
    zero = ir.Constant(several, None)
    return v.b.icmp_signed("<", value, zero) if kind == 1 else v.b.fcmp_ordered("<", value, zero)


def _zipped(v: Vec, first: list[Any], second: list[Any], bits: int) -> list[Any]:
    """Elements of so many bits of two rows of vectors, taken in turn."""
    lanes = v.lanes * 8 // bits
    kind = ir.VectorType(ir.IntType(bits), lanes)
    found = []
    for one, other in zip(first, second, strict=True):
        a, b = v.b.bitcast(one, kind), v.b.bitcast(other, kind)
        for start in (0, lanes // 2):
            order = [e for i in range(start, start + lanes // 2) for e in (i, lanes + i)]
            found.append(v.shuffle(a, b, order))
    return found


@emitter
def pack_planes(v: Vec, KIND: int, x: Value, plane: Value, channels: Value, target: Value) -> None:
    """Words of `v.lanes` neighbouring pixels, from up to 64 planes that lie `plane` bytes apart."""
    kind = ir.VectorType(ir.IntType(8), v.lanes)
    zero, byte = ir.Constant(kind, None), ir.IntType(8)
    rows = allocate(v.b, kind, 8)
    last = v.isub(channels, 1)
    with v.loop(v.integer(8)) as octet:
        signs = zero
        for i in range(8):
            channel = v.iadd(v.imul(octet, 8), i)
            below = _below_zero(v, v.iadd(x, v.imul(v.imin(channel, last), plane)), KIND, v.lanes)
            there = v.b.icmp_signed("<=", channel, last)
            bit = v.b.select(there, ir.Constant(byte, 1 << i), ir.Constant(byte, 0))
            spread = v.b.insert_element(zero, bit, ir.Constant(ir.IntType(32), 0))
            signs = v.b.or_(signs, v.b.select(below, v.shuffle(spread, spread, [0] * v.lanes), zero))
        v.b.store(signs, v.b.gep(rows, [octet], source_etype=kind))
    octets = [v.b.load(v.b.gep(rows, [v.integer(i)], source_etype=kind), typ=kind) for i in range(8)]
    pairs = [_zipped(v, [octets[i]], [octets[i + 1]], 8) for i in (0, 2, 4, 6)]
    fours = [_zipped(v, pairs[i], pairs[i + 1], 16) for i in (0, 2)]
    for i, words in enumerate(_zipped(v, fours[0], fours[1], 32)):
        v.b.store(words, v.pointer(v.iadd(target, i * v.lanes))).align = 8


@emitter
def sign_bits(v: Vec, KIND: int, x: Value, target: Value) -> None:
    """A bit of target for each of `v.lanes` elements."""
    below = _below_zero(v, x, KIND, v.lanes)
    v.b.store(v.b.bitcast(below, ir.IntType(v.lanes)), v.pointer(target)).align = 1


@emitter
def last_sign_bits(v: Vec, KIND: int, x: Value, count: Value, target: Value) -> None:
    """A byte of target for up to 7 elements."""
    byte = ir.IntType(8)
    signs = allocate(v.b, byte)
    v.b.store(ir.Constant(byte, 0), signs)
    with v.loop(count) as i:
        below = v.b.extract_element(
            _below_zero(v, v.iadd(x, v.imul(i, KIND)), KIND, 1), ir.Constant(ir.IntType(32), 0)
        )
        bit = v.b.shl(v.b.zext(below, byte), v.b.trunc(i, byte))
        v.b.store(v.b.or_(v.b.load(signs, typ=byte), bit), signs)
    v.b.store(v.b.load(signs, typ=byte), v.pointer(target))


@jit.specialise
def pack_from_planes(KIND: int, PIXELS: int) -> Callable[..., None]:
    """Words of `count` >= PIXELS pixels whose channels are planes, `channel` bytes apart."""

    def pack_from_planes(x: int, channel: int, pixel: int, channels: int, count: int, target: int) -> None:
        for i in range((count + PIXELS - 1) // PIXELS):
            at = min(i * PIXELS, count - PIXELS)
            pack_planes(8, PIXELS, KIND, x + at * KIND, channel, channels, target + at * 8)

    return pack_from_planes


@jit.specialise
def pack_from_pixels(KIND: int) -> Callable[..., None]:
    """Words of `count` pixels, `pixel` bytes apart, whose channels are neighbours."""

    def pack_from_pixels(x: int, channel: int, pixel: int, channels: int, count: int, target: int) -> None:
        octets = channels // 8
        for i in range(count):
            from_, to = x + i * pixel, target + i * 8
            if channels == 64:
                sign_bits(8, 64, KIND, from_, to)
            else:
                carray(pointer(to), 1, np.int64)[0] = 0
                for octet in range(octets):
                    sign_bits(8, 8, KIND, from_ + octet * 8 * KIND, to + octet)
                if channels > octets * 8:
                    last_sign_bits(8, 1, KIND, from_ + octets * 8 * KIND, channels - octets * 8, to + octets)

    return pack_from_pixels


@jit.specialise
def fill_maps() -> Callable[..., None]:
    """Images x words x slabs of rows, dealt to the tasks: packs what is not packed, and brings the words of
    each row to their place within the border."""

    def fill_maps(args: int, task: int) -> None:
        a = carray(pointer(args), 1, MAP_ARGUMENTS)[0]
        rows = a.depth * a.height
        total = a.n * a.groups * a.words * a.slabs
        for item in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            slab, word = item % a.slabs, item // a.slabs % a.words
            group = item // (a.slabs * a.words) % a.groups
            image = item // (a.slabs * a.words * a.groups)
            first, end = rows * slab // a.slabs, rows * (slab + 1) // a.slabs
            source = a.x + image * a.x_n + group * a.x_group + word * a.x_word + first * a.width * a.x_pixel
            unit = a.x_pixel
            if a.kind:
                to, channels = a.temp + task * a.temp_stride, min(64, a.channels - word * 64)
                count = (end - first) * a.width
                call(a.pack, (source, a.x_channel, a.x_pixel, channels, count, to))
                source, unit = to, 8
            plane = ((image * a.groups + group) * a.words + word) * a.map_d
            for row in range(first, end):
                at = (plane + row // a.height + a.pad_d) * a.map_h + row % a.height + a.pad_h
                place_words(a, source, unit, a.maps + at * a.phases * a.phase * 8)
                source += a.width * unit

    return fill_maps


@jit.helper
def place_words(a: Any, source: int, unit: int, target: int) -> None:
    """A row of words, `unit` bytes apart, behind its border and split into the phases of the stride."""
    if a.phases == 1 and unit == 8:
        copy_bytes(target + a.pad_w * 8, source, a.width * 8)
    else:
        for i in range(a.width):
            column = i + a.pad_w
            to = target + (column % a.phases * a.phase + column // a.phases) * 8
            carray(pointer(to), 1, np.int64)[0] = carray(pointer(source + i * unit), 1, np.int64)[0]


def pack_signs(x: np.ndarray, groups: int = 1) -> np.ndarray:
    """(N, C, ...) as words (N, groups * words, ...) uint64: `words` for the channels of each group."""
    n, c, *rest = x.shape
    words = -(-(c // groups) // WORD)
    bits = np.zeros((n, groups, words * WORD, *rest), bool)
    bits[:, :, : c // groups] = (x < 0).reshape(n, groups, c // groups, *rest)
    octets = np.packbits(bits.reshape(n, groups * words, WORD, *rest), axis=2, bitorder="little")
    last = np.ascontiguousarray(np.moveaxis(octets, 2, -1))  # (N, words, ..., 8)
    return last.view("<u8")[..., 0].astype(np.uint64)


def unpack_signs(packed: np.ndarray, channels: int, groups: int = 1) -> np.ndarray:
    """(N, C, ...) int8 of +1 and -1 from `pack_signs`."""
    n, count, *rest = packed.shape
    octets = packed.astype("<u8")[..., None].view(np.uint8)  # (N, words, ..., 8)
    bits = np.unpackbits(np.moveaxis(octets, -1, 2), axis=2, bitorder="little")
    each = bits.reshape(n, groups, count // groups * WORD, *rest)[:, :, : channels // groups]
    return (1 - 2 * each.astype(np.int8)).reshape(n, channels, *rest)
