"""A plan on a GPU: how it takes arrays, filter, workspace and bias, and how it runs its kernels.

A call goes through these steps:
1. `_call_here` checks the arrays, and copies those that vectors cannot be loaded from.
2. `_run` takes the plan's workspace; where there is no memory for it, the next plan takes over (`Fallback`).
3. `_compute` calls the subclass's `run`. bias, activation and residual are built into its kernels, or a
   kernel of their own follows.

`capture` records steps 2 and 3 as a CUDA graph.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from contextvars import ContextVar
from copy import copy
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.arrays import empty_like, float8_bits
from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.epilogue import RELU, Activation, ActivationLike, activation_of
from convalgos.core.errors import Unsupported, read_only
from convalgos.core.plan import Plan, flipped
from convalgos.core.prepared_filter import PreparedFilter
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import Device, current, use
from convalgos.gpu.launch.epilogue import EpilogueKernel, FusedEpilogue
from convalgos.gpu.launch.fallback import Fallback, GpuFilter
from convalgos.gpu.launch.graph import CapturedCall
from convalgos.gpu.launch.grid import VECTOR_BYTES, GridLaunch
from convalgos.gpu.launch.kernel_records import conv_record

PASS_BYTES = 1 << 28  # of what kernels hand on to one another: larger work is done in several passes

_built_in: ContextVar[FusedEpilogue | None] = ContextVar(
    "what the kernels of a plan are built with", default=None
)


class GpuPlan(Plan):
    """Calls like any plan, on arrays of one device and on the current stream; it never waits.

    Kernels with another activation than ReLU are compiled at the first call that asks for it.

    Workspaces come from CuPy's pool in every call, which keeps one arena per stream: a workspace that is
    kept here would be shared by streams.
    """

    uncapturable: ClassVar[str | None] = None  # why no graph can hold its runs
    fuses: bool = True  # whether its kernels are built with any activation in them,
    adds_residual: bool = False  # and with a residual

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, workspace_bytes: int = 0):
        self.device: Device = current()
        super().__init__(problem, algorithm, workspace_bytes, device=self.device.name)
        self.launches: list[GridLaunch] = []
        self.conv = {  # by whether there is an activation
            relu: self.by_value(conv_record(problem, relu)) for relu in (False, True)
        }
        self.fallback = Fallback()
        self._algorithm, self._built_in = algorithm, _built_in.get()
        self._rebuilt: dict[FusedEpilogue, GpuPlan] = {}  # the same plan with other kernels
        self._epilogues: dict[Activation | None, EpilogueKernel] = {}
        self._array = self.device.xp.ndarray
        self._y_bytes = math.prod(self._y_shape) * self._y_dtype.itemsize

    # --- for the caller ----------------------------------------------------------------------

    def prepare(self, w: Any, quantization: Quantization | None = None) -> PreparedFilter:
        """As `Plan.prepare`, on the current stream: others may use the filter once that has come so far."""
        if quantization is not None:
            raise ValueError(f"quantization must be None: {self.problem} has no integers")
        with self.device.active(), self.device.stream_of(w):
            w = self.device.xp.array(self._checked(self._w_name, w, self._w_shape), order="C")
            return self.in_own_form(w, w if self.workspace_bytes and self.choice.next_plan else None)

    def capture(
        self,
        x: Any,
        w: Any,
        *,
        bias: Any = None,
        out: Any = None,
        activation: Any = None,
        residual: Any = None,
    ) -> CapturedCall:
        """Record a call as a CUDA graph, to replay it on the same arrays in 2 microseconds of host time.

        A stream that is captured around a call would not do: the call's workspace goes back to the pool.

        Args:
            x, w, bias, out, activation, residual: those of a call. The graph reads and writes them where they
                lie, but for a filter, so each must be contiguous, start at a multiple of 16 bytes, and out
                overlap none of the others.

        Returns:
            What replays the call on the then current stream when it is called, and returns y: `out`, or an
            array of the graph's own. It keeps all arrays alive, and a workspace that no other call uses.

        Raises:
            ValueError: an array must not lie as it does. Unsupported: this plan cannot be captured; says why.

        Example:
            >>> replay = plan.capture(x, plan.prepare(w))  # doctest: +SKIP
            >>> x[...] = batch  # doctest: +SKIP
            >>> y = replay()  # doctest: +SKIP
        """
        activation = activation_of(activation)
        if bias is not None or activation is not None or residual is not None:
            self._check_output_step(bias, activation, residual)
        device = self.device
        with device.active(), device.stream_of(x):
            if device.capturing():
                raise Unsupported(
                    "the current stream is being captured: graphs cannot be made within a graph"
                )
            y = self._target_of(x) if out is None else out
            of_x = self._fixed(self._x_name, x, self._x_shape)
            of_bias = None if bias is None else self._fixed("bias", bias, (self.problem.bias_size,))
            of_residual = None if residual is None else self._fixed("residual", residual, self._y_shape)
            of_y = self._fixed("out", y, self._y_shape)
            bare = None if isinstance(w, PreparedFilter) else self._bare_filter(w)
            read = {self._x_name: of_x, self._w_name: bare, "bias": of_bias, "residual": of_residual}
            for name, array in read.items():
                if array is not None and self._overlaps(of_y, array):
                    raise ValueError(f"out overlaps {name}: a graph cannot write where it has yet to read")
            w = self._filter(w if bare is None else bare)
            graph = self._recorded(of_x, w, of_bias, activation, of_residual, of_y)
        return CapturedCall(device, graph, y, (x, w, bias, residual, of_x, of_bias, of_residual, of_y))

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        """Write all of y. x, y: C-contiguous, in the problem's layout; w: from `prepare_filter`.

        workspace: (workspace_bytes,) uint8, or None where the plan needs none. bias: (K,) or None.
        activation: None or "relu", which stands for the one that the plan's kernels are built with.
        """

    def launch(
        self, build: Build, name: str, grid: Iterable[int], block: int, shared_bytes: int = 0
    ) -> GridLaunch:
        """A kernel of the plan, compiled now."""
        if self._built_in is not None:
            build = build.also(**self._built_in.macros)
        function = self.device.function(build, name, shared_bytes)
        found = GridLaunch(build, name, tuple(map(int, grid)), block, shared_bytes, function)
        self.launches.append(found)
        return found

    def by_value(self, record: np.ndarray) -> Any:
        """(1,) A record as launches take it; as it is it would cost each of them microseconds."""
        return self.device.by_value(record)

    def workspace(self) -> Any:
        """Scratch for one call: (workspace_bytes,) uint8, or None; overridden where a library allocates."""
        return self.device.xp.empty(self.workspace_bytes, np.uint8) if self.workspace_bytes else None

    # --- a call ------------------------------------------------------------------------------

    def _call(self, x: Any, w: Any, bias: Any, out: Any, activation: ActivationLike, residual: Any) -> Any:
        """`Plan.__call__`, on the current stream of the device, or on the stream of x."""
        if activation is not None:
            activation = activation_of(activation)
        if type(x) is self._array and self.device.is_current():
            return self._call_here(x, w, bias, out, activation, residual)
        with self.device.active(), self.device.stream_of(x):
            y = self._target_of(x) if out is None else out
            return self._call_here(x, w, bias, y, activation, residual)

    def _call_here(
        self, x: Any, w: Any, bias: Any, out: Any, activation: Activation | None, residual: Any
    ) -> Any:
        """A call on the current stream."""
        if self.fallback.plan is not None and not isinstance(w, PreparedFilter):  # no preparing for this one
            return self.fallback.plan._call_here(x, w, bias, out, activation, residual)
        x = self._vectors(self._checked(self._x_name, x, self._x_shape))
        bare = None if isinstance(w, PreparedFilter) else self._checked(self._w_name, w, self._w_shape)
        w = self._filter(w if bare is None else bare)
        if bias is not None or activation is not None or residual is not None:
            self._check_output_step(bias, activation, residual)
        if bias is not None:
            bias = self._vectors(self._checked("bias", bias, (self.problem.bias_size,)))
        if residual is not None:
            residual = self._vectors(self._checked("residual", residual, self._y_shape))
        if out is None:
            y = self.device.xp.empty(self._y_shape, self._y_dtype)
            self._run(x, w, bias, activation, residual, y)
            return self.device.xp.ascontiguousarray(flipped(y)) if self._flips_result else y
        given = self._checked("out", out, self._y_shape)
        y = self._target(given, (x, bare, bias, residual))
        self._run(x, w, bias, activation, residual, y)
        if y is not given:
            given[...] = flipped(y) if self._flips_result else y
        return out

    def _filter(self, w: Any) -> GpuFilter:
        """A filter in the plan's own form; a bare one is prepared, on the stream of the call."""
        if type(w) is GpuFilter and (w.key is self._key or w.key == self._key):
            return w
        if isinstance(w, PreparedFilter):
            raise ValueError(f"w was prepared for {w.key}, not for {self._key}")
        w = self._checked(self._w_name, w, self._w_shape)
        return self.in_own_form(w, w)

    def in_own_form(self, w: Any, original: Any) -> GpuFilter:
        """A filter, prepared on the current stream.

        original: the filter, or None where no other plan will need it.
        """
        return GpuFilter(self._key, self.prepare_filter(self._turned(w)), original)

    def _turned(self, w: Any) -> Any:
        """A filter as it is multiplied."""
        turned = flipped(w) if self._flips and not self._flips_result else w
        return self.device.xp.ascontiguousarray(turned)

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        given, array = array, self.device.as_array(name, array)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the problem {self.problem} has {shape}")
        dtype = self._dtypes[name]
        if dtype.name in FLOAT8_DTYPES and (bits := float8_bits(given, array, dtype)) is not None:
            return bits
        if array.dtype != dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, but the problem has {dtype}")
        return array

    def _vectors(self, array: Any) -> Any:
        """The array as kernels load it: contiguous, and starting where a vector may."""
        if self._is_fixed(array):
            return array
        return self.device.xp.array(array, order="C")

    def _target(self, out: Any, read: tuple[Any, ...]) -> Any:
        """The array to compute into: `out` itself where that is safe."""
        if not getattr(out.flags, "writeable", True):
            raise read_only("out")
        safe = self._is_fixed(out) and not self._flips_result
        if safe and not any(a is not None and self._overlaps(out, a) for a in read):
            return out
        return self.device.xp.empty(self._y_shape, self._y_dtype)

    def _target_of(self, x: Any) -> Any:
        """A new y of x's kind, on the memory of its library."""
        other = None if self._y_dtype == self._dtype else self._y_dtype.name
        y = empty_like(x, self._y_shape, other)
        return self.device.xp.empty(self._y_shape, self._y_dtype) if y is None else y

    def _is_fixed(self, array: Any) -> bool:
        """Whether kernels work on this array where it lies."""
        return array.flags.c_contiguous and self.device.address(array) % VECTOR_BYTES == 0

    def _fixed(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        array = self._checked(name, array, shape)
        if not self._is_fixed(array):
            raise ValueError(
                f"{name} must be contiguous and start at a multiple of {VECTOR_BYTES} bytes to be captured; "
                f"it has strides {array.strides} and starts at {self.device.address(array):#x}"
            )
        if name == "out" and not getattr(array.flags, "writeable", True):
            raise read_only("out")
        return array

    def _bare_filter(self, w: Any) -> Any:
        """A filter that was not prepared, for a graph: dy is read in every replay, so where it lies."""
        check = self._fixed if self.problem.direction == "backward_weights" else self._checked
        return check(self._w_name, w, self._w_shape)

    def _overlaps(self, y: Any, other: Any) -> bool:
        """Whether two arrays share memory; of those that are not contiguous, kernels read copies."""
        start, first = self.device.address(y), self.device.address(other)
        return first < start + self._y_bytes and start < first + other.nbytes

    # --- the epilogue ------------------------------------------------------------------------

    def _compute(self, x: Any, w: Any, bias: Any, activation: Any, residual: Any, y: Any) -> None:
        """`run`, with a kernel behind it for what its own kernels leave of the epilogue."""
        active = None if activation is None else "relu"
        if residual is None and (activation is None or activation == RELU):
            self.run(x, w, bias, active, y, self.workspace())
        elif self.fuses and (residual is None or self.adds_residual):
            plan = self._built_with(FusedEpilogue(activation, residual is not None))
            if residual is not None:
                plan = plan._reading(self.device.address(residual))
            plan.run(x, w, bias, active, y, plan.workspace())
        else:
            self.run(x, w, bias, None, y, self.workspace())
            if activation not in self._epilogues:
                self._epilogues[activation] = EpilogueKernel(self.device, self._y_dtype.name, activation)
            self._epilogues[activation](y, residual)

    def _built_with(self, fused: FusedEpilogue) -> GpuPlan:
        """This plan with more of the epilogue in its kernels. Both read the same filters."""
        if fused in self._rebuilt:
            return self._rebuilt[fused]
        token = _built_in.set(fused)
        try:
            with use(self.device):
                plan = self._algorithm.plan(self.problem)
        finally:
            _built_in.reset(token)
        assert isinstance(plan, GpuPlan)
        return self._rebuilt.setdefault(fused, plan)

    def _reading(self, residual: int) -> GpuPlan:
        """This plan for one call that adds the residual at an address."""
        plan = copy(self)
        plan.conv = {relu: self.by_value(conv_record(self.problem, relu, residual)) for relu in (False, True)}
        return plan

    # --- memory ------------------------------------------------------------------------------

    def _run(self, x: Any, w: GpuFilter, bias: Any, activation: Any, residual: Any, y: Any) -> None:
        """`_compute` with a workspace, or the plan that needs less of it."""
        if not self.fallback.serves(w):
            try:
                return self._compute(x, w.data, bias, activation, residual, y)
            except self.device.out_of_memory as error:
                self.fallback.take_over(self, w, error)
        plan, w = self.fallback.of(w)
        plan._run(x, w, bias, activation, residual, y)

    def _recorded(self, x: Any, w: GpuFilter, bias: Any, activation: Any, residual: Any, y: Any) -> Any:
        """`_run` as a graph."""
        if self.uncapturable:
            raise Unsupported(f"{self.algorithm} cannot be captured in a graph: {self.uncapturable}")
        if self._flips_result:
            raise Unsupported("a gradient of a flipped filter is flipped after the run, outside of a graph")
        if not self.fallback.serves(w):
            try:
                return self.device.capture(lambda: self._compute(x, w.data, bias, activation, residual, y))
            except self.device.out_of_memory as error:
                self.fallback.take_over(self, w, error)
        plan, w = self.fallback.of(w)
        return plan._recorded(x, w, bias, activation, residual, y)
