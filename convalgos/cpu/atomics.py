"""What threads share: words of 64 bits in memory that several of them read and write, sleep, and time.

Kernels call these with addresses. A load acquires and a store releases: what a thread wrote before its store
is seen by the one whose load finds the stored value. The operations that read and write at once are ordered
among all threads (sequentially consistent), and also hand on what was written before.
"""

from __future__ import annotations

import platform
import time

from convalgos.cpu.simd import cgutils, intrinsic, ir, types

X86 = platform.machine() in ("x86_64", "AMD64")
MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 1)  # the number of the clock that nobody sets
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)  # the number of Linux's call
WAIT, WAKE = 128, 129  # of a futex, among the threads of one process

CAN_SLEEP = platform.system() == "Linux" and FUTEX > 0
"""Whether `sleep` and `wake` work here."""


@intrinsic
def load(typing_context, address):
    """The word at an address."""

    def generate(context, builder, signature, values):
        return builder.load_atomic(_at(builder, values[0]), "acquire", 8)

    return types.intp(types.intp), generate


@intrinsic
def store(typing_context, address, value):
    """Write the word at an address."""

    def generate(context, builder, signature, values):
        builder.store_atomic(values[1], _at(builder, values[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def add(typing_context, address, value):
    """Add to the word at an address, and return what it was before."""

    def generate(context, builder, signature, values):
        return builder.atomic_rmw("add", _at(builder, values[0]), values[1], "seq_cst")

    return types.intp(types.intp, types.intp), generate


@intrinsic
def take(typing_context, address):
    """Take one from the word at an address where that is more than 0, and return what it was before."""

    def generate(context, builder, signature, values):
        word = ir.IntType(64)
        zero, one = ir.Constant(word, 0), ir.Constant(word, 1)
        at = _at(builder, values[0])
        left = cgutils.alloca_once_value(builder, builder.load_atomic(at, "monotonic", 8))
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

    return types.intp(types.intp), generate


@intrinsic
def pause(typing_context):
    """Let the other thread of the core go on while this one waits in a loop."""

    def generate(context, builder, signature, values):
        hints = [] if X86 else [ir.Constant(ir.IntType(32), 1)]  # of ARM's hints, "yield"
        kind = ir.FunctionType(ir.VoidType(), [hint.type for hint in hints])
        name = "llvm.x86.sse2.pause" if X86 else "llvm.aarch64.hint"
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), hints)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def nanoseconds(typing_context):
    """Time since some moment."""

    def generate(context, builder, signature, values):
        word = ir.IntType(64)
        moment = cgutils.alloca_once(builder, ir.ArrayType(word, 2))  # seconds, nanoseconds
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), moment.type])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [ir.Constant(ir.IntType(32), MONOTONIC), moment])
        found = builder.load(moment)
        seconds = builder.mul(builder.extract_value(found, 0), ir.Constant(word, 10**9))
        return builder.add(seconds, builder.extract_value(found, 1))

    return types.intp(), generate


@intrinsic
def sleep(typing_context, address, value):
    """Sleep until a thread wakes those at this address, or not at all if the word there is not `value`.

    The lower 32 bits are compared. It may also return for no reason.
    """

    def generate(context, builder, signature, values):
        _futex(builder, values[0], WAIT, values[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def wake(typing_context, address, count):
    """Wake up to `count` of the threads that sleep at an address."""

    def generate(context, builder, signature, values):
        _futex(builder, values[0], WAKE, values[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


def _futex(builder, address, operation, value):
    if not CAN_SLEEP:  # there are no workers then, for whom and by whom this would be called
        return
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word], var_arg=True)
    system = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    number, operation, none = (ir.Constant(word, n) for n in (FUTEX, operation, 0))
    builder.call(system, [number, address, operation, value, none, none, none])


def _at(builder, address):
    return builder.inttoptr(address, ir.PointerType(ir.IntType(64)))
