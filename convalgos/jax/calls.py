"""Convolutions of compiled programs, as plans: what XLA's calls say, and how each is run.

A program says by text which convolution it wants, and by a number that is made of the text. So it may be kept
on disk and run in another process, which then makes the plan.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import math
import struct
import threading
from typing import Any, NamedTuple

import numpy as np

from convalgos.api import planning
from convalgos.core.bound_run import BoundRun
from convalgos.core.epilogue import ActivationLike
from convalgos.core.errors import missing
from convalgos.core.forks import renewed
from convalgos.core.huge_pages import ask_for_huge_pages
from convalgos.core.plan import Plan, numpy_dtype
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.setting import setting
from convalgos.cpu.backward.per_thread import SlicedFilters
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import Packed
from convalgos.cpu.runtime.recorded_packing import filter_packing
from convalgos.jax import handler
from convalgos.jax.engine import ffi
from convalgos.jax.filter_order import FilterOrder

FEW = 1 << 12  # bytes by which filters that are not the same are told apart
CHANGES = 8  # calls in a row with another filter each, from which on they pack it without Python,
REPEATS = 1000  # and for how many, before it is looked whether the filter still changes
KEPT_BYTES = 1 << 26  # of a filter and its bias, of which a copy is kept to compare with the next call's


class Selection(NamedTuple):
    """How an algorithm is chosen: as `convalgos.plan` takes it."""

    algorithm: str = "auto"
    weights_constant: bool = False
    strict_nan: bool = False
    max_rel_error: float | None = None


class Call(NamedTuple):
    """One convolution of a program, with its output step."""

    problem: ConvProblem
    choice: Selection = Selection()
    activation: ActivationLike = None
    has_bias: bool = False
    order: FilterOrder | None = None  # of the filter as it comes

    @property
    def text(self) -> str:
        return json.dumps([str(self.problem), *self[1:]])

    @property
    def number(self) -> int:
        """The same in every process, and not 0."""
        return int.from_bytes(hashlib.blake2b(self.text.encode(), digest_size=8).digest()) >> 1 | 1

    @classmethod
    def parse(cls, text: str) -> Call:
        problem, choice, activation, has_bias, order = json.loads(text)
        given = tuple(activation) if isinstance(activation, list) else activation
        found = order and FilterOrder(tuple(order[0]), tuple(order[1]), order[2])
        return cls(ConvProblem.parse(problem), Selection(*choice), given, has_bias, found)

    def plan(self) -> Plan:
        """The plan for the threads that there are now."""
        of = self.choice
        return planning.plan(
            self.problem, "cpu", of.algorithm, weights_constant=of.weights_constant, strict_nan=of.strict_nan,
            max_rel_error=of.max_rel_error,
        )  # fmt: skip


class Seen(NamedTuple):
    """The filter and the bias of an earlier call, and the filter as a plan has prepared it."""

    w: bytes
    bias: bytes
    plan: Plan | None = None
    prepared: Any = None
    repeats: bool = True  # whether a run with them may be kept


class Served:
    """A convolution that programs of this process have: its plan, and what is kept of its last filter."""

    def __init__(self, call: Call):
        self.call, self.number = call, call.number
        names, shapes = call.problem.arrays, list(call.problem.array_shapes)
        if call.order:
            shapes[1] = call.order.shape
        self._views = [_View(s, call.problem.dtype_of(n)) for n, s in zip(names, shapes, strict=True)]
        if call.has_bias:
            self._views.insert(2, _View((call.problem.bias_size,), call.problem.dtype_of(names[2])))
        self._plans: dict[Any, Plan] = {}
        self._seen = Seen(b"", b"")
        self._changes = 0  # calls with another filter than the one before them,
        self._in_row = 0  # and those in a row
        self._packs = True  # whether such filters may be packed by launches alone

    def plan(self) -> Plan:
        """The plan for the threads that there are now."""
        key = setting()
        if (made := self._plans.get(key)) is None:
            made = self._plans[key] = self.call.plan()
        return made

    def run_at(self, addresses: list[int]) -> None:
        """Run on arrays at these addresses: x, the filter, a bias where there is one, y.

        1. Where kernels read any filter as it is, the run is kept, and later calls repeat it without Python.
        2. A filter that is not the last one is prepared for this call alone; where each call brings another
           one, a run is kept that packs it, if launches alone do so.
        3. One that is, is prepared once.
        4. If the bias is the last one, too, the run is kept for this filter and bias.
        """
        x, w, *given, y = (view.at(a) for view, a in zip(self._views, addresses, strict=True))
        ask_for_huge_pages(addresses[-1], y.nbytes)
        plan, bias = self.plan(), given[0] if given else None
        if plan.reads_filter and bias is None and self.call.order is None:
            run = plan.bind(x, w, y, None, self.call.activation)
            run.run()
            if run.w_places:
                self._keep(run, None, b"")
            return
        seen = self._seen
        if not _same(w, seen.w) or self.call.problem.direction == "backward_weights":  # whose second is dy
            self._in_row += 1
            if self._in_row >= CHANGES and bias is None and self._keep_packing(plan, x, w, y):
                return
            self._see(w, bias)
            plan(x, self._own(w), bias=bias, out=y, activation=self.call.activation)
            return
        self._in_row = 0
        if seen.plan is not plan:
            of_w = np.frombuffer(seen.w, w.dtype).reshape(w.shape)
            self._seen = seen = seen._replace(plan=plan, prepared=plan.prepare(self._own(of_w)))
        kept = None
        if seen.repeats and (bias is None or _same(bias, seen.bias)):
            kept = self._kept_run(plan, seen, x, y)
            self._seen = seen._replace(repeats=kept is not None)
        if kept is None:
            plan(x, seen.prepared, bias=bias, out=y, activation=self.call.activation)
        else:
            kept.run()

    def on_host(self, x: Any, w: Any, *bias: Any) -> np.ndarray:
        """y of NumPy arrays, or what NumPy reads."""
        x, w, *of_k = (np.ascontiguousarray(a) for a in (x, w, *bias))
        activation = self.call.activation
        y: np.ndarray = self.plan()(x, self._own(w), bias=of_k[0] if of_k else None, activation=activation)
        return y

    def _own(self, w: np.ndarray) -> np.ndarray:
        """The filter (K, C/groups, *kernel)."""
        return self.call.order.own(w, np) if self.call.order else w

    def _see(self, w: np.ndarray, bias: np.ndarray | None) -> None:
        """Copy a filter for the next call to compare with; one that changes always, ever less often."""
        self._changes += 1
        if w.nbytes <= KEPT_BYTES and self._changes & (self._changes - 1) == 0:
            self._seen = Seen(w.tobytes(), b"" if bias is None else bias.tobytes())

    def _kept_run(self, plan: Plan, seen: Seen, x: np.ndarray, y: np.ndarray) -> BoundRun | None:
        """A run with this filter and bias, which is kept; None where there is more to it than kernels."""
        bias = np.frombuffer(seen.bias, self._views[2].dtype) if seen.bias else None
        run = plan.bind(x, seen.prepared, y, bias, self.call.activation)
        return run if self._keep(run, seen.w, seen.bias) else None

    def _keep_packing(self, plan: Plan, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> bool:
        """Run with this filter, and let programs repeat it with others, which are packed first."""
        if not self._packs or w.nbytes > KEPT_BYTES or self.call.problem.direction == "backward_weights":
            return False
        packing = filter_packing(lambda: plan.prepare(self._own(w)), _packed_arrays, w.ctypes.data, w.nbytes)
        run = packing and plan.bind(x, packing.filters, y, None, self.call.activation)
        if packing is None or run is None or run.launches is None:
            self._packs = False
            return False
        whole = jit.bound_run(
            (*packing.launches, *run.launches), packing, run, x_places=run.x_places, y_places=run.y_places,
            w_places=packing.w_places,
        )  # fmt: skip
        whole.run()
        self._packs = self._keep(whole, None, b"", REPEATS)
        self._seen = Seen(w.tobytes(), b"")
        return True

    def _keep(self, run: BoundRun, w: bytes | None, bias: bytes, times: int = -1) -> bool:
        """Let programs repeat a run, with w as None for any filter; False where its arrays must stay."""
        if not run.x_places or not run.y_places:
            return False
        _slots().keep(self.number, run, w, bias, self._views[-1].nbytes, times)
        return True


class _View(NamedTuple):
    """How the memory of an array is looked at."""

    shape: tuple[int, ...]
    dtype_name: str

    @property
    def dtype(self) -> np.dtype:
        return numpy_dtype(self.dtype_name)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def at(self, address: int) -> np.ndarray:
        dtype = self.dtype
        count = math.prod(self.shape)
        if not count:
            return np.empty(self.shape, dtype)
        memory: Any = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
        array: np.ndarray = np.frombuffer(memory, dtype).reshape(self.shape)
        return array


def served_call(call: Call) -> Served:
    """The convolution of a program, for which this process has a place from now on."""
    with _lock:
        number = call.number
        if (found := _served.get(number)) is None:
            found = Served(call)
            if can_be_called():
                _slots().add(number)
            _served[number] = found  # with a slot: other threads look for it without the lock
        return found


def can_be_called() -> bool:
    """Whether programs of XLA can call our function; otherwise they call Python in JAX's own way."""
    return missing("llvmlite") is None and handler.minor_version() is not None


