"""Runs of a plan whose steps are one table of launches, on inputs as they came before, in compiled code.

Of a network of some microseconds, Python's look at the inputs, its new arrays and the words that it tells
take longer than the kernels. What a compiled run does not know, such as inputs of other shapes, it leaves to
the caller, untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import allocator
from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported
from convalgos.cpu.runtime import array_calls, jit
from convalgos.cpu.runtime.array_calls import DATA, LAID, TYPE, lies, word_at
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import call, carray, external, pointer
from convalgos.network.memory import Memory, MemoryPool
from convalgos.network.run_parts import TablePart

# The types of arrays and dicts, a table, what is called behind it, or 0, and the memory, which is to be in a
# list of what is free; and addresses and counts of the following.
RUN = fields(
    "type dict table rows check free memory inputs input_count results result_count words word_count"
)
# `array`: that of a run, whose memory is nobody else's meanwhile. A word is what kernels read as the address
# of what is `array` of one of the others.
INPUT = fields("array name dtype ndim sizes")
RESULT = fields("array make arguments")
WORD = fields("cell array offset")

_integer = external("PyNumber_AsSsize_t", 2)
_release = external("PyEval_SaveThread", 0)
_resume = external("PyEval_RestoreThread", 1, returns=False)
_count, _drop = external("Py_IncRef", 1, returns=False), external("Py_DecRef", 1, returns=False)
_dict_size, _dict_item = external("PyDict_Size", 1), external("PyDict_GetItem", 2)
_list, _append = external("PyList_New", 1), external("PyList_Append", 2)
_set_item = external("PyList_SetItem", 3)
_list_size, _list_item = external("PyList_Size", 1), external("PyList_GetItem", 2)
_set_slice, _made = external("PyList_SetSlice", 4), external("PyObject_CallObject", 2)


@jit.helper
def set_word(address: int, value: int) -> None:
    carray(pointer(address), 1, np.int64)[0] = value


@jit.helper
def takes_memory(r: Any) -> bool:
    """Whether its memory was free; nobody else's from now on."""
    place = _list_size(r.free) - 1
    while place >= 0 and _list_item(r.free, place) != r.memory:
        place -= 1
    if place < 0:
        return False
    return _set_slice(r.free, place, place + 1, 0) & 0xFFFFFFFF == 0  # type: ignore[no-any-return]


@jit.helper
def inputs_held(r: Any, given: int) -> int:
    """How many inputs, up to the first that is of another kind, are held from now on."""
    held = 0
    while held < r.input_count:
        at = r.inputs + held * INPUT.itemsize
        v = carray(pointer(at), 1, INPUT)[0]
        array = _dict_item(given, v.name)
        if array == 0:
            break
        if not lies(array, r.type, v.dtype, v.ndim, v.sizes, LAID):
            break
        _count(array)
        set_word(at, array)
        held += 1
    return held


@jit.helper
def drop_inputs(r: Any, held: int) -> None:
    for i in range(held):
        _drop(word_at(r.inputs + i * INPUT.itemsize))


@jit.helper
def results_made(r: Any) -> int:
    """A list of new arrays, or 0: no memory."""
    found = _list(r.result_count)
    i = 0
    while i < r.result_count and found != 0:
        at = r.results + i * RESULT.itemsize
        v = carray(pointer(at), 1, RESULT)[0]
        array = _made(v.make, v.arguments)
        if array == 0:
            _drop(found)
            found = 0
        else:
            _set_item(found, i, array)
            set_word(at, array)
        i += 1
    return int(found)


@jit.helper
def results_computed(r: Any, pool: int, threads: int, run_table: int, launch: int) -> int:
    """The list of results, or 0: an error is set."""
    found = results_made(r)
    if found != 0:
        for at in range(r.words, r.words + r.word_count * WORD.itemsize, WORD.itemsize):
            w = carray(pointer(at), 1, WORD)[0]
            set_word(w.cell, word_at(word_at(w.array) + DATA) + w.offset)
        state = _release()
        call(run_table, (pool, r.table, r.rows, threads, launch))
        _resume(state)
        if r.check != 0:
            checked = _made(r.check, 0)
            if checked == 0:
                _drop(found)
                found = 0
            else:
                _drop(checked)
    return found


