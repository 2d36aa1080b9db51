"""Products of matrix tiles (AMX): eight registers of up to 16 rows of 64 bytes each.

`tile_dot` adds to a tile of 32-bit sums (rows x columns) the products of a tile of rows x words and one of
words x columns; a word is four integers of 8 bits or two bfloat16, those of an output beside each other. A
thread configures the tiles before it uses them (`configuration`, `load_configuration`) and releases them
afterwards, and a process asks the system for them once (`permitted`).

Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on Intel AMX.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.cpu.vectors.simd import Value, Vec, emitter, function_of, ir

ROWS, WORDS = 16, 16  # at most, of a tile
ACROSS = 2  # tiles of sums beside and above each other: with as many of each operand they are all eight
REQUEST, TILE_DATA = 0x1023, 18  # of Linux's arch_prctl: ask for the state of tiles
ARCH_PRCTL = 158


@cache
def permitted() -> bool:
    """Whether this process may use tiles: Linux is asked for them, threads started later have them, too."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, REQUEST, TILE_DATA) == 0)


def configuration(shapes: Sequence[tuple[int, int]]) -> np.ndarray:
    """What `load_configuration` reads: (rows, words of a row) of the tiles 0, 1, ...

    The process is permitted to use them: plans of a saved network are made without asking who can serve.
    """
    if shapes:
        permitted()
    found = np.zeros(64, np.uint8)
    found[0] = 1  # the palette: eight tiles of 1 KiB
    for i, (rows, words) in enumerate(shapes):
        found[16 + 2 * i] = 4 * words
        found[48 + i] = rows
    return found


@emitter
def load_configuration(v: Vec, address: Value) -> None:
    """Shape the tiles of this thread; all become zero."""
    _call(v, "ldtilecfg", v.pointer(address))


@emitter
def release_tiles(v: Vec) -> None:
    """Give the tiles of this thread back: what the system saves of it grows while they are in use."""
    _call(v, "tilerelease")


def zero_tile(v: Vec, tile: int) -> None:
    _call(v, "tilezero", _number(tile))


def load_tile(v: Vec, tile: int, pointer: Any, stride: Any) -> None:
    """Rows from a pointer on, `stride` bytes apart."""
    _call(v, "tileloadd64", _number(tile), pointer, v.integer(stride))


def store_tile(v: Vec, tile: int, pointer: Any, stride: Any) -> None:
    """Rows from a pointer on, `stride` bytes apart."""
    _call(v, "tilestored64", _number(tile), pointer, v.integer(stride))


def tile_dot(v: Vec, kind: str, total: int, rows: int, columns: int) -> None:
    """total += rows @ columns.

    kind: "bf16ps" of bfloat16, or two letters, of `rows` and of `columns`, "s" for int8 and "u" for uint8,
    with a "d": "usd" is uint8 x int8.
    """
    name = f"tdp{kind}" if kind == "bf16ps" else f"tdpb{kind}"
    _call(v, name, *map(_number, (total, rows, columns)))


def bytes_behind(v: Vec, pointer: Any, offset: Any) -> Any:
    """A pointer so many bytes further."""
    return v.b.gep(pointer, [v.integer(offset)], source_etype=ir.IntType(8))


def _number(tile: int) -> Any:
    return ir.Constant(ir.IntType(8), tile)


def _call(v: Vec, name: str, *given: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    v.b.call(function_of(v.b, kind, f"llvm.x86.{name}"), given)