# --- inside ----------------------------------------------------------------------------------

_served: dict[int, Served] = {}
_lock = renewed(threading.RLock())
_this = threading.local()  # error: what is told of the last one


@functools.cache
def _slots() -> handler.Slots:
    slots = handler.Slots(_answer, handler.minor_version() or 0)
    function = ctypes.cast(slots.address, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p))
    ffi.register_ffi_target(handler.TARGET, ffi.pycapsule(function), platform="cpu")
    return slots


def _answer(frame: int) -> int:
    """Run a call of XLA, by the address of what it says: 0, or the address of what tells of an error."""
    try:
        number, text, addresses = _read(frame)
        served = _served.get(number) or served_call(Call.parse(text))
        served.run_at(addresses)
    except BaseException as error:  # through XLA's code none may pass; XLA raises it again
        _this.error = handler.error_arguments(f"convalgos: {type(error).__name__}: {error}")
        return ctypes.addressof(_this.error)
    return 0


def _read(frame: int) -> tuple[int, str, list[int]]:
    """(number, text, addresses of the arrays) of a call."""
    (given,) = _words(frame + handler.ARGUMENTS, 1)
    (count,) = _words(frame + handler.ARGUMENT_COUNT, 1)
    (results,) = _words(frame + handler.RESULTS, 1)
    buffers = (*_words(given, count), *_words(results, 1))
    addresses = [_words(buffer + handler.BUFFER_DATA, 1)[0] for buffer in buffers]
    size, kinds, _, attributes = _words(frame + handler.COUNT, 4)
    number, text = 0, ""
    for i, at in enumerate(_words(attributes, size)):
        first, second = _words(at, 2)
        if ctypes.c_int32.from_address(kinds + 4 * i).value == handler.SCALAR:
            (number,) = _words(second, 1)
        else:
            text = ctypes.string_at(first, second).decode()
    return number, text, addresses


def _words(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"{count}q", ctypes.string_at(address, 8 * count))


def _packed_arrays(filters: PreparedFilter) -> list[np.ndarray]:
    """All arrays of what kernels prepare; none of other filters."""
    parts = _parts(filters.data)
    return [part.array for part in parts] if all(isinstance(part, Packed) for part in parts) else []


def _parts(data: Any) -> list[Any]:
    """Those of prepared filters of phases, and of slices of these; phases without taps have none."""
    if isinstance(data, SlicedFilters):
        data = data.packed
    if isinstance(data, list):
        return [part for each in data for part in _parts(each)]
    return [] if data is None else [data]


def _same(array: np.ndarray, content: bytes) -> bool:
    """Whether an array has just these bytes."""
    if array.nbytes != len(content):
        return False
    one, other = array.reshape(-1).view(np.uint8), np.frombuffer(content, np.uint8)
    return np.array_equal(one[:FEW], other[:FEW]) and np.array_equal(one, other)