def _run_known(this: int, given: int, count: int) -> int:
    """What Python calls as f(address of `RUN`, kernel of tables, launch, pool, threads, inputs by name), all
    integers but the inputs: a list of all outputs, or None."""
    r = carray(pointer(_integer(word_at(given), 0)), 1, RUN)[0]
    inputs, found = word_at(given + 40), this  # it is None
    if word_at(inputs + TYPE) == r.dict and _dict_size(inputs) == r.input_count and takes_memory(r):
        held = inputs_held(r, inputs)
        if held == r.input_count:
            run_table, launch = _integer(word_at(given + 8), 0), _integer(word_at(given + 16), 0)
            pool, threads = _integer(word_at(given + 24), 0), _integer(word_at(given + 32), 0)
            found = results_computed(r, pool, threads, run_table, launch)
        drop_inputs(r, held)
        if _append(r.free, r.memory) & 0xFFFFFFFF != 0 and found != 0:
            if found != this:
                _drop(found)
            found = 0
    if found == this:
        _count(this)
    return int(found)


@functools.cache
def _known_run() -> Callable[..., Any] | None:
    """The function of Python; None where the arrays of this NumPy cannot be read."""
    return jit.from_python(b"run_known", _run_known, jit.FASTCALL) if array_calls.array_call() else None


class Arguments(NamedTuple):
    """Inputs or outputs of a network: name, shape and type."""

    name: str
    shape: Shape
    dtype: np.dtype


class KnownRun:
    """Many threads may call `run` at once: one of them computes, and the others are told None.

    Args:
        part: all there is to a run.
        memory: what it computes in, of a pool.
        kept: what must live as long as this.
    """

    def __init__(
        self, part: TablePart, inputs: Sequence[Arguments], outputs: Sequence[Arguments], memory: Memory,
        memories: MemoryPool, kept: Any,
    ):  # fmt: skip
        self.alone = not part.is_shared  # whether it runs on the calling thread, whatever others there are
        self._kept: list[Any] = [part, memory, memories.free, kept]
        address_of = jit.data_address()
        taken, made = np.zeros(len(inputs), INPUT), np.zeros(len(outputs), RESULT)
        for row, v in zip(taken, inputs, strict=True):
            sizes = np.array(v.shape, np.int64)
            row["name"], row["dtype"], row["ndim"] = id(v.name), id(v.dtype), len(v.shape)
            row["sizes"] = address_of(sizes)
            self._kept.append((v, sizes))
        for row, v in zip(made, outputs, strict=True):
            row["make"], row["arguments"] = self._maker(v)
        at = {v.name: address_of(taken) + i * INPUT.itemsize for i, v in enumerate(inputs)}
        at |= {v.name: address_of(made) + i * RESULT.itemsize for i, v in enumerate(outputs)}
        words = np.array([(cell, at[name], offset) for name, cell, offset in part.words], WORD)
        check = part.raise_noted  # one object, which the record names
        self._kept += [taken, made, words, check]
        self._record = np.array((
            id(np.ndarray), id(dict), part.address, part.count, id(check) if part.checks else 0,
            id(memories.free), id(memory), address_of(taken), len(taken), address_of(made), len(made),
            address_of(words), len(words),
        ), RUN)  # fmt: skip
        run = _known_run()
        assert run is not None, "the arrays of this NumPy can be read"
        launched = int(self._record.ctypes.data), jit.table_address(), jit.launch_address()
        self.run: Callable[[Mapping[str, Any]], list[np.ndarray] | None]
        if self.alone:
            self.run = functools.partial(run, *launched, 0, 1)
        else:
            self.run = functools.partial(_run_shared, run, launched)  # a method would make a cycle

    def _maker(self, result: Arguments) -> tuple[int, int]:
        """What makes an array, and what that is given."""
        arguments = result.shape, result.dtype
        small = int(np.prod(result.shape)) * result.dtype.itemsize < allocator.SMALL
        make: Callable[..., np.ndarray] = np.empty if small else allocator.new_array
        self._kept.append((make, arguments))
        return id(make), id(arguments)


def _run_shared(
    run: Callable[..., list[np.ndarray] | None], launched: tuple[int, ...], inputs: Mapping[str, Any]
) -> list[np.ndarray] | None:
    """A run on the threads that a call has now."""
    return run(*launched, *jit.pool_of_launch(True), inputs)


def can_be_known() -> bool:
    """Whether there is a compiled run, or can be in this process."""
    try:
        return _known_run() is not None
    except Unsupported:
        return False
