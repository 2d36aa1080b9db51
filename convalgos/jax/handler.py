"""What XLA calls in a compiled program: a C function that runs a plan on XLA's own buffers.

The function is a kernel like all others, compiled by `jit`. A program of XLA names a convolution by a
number, which is the same in every process, and the function looks it up in a table of slots. Where the slot
holds a run for the very filter that comes (and the same bias), the function sets the addresses of x and y and
launches its kernels: no Python, and no lock of the interpreter. In all other cases, such as the first call of
a program or training, where every step has another filter, it calls a function of Python with the address of
the call.

A table's address is known to the process only, so the address that XLA gets is that of one more function, of
two instructions, which adds it.

Source: XLA's foreign function interface, xla/ffi/api/c_api.h, in the versions of `MINORS`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core.bound_run import BoundRun
from convalgos.core.huge_pages import ADVICE, LEAST, PAGE, advising_function
from convalgos.cpu.compile import code_generation
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.array_calls import word_at
from convalgos.cpu.vectors.atomics import atomic_load, atomic_store, atomic_take, pause
from convalgos.cpu.vectors.simd import Value, call, carray, external, intrinsic, ir, pointer
from convalgos.jax.engine import ffi

MINORS = 1, 2, 3  # of version 0 of the interface, whose records lie as they are read here
TARGET = "convalgos_conv"  # the name of the function in programs

# Bytes from the start of a record of the interface to a field: of a call (a frame), its arrays and numbers
EXTENSION, API, STAGE, ARGUMENTS, RESULTS, COUNT, KINDS, ATTRIBUTES = 8, 16, 32, 72, 112, 136, 144, 160
BUFFER_DATA, SCALAR_VALUE, ARGUMENT_COUNT = 24, 8, 56
EXTENSION_TYPE, METADATA, MAJOR, MINOR = 8, 24, 24, 28  # what asks for the version, and where it is told
ERROR_CREATE = 48  # among the functions of the interface
IS_METADATA, EXECUTE, SCALAR = 1, 3, 3

# Where the rows of (number, slot) lie, behind their count; the version; the function of Python; what tells of
# an error that this could not even return
TABLE = np.dtype([(name, np.int64) for name in ["rows", "minor", "function", "failed"]])
# A run that is kept, for the filter and the bias that have these bytes, or for any where these are none.
# `free` is 1 while no thread is at it; `places` are rows of `bound_run.AddressWord`, of x, in the rows from
# `x_count` on of y, and from `y_end` on of the filter. `run` goes through the table of the launches,
# `times` times before Python is asked again, or without end where that is negative.
FIELDS = (
    "free w w_bytes bias bias_bytes places x_count y_end place_count table count run launch pool threads "
    "advise y_bytes times"
)
SLOT = np.dtype([(name, np.int64) for name in FIELDS.split()])
TIMES = 8 * FIELDS.split().index("times")
PLACE = np.dtype([("word", np.int64), ("offset", np.int64)])

_ensure = external("PyGILState_Ensure", 0)
_release = external("PyGILState_Release", 1, returns=False)
_number = external("PyLong_FromSsize_t", 1)
_integer = external("PyLong_AsSsize_t", 1)
_apply = external("PyObject_CallOneArg", 2)
_forget = external("Py_DecRef", 1, returns=False)
_tell = external("PyErr_Print", 0, returns=False)
_compare = external("memcmp", 3)


@intrinsic
def result_of(builder: Value, function: Value, argument: Value) -> Value:
    """What the function at an address makes of an integer."""
    kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
    return builder.call(builder.inttoptr(function, ir.PointerType(kind)), [argument])


@jit.helper
def half_at(address: int) -> int:
    return int(carray(pointer(address), 1, np.int32)[0])


@jit.helper
def data_of(buffers: int, index: int) -> int:
    """Where the elements of an array of a call are."""
    return word_at(word_at(buffers + 8 * index) + BUFFER_DATA)


@jit.helper
def number_of(frame: int) -> int:
    """The one number among the attributes of a call."""
    found = 0
    for i in range(word_at(frame + COUNT)):
        if half_at(word_at(frame + KINDS) + 4 * i) == SCALAR:
            found = word_at(word_at(word_at(word_at(frame + ATTRIBUTES) + 8 * i) + SCALAR_VALUE))
    return found


@jit.helper
def slot_of(table: int, number: int) -> int:
    """The address of the slot of a number, or 0."""
    rows = atomic_load(table)
    mask = word_at(rows) - 1
    at = number & mask
    slot = 0
    while word_at(rows + 16 * at + 16) != 0:
        if word_at(rows + 16 * at + 8) == number:
            slot = word_at(rows + 16 * at + 16)
            break
        at = (at + 1) & mask
    return slot


@jit.helper
def same_bytes(one: int, other: int, count: int) -> bool:
    return count == 0 or _compare(one, other, count) & 0xFFFFFFFF == 0


@jit.helper
def run_slot(slot: int, frame: int) -> bool:
    """Run what a slot holds, where it is for this filter and bias; the caller has taken the slot."""
    s = carray(pointer(slot), 1, SLOT)[0]
    given = word_at(frame + ARGUMENTS)
    if s.count == 0 or s.times == 0 or not same_bytes(s.w, data_of(given, 1), s.w_bytes):
        return False
    if s.bias_bytes != 0 and not same_bytes(s.bias, data_of(given, 2), s.bias_bytes):
        return False
    x, w, y = data_of(given, 0), data_of(given, 1), data_of(word_at(frame + RESULTS), 0)
    if s.times > 0:
        carray(pointer(slot + TIMES), 1, np.int64)[0] = s.times - 1
    places = carray(pointer(s.places), s.place_count, PLACE)
    for i in range(s.place_count):
        place = places[i]
        begin = x if i < s.x_count else (y if i < s.y_end else w)
        carray(pointer(place.word), 1, np.int64)[0] = begin + place.offset
    if s.advise != 0:
        page = (y + PAGE - 1) // PAGE * PAGE
        call(s.advise, (page, y + s.y_bytes - page, ADVICE))
    call(s.run, (s.pool, s.table, s.count, s.threads, s.launch))
    return True


@jit.helper
def run_python(frame: int, table: int) -> int:
    """Let the function of Python run a call; the address of an error, or 0."""
    t = carray(pointer(table), 1, TABLE)[0]
    state = _ensure()
    number = _number(frame)
    told = _apply(t.function, number)
    _forget(number)
    error = t.failed
    if told == 0:
        _tell()
    else:
        error = _integer(told)
        _forget(told)
    _release(state)
    made = 0
    if error != 0:
        made = result_of(word_at(word_at(frame + API) + ERROR_CREATE), error)
    return int(made)


def _handle(frame: int, table: int) -> int:
    """Answer a call of XLA: the address of an error, or 0."""
    extension = word_at(frame + EXTENSION)
    if extension != 0:
        if half_at(extension + EXTENSION_TYPE) == IS_METADATA:
            version = carray(pointer(word_at(extension + METADATA) + MAJOR), 2, np.int32)
            version[0], version[1] = 0, word_at(table + 8)
        return 0
    if half_at(frame + STAGE) != EXECUTE:
        return 0
    slot = slot_of(table, number_of(frame))
    if slot != 0 and atomic_take(slot) > 0:
        done = run_slot(slot, frame)
        atomic_store(slot, 1)
        if done:
            return 0
    return run_python(frame, table)


def _take(slot: int) -> None:
    """Wait until no thread is at a slot, and keep others away."""
    while atomic_take(slot) <= 0:
        pause()


def _give(slot: int) -> None:
    """Let others at a slot."""
    atomic_store(slot, 1)


class ErrorArguments(ctypes.Structure):
    """XLA_FFI_Error_Create_Args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


