"""Vector operations for kernels.

`emitter` turns a Python function over a `Vec`, which writes LLVM instructions, into an operation that kernels
(see `jit`) call like a function. `intrinsic` and `external` do so for instructions without vectors and for
functions of the process. `pointer`, `carray` and `call` are the words that kernels have for memory and for
other kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from convalgos.core.machine import vector_bytes
from convalgos.cpu.vectors.instructions import (
    LINE,
    Register,
    Value,
    Vec,
    allocate,
    function_of,
    ir,
    lanes,
)

__all__ = [
    "LINE", "Operation", "Register", "Value", "Vec", "allocate", "call", "carray", "copy_bytes", "emitter",
    "external", "fetch_bytes", "function_of", "intrinsic", "ir", "lanes", "pointer", "vector_bytes",
    "zero_bytes",
]  # fmt: skip


class Operation(NamedTuple):
    """What a kernel calls like a function, and what is written as LLVM's instructions in its place."""

    name: str
    constants: int  # leading arguments that are known when the kernel is compiled
    values: int  # arguments behind them: integers of 64 bits
    write: Callable[..., Any]  # (builder, *constants, *values) -> an integer, or nothing


def emitter(function: Callable[..., None]) -> Any:
    """An operation for kernels, from a function (v: Vec, constants..., values...).

    Parameters in capitals are constants known at compile time, all others integer values. In a kernel the
    operation takes the element size and the number of lanes first:
    `operation(SIZE, LANES, *constants, *values)`.
    """
    names = list(inspect.signature(function).parameters)[1:]
    constants = sum(name.isupper() for name in names)

    def write(builder: Any, size: int, lanes: int, *given: Any) -> None:
        function(Vec(builder, lanes, size), *given)

    return Operation(function.__name__, 2 + constants, len(names) - constants, write)


def intrinsic(write: Callable[..., Any]) -> Any:
    """An operation for kernels, from a function (builder, values...)."""
    return Operation(write.__name__, 0, len(inspect.signature(write).parameters) - 1, write)


def external(name: str, values: int, returns: bool = True) -> Any:
    """A function of the process over integers."""

    def write(builder: Any, *given: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word if returns else ir.VoidType(), [word] * values)
        return builder.call(function_of(builder, kind, name), given)

    return Operation(name, 0, values, write)


# --- plain operations ------------------------------------------------------------------------


def pointer(address: int) -> Any:
    """An address for `carray(pointer(address), shape, dtype)`; only kernels know it."""
    raise TypeError("only kernels have pointers")


def carray(pointer: Any, shape: Any, dtype: Any) -> Any:
    """The elements of a dtype, or the records, from an address on; only kernels know it."""
    raise TypeError("only kernels have pointers")


def call(kernel: int, arguments: tuple[int, ...]) -> None:
    """Call the kernel at an address with a tuple of integers: `call(kernel, (a, b))`; only kernels do."""
    raise TypeError("only kernels call kernels")


@intrinsic
def copy_bytes(builder: Value, target: Value, source: Value, count: Value) -> None:
    """target[:count] = source[:count]; they must not overlap."""
    byte = ir.PointerType(ir.IntType(8))
    copy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, count.type])
    addresses = [builder.inttoptr(a, byte) for a in (target, source)]
    builder.call(copy, [*addresses, count, ir.Constant(ir.IntType(1), 0)])


@intrinsic
def zero_bytes(builder: Value, target: Value, count: Value) -> None:
    """target[:count] = 0."""
    byte = ir.PointerType(ir.IntType(8))
    fill = builder.module.declare_intrinsic("llvm.memset", [byte, count.type])
    zero, once = ir.Constant(ir.IntType(8), 0), ir.Constant(ir.IntType(1), 0)
    builder.call(fill, [builder.inttoptr(target, byte), zero, count, once])


@emitter
def fetch_bytes(v: Vec, WRITE: int, address: Value, count: Value) -> None:
    """Ask for bytes from memory into L2, to read or to write them soon; they need not exist."""
    with v.loop(v.idiv(v.iadd(count, LINE - 1), LINE)) as i:
        v.prefetch(v.pointer(v.iadd(address, v.imul(i, LINE))), 0, bool(WRITE))
