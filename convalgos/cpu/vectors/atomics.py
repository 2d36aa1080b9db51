"""What threads share: words of 64 bits in memory that several of them read and write, sleep, and time.

Kernels call these with addresses. A load acquires and a store releases: what a thread wrote before its store
is seen by the one whose load finds the stored value. The operations that read and write at once are ordered
among all threads (sequentially consistent), and also hand on what was written before.
"""

from __future__ import annotations

import platform
import time

from convalgos.cpu.vectors.simd import Value, allocate, function_of, intrinsic, ir

X86 = platform.machine() in ("x86_64", "AMD64")
MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 1)  # the number of the clock that nobody sets
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)  # the number of Linux's call
WAIT, WAKE = 128, 129  # of a futex, among the threads of one process

CAN_SLEEP = platform.system() == "Linux" and FUTEX > 0
"""Whether `sleep` and `wake` work here."""


@intrinsic
def atomic_load(builder: Value, address: Value) -> Value:
    """The word at an address."""
    return builder.load_atomic(_at(builder, address), "acquire", 8, typ=ir.IntType(64))


@intrinsic
def atomic_store(builder: Value, address: Value, value: Value) -> None:
    """Write the word at an address."""
    builder.store_atomic(value, _at(builder, address), "release", 8)


@intrinsic
def atomic_add(builder: Value, address: Value, value: Value) -> Value:
    """Add to the word at an address, and return what it was before."""
    return builder.atomic_rmw("add", _at(builder, address), value, "seq_cst")


@intrinsic
def atomic_take(builder: Value, address: Value) -> Value:
    """Take one from the word at an address where that is more than 0, and return what it was before."""
    word = ir.IntType(64)
    zero, one = ir.Constant(word, 0), ir.Constant(word, 1)
    at = _at(builder, address)
    left = allocate(builder, word)
    builder.store(builder.load_atomic(at, "monotonic", 8, typ=word), left)
    trying = builder.append_basic_block("trying")
    taking = builder.append_basic_block("taking")
    done = builder.append_basic_block("done")
    builder.branch(trying)
    builder.position_at_end(trying)
    found = builder.load(left, typ=word)
    builder.cbranch(builder.icmp_signed(">", found, zero), taking, done)
    builder.position_at_end(taking)
    result = builder.cmpxchg(at, found, builder.sub(found, one), "seq_cst", "monotonic")
    builder.store(builder.extract_value(result, 0), left)
    builder.cbranch(builder.extract_value(result, 1), done, trying)
    builder.position_at_end(done)
    return builder.load(left, typ=word)


@intrinsic
def pause(builder: Value) -> None:
    """Let the other thread of the core go on while this one waits in a loop."""
    hints = [] if X86 else [ir.Constant(ir.IntType(32), 1)]  # of ARM's hints, "yield"
    kind = ir.FunctionType(ir.VoidType(), [hint.type for hint in hints])
    name = "llvm.x86.sse2.pause" if X86 else "llvm.aarch64.hint"
    builder.call(function_of(builder, kind, name), hints)


@intrinsic
def nanoseconds(builder: Value) -> Value:
    """Time since some moment."""
    word = ir.IntType(64)
    moment = allocate(builder, ir.ArrayType(word, 2))  # seconds, nanoseconds
    kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), moment.type])
    clock = function_of(builder, kind, "clock_gettime")
    builder.call(clock, [ir.Constant(ir.IntType(32), MONOTONIC), moment])
    found = builder.load(moment)
    seconds = builder.mul(builder.extract_value(found, 0), ir.Constant(word, 10**9))
    return builder.add(seconds, builder.extract_value(found, 1))


@intrinsic
def give_way(builder: Value) -> None:
    """Let another thread have this core, if one wants it."""
    if CAN_SLEEP:
        builder.call(function_of(builder, ir.FunctionType(ir.IntType(32), []), "sched_yield"), [])


@intrinsic
def sleep(builder: Value, address: Value, value: Value) -> None:
    """Sleep until a thread wakes those at this address, or not at all if the word there is not `value`.

    The lower 32 bits are compared. It may also return for no reason.
    """
    _futex(builder, address, WAIT, value)


@intrinsic
def wake(builder: Value, address: Value, count: Value) -> None:
    """Wake up to `count` of the threads that sleep at an address."""
    _futex(builder, address, WAKE, count)


def _futex(builder: Value, address: Value, operation: int, value: Value) -> None:
    if not CAN_SLEEP:  # there are no workers then, for whom and by whom this would be called
        return
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word], var_arg=True)
    system = function_of(builder, kind, "syscall")
    number, what, none = (ir.Constant(word, n) for n in (FUTEX, operation, 0))
    builder.call(system, [number, address, what, value, none, none, none])


def _at(builder: Value, address: Value) -> Value:
    return builder.inttoptr(address, ir.PointerType(ir.IntType(64)))