INTERNAL = 13  # the code of an error of ours


def error_arguments(message: str) -> ErrorArguments:
    """What the interface makes an error of."""
    return ErrorArguments(ErrorArguments.code.offset + 4, None, message.encode(), INTERNAL)


class Slots:
    """The runs that are kept, by the numbers of their calls, and the function that XLA calls.

    Args:
        serve: called with the address of a call that no slot serves; returns 0, or the address of
            `error_arguments`, which must live as long.
    """

    def __init__(self, serve: Callable[[int], int], minor: int):
        self._failed = error_arguments("convalgos: a convolution failed, and its traceback was printed")
        self._kept: dict[int, tuple[np.ndarray, Any]] = {}  # number -> its slot, and what that points to
        self._serve = serve
        self._rows = np.zeros(1, np.int64)
        self._table = np.zeros(1, TABLE)
        self._table[0] = (0, minor, id(serve), ctypes.addressof(self._failed))
        self._fill(64)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64)
        self._take = kind(jit.compile_kernel(_take))
        self._give = kind(jit.compile_kernel(_give))
        self.address = _with_second(jit.compile_kernel(_handle, "integer"), self._table.ctypes.data)

    def add(self, number: int) -> None:
        """Make a slot for a number, with nothing in it; the caller holds a lock."""
        slot = np.zeros(1, SLOT)
        slot["free"] = 1
        self._kept[number] = slot, None
        self._fill(max(64, 4 << len(self._kept).bit_length()))

    def keep(
        self, number: int, run: BoundRun, w: bytes | None, bias: bytes, y_bytes: int, times: int = -1
    ) -> None:
        """Let a slot hold a run, for just this filter and bias; with None for any filter, by `w_places`.

        Args:
            times: that it runs before Python is asked again; -1: without end.
        """
        slot, _ = self._kept[number]
        launches = run.launches or ()
        table = jit.launch_table(launches)
        rows = np.array([*run.x_places, *run.y_places, *(run.w_places if w is None else ())], PLACE)
        w = b"" if w is None else w
        pool, threads = jit.pool_of_launch(True)
        content = np.frombuffer(w, np.uint8), np.frombuffer(bias, np.uint8)
        values = (
            0, content[0].ctypes.data, len(w), content[1].ctypes.data, len(bias), rows.ctypes.data,
            len(run.x_places), len(run.x_places) + len(run.y_places), len(rows), table.ctypes.data,
            len(launches), jit.table_address(), jit.launch_address(), pool, threads,
            advising_function() if y_bytes >= LEAST else 0, y_bytes, times,
        )  # fmt: skip
        at = slot.ctypes.data
        self._take(at)
        try:
            slot[0] = values  # of which the first keeps it taken
            self._kept[number] = slot, (run, table, rows, content)
        finally:
            self._give(at)

    def _fill(self, capacity: int) -> None:
        """Put all slots into new rows; calls that go on read the old ones, which are kept for their sake."""
        rows = np.zeros(1 + 2 * capacity, np.int64)
        rows[0] = capacity
        pairs = rows[1:].reshape(capacity, 2)
        for number, (slot, _) in self._kept.items():
            at = number % capacity
            while pairs[at, 1]:
                at = (at + 1) % capacity
            pairs[at] = number, slot.ctypes.data
        self._old, self._rows = self._rows, rows
        self._table["rows"] = rows.ctypes.data


def minor_version() -> int | None:
    """The version of the interface that this JAX has, where it is one whose records are read here."""
    header = Path(ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    found = {name: int(v) for name, v in re.findall(r"#define XLA_FFI_API_(M\w+) (\d+)", text)}
    minor = found.get("MINOR")
    return minor if found.get("MAJOR") == 0 and minor in MINORS else None


def _with_second(kernel: int, second: int) -> int:
    """The address of a function of one integer, which calls a kernel with this one as the second."""
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word])
    module = ir.Module("with_second")
    function = ir.Function(module, kind, "with_second")
    builder = ir.IRBuilder(function.append_basic_block())
    target = builder.inttoptr(ir.Constant(word, kernel), ir.PointerType(ir.FunctionType(word, [word] * 2)))
    builder.ret(builder.call(target, [function.args[0], ir.Constant(word, second)]))
    return code_generation.link("with_second", *code_generation.object_code(str(module)))
