"""What all GPU algorithms share: how a plan takes arrays, workspace and bias, and how it launches kernels."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from convalgos.algorithm import (
    ACTIVATIONS,
    Algorithm,
    Plan,
    PreparedFilter,
    Unsupported,
    finish,
    missing,
    tell,
    watchers,
)
from convalgos.arrays import like
from convalgos.gpu.device import Device, GpuMachine, current, why_none
from convalgos.gpu.module import Build
from convalgos.problem import DTYPES, ConvProblem

VECTOR_BYTES = 16  # of the widest loads: arrays that start elsewhere are copied
NO_BIAS = np.uintp(0)  # a null pointer
GRID_X = 2**31 - 1  # blocks along x that CUDA launches
GRID_YZ = 65535
IMAGE_ELEMENTS = 2**31  # kernels count within an image in 32 bits

# The argument that kernels call `Conv` (common.cuh); sizes of the 3-D view, strides in elements.
CONV = np.dtype(
    [
        ("x_image", np.int64),
        ("y_image", np.int64),
        ("x_channel", np.int32),
        ("y_channel", np.int32),
        ("x_pixel", np.int32),
        ("y_pixel", np.int32),
        ("images", np.int32),
        ("channels", np.int32),
        ("filters", np.int32),
        ("groups", np.int32),
        ("size", np.int32, 3),
        ("kernel", np.int32, 3),
        ("out", np.int32, 3),
        ("stride", np.int32, 3),
        ("dilation", np.int32, 3),
        ("pad", np.int32, 3),
        ("relu", np.int32),
        ("spare", np.int32),
    ]
)


def conv_record(problem: ConvProblem, relu: bool) -> np.ndarray:
    """(1,) The sizes of a problem as kernels read them, by value."""
    p = problem.as_3d
    last = p.layout == "channels_last"
    pixels, outputs = int(np.prod(p.spatial)), int(np.prod(p.spatial_out))
    record = np.zeros(1, CONV)
    values = {
        "x_image": p.C * pixels,
        "y_image": p.K * outputs,
        "x_channel": 1 if last else pixels,
        "y_channel": 1 if last else outputs,
        "x_pixel": p.C if last else 1,
        "y_pixel": p.K if last else 1,
        "images": p.N,
        "channels": p.C,
        "filters": p.K,
        "groups": p.groups,
        "size": p.spatial,
        "kernel": p.kernel,
        "out": p.spatial_out,
        "stride": p.stride,
        "dilation": p.dilation,
        "pad": [low for low, _ in p.padding],
        "relu": relu,
    }
    for name, value in values.items():
        record[name] = value
    return record


class Launch(NamedTuple):
    """A kernel with its geometry, ready to be called with its arguments."""

    build: Build
    name: str
    grid: tuple[int, ...]
    block: int  # threads
    shared_bytes: int  # dynamic
    function: Callable[..., None]

    def __call__(self, *arguments: Any) -> None:
        self.function(self.grid, (self.block,), arguments, shared_mem=self.shared_bytes)


class GpuAlgorithm(Algorithm):
    """An algorithm whose plan runs on the device that was current when it was made."""

    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)
    needs: ClassVar[tuple[str, ...]] = ()  # `why_none` tells of CuPy
    computes: ClassVar[dict[str, tuple[str, ...]]] = {  # dtype -> what its products may be computed in
        "float32": ("float32",),
        "float64": ("float64",),
        "float16": ("float32",),
        "bfloat16": ("float32",),
    }
    capability: ClassVar[tuple[int, int]] = (7, 0)  # the least that the kernels compile for

    @abstractmethod
    def builds(self) -> Iterable[Build]:
        """Every module that a plan of this algorithm may launch."""

    def spills(self, build: Build, arch: str) -> int:
        """Bytes that threads of a build may spill to local memory; overrides say why."""
        return 0

    def why_not(self, problem: ConvProblem) -> str | None:
        needed = (*self.needs, "ml_dtypes") if problem.dtype == "bfloat16" else self.needs
        if reason := why_none() or next(filter(None, map(missing, needed)), None):
            return reason
        if problem.direction not in self.directions:
            return f"computes {' and '.join(self.directions)} only, not {problem.direction}"
        if problem.dtype not in self.dtypes:
            return f"computes {' and '.join(self.dtypes)} only, not {problem.dtype}"
        allowed = self.computes.get(problem.dtype, ())
        if problem.compute_dtype not in allowed:
            return f"computes {problem.dtype} in {' or '.join(allowed)}, not in {problem.compute_dtype}"
        least = (8, 0) if problem.dtype == "bfloat16" else self.capability
        if (found := current().figures.capability) < least:
            return f"needs compute capability {least[0]}.{least[1]}, but the device has {found[0]}.{found[1]}"
        image = max(np.prod(problem.x_shape[1:]), np.prod(problem.y_shape[1:]))
        if image >= IMAGE_ELEMENTS or problem.gemm_m >= IMAGE_ELEMENTS:
            return f"counts in 32 bits, but an image or all pixels together are {IMAGE_ELEMENTS} or more"
        return None

    def prepare_cost(self, problem, machine):
        return 3 * machine.launch + 3 * machine.stream(problem.w_bytes)

    def computed(self, problem: ConvProblem) -> ConvProblem:
        """The problem itself: 16-bit elements are converted by the kernels."""
        return problem

    def serve(self, problem: ConvProblem) -> GpuPlan:
        if reason := self.why_not(problem):
            raise Unsupported(f"{self.id} cannot serve {problem}: {reason}")
        plan = EmptyGpuPlan(problem, self) if problem.is_empty else self.plan(problem)
        assert isinstance(plan, GpuPlan)
        return plan


class GpuPlan(Plan):
    """Calls like any plan, on arrays of one device and on the current stream; it never waits.

    Workspaces come from CuPy's pool in every call, which keeps one arena per stream: a workspace that is
    kept here would be shared by streams.
    """

    def __init__(self, problem: ConvProblem, algorithm: Algorithm, workspace_bytes: int = 0):
        super().__init__(problem, algorithm, workspace_bytes)
        self.device: Device = current()
        self.launches: list[Launch] = []
        self.conv = {  # by whether there is an activation
            False: conv_record(problem, relu=False),
            True: conv_record(problem, relu=True),
        }
        # Set by the selector: the plan to take instead where there is no memory for the workspace.
        self.next_plan: Callable[[], Plan | None] = lambda: None
        self._instead: Plan | None = None

    # --- for the caller ----------------------------------------------------------------------

    def prepare(self, w: Any) -> PreparedFilter:
        with self.device.active(), self.device.stream_of(w):
            w = self._checked("w", w, self.problem.w_shape)
            if self.problem.mode == "convolution":
                w = w[(slice(None), slice(None), *(slice(None, None, -1),) * self.problem.ndim)]
            w = self.device.xp.ascontiguousarray(w)
            data = self.prepare_filter(w)
            # Another plan would need the filter itself, which the caller may overwrite.
            return PreparedFilter(self._key, (data, w.copy() if self.workspace_bytes else None))

    def __call__(
        self, x: Any, w: Any, *, bias: Any = None, out: Any = None, activation: str | None = None
    ) -> Any:
        """y = activation(conv(x, w) + bias), as `Plan.__call__` says, on arrays of the plan's device."""
        if watchers and self.watched:
            tell(self.problem)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r} must be None or 'relu'")
        with self.device.active():
            if type(x) is self.device.xp.ndarray:
                return self._call(x, w, bias, out, activation)
            with self.device.stream_of(x):
                y = self._call(self.device.as_array("x", x), w, bias, out, activation)
                return out if out is not None else like(y, x)

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        """Write all of y. x, y: C-contiguous, in the problem's layout; w: from `prepare_filter`.

        workspace: (workspace_bytes,) uint8, or None where the plan needs none. bias: (K,) or None.
        """

    def launch(
        self, build: Build, name: str, grid: Iterable[int], block: int, shared_bytes: int = 0
    ) -> Launch:
        """A kernel of the plan, compiled now."""
        function = self.device.function(build, name, shared_bytes)
        found = Launch(build, name, tuple(map(int, grid)), block, shared_bytes, function)
        self.launches.append(found)
        return found

    # --- inside ------------------------------------------------------------------------------

    def _call(self, x: Any, w: Any, bias: Any, out: Any, activation: str | None) -> Any:
        x = self._vectors(self._checked("x", x, self._x_shape))
        if type(w) is not PreparedFilter:
            w = self.prepare(w)
        elif w.key is not self._key and w.key != self._key:
            raise ValueError(
                f"w was prepared for {w.key[0]} on {w.key[1]}, not for {self.algorithm} on {self.problem}"
            )
        if bias is not None:
            bias = self._vectors(self._checked("bias", bias, (self.problem.K,)))
        given = None if out is None else self._checked("out", out, self._y_shape)
        target = self._target(given, x, bias)
        self._run(x, w.data, bias, activation, target)
        if given is None:
            return target
        if target is not given:
            given[...] = target
        return out

    def _run(self, x: Any, data: tuple[Any, Any], bias: Any, activation: str | None, y: Any) -> None:
        """`run` with a workspace, or the plan that needs less of it."""
        if self._instead is None:
            try:
                return self.run(x, data[0], bias, activation, y, self.workspace())
            except self.device.out_of_memory as error:
                self._instead = self._less_memory(error)
        self._instead(x, data[1], bias=bias, out=y, activation=activation)

    def workspace(self) -> Any:
        """Scratch for one call: (workspace_bytes,) uint8, or None; overridden where a library allocates."""
        return self.device.xp.empty(self.workspace_bytes, np.uint8) if self.workspace_bytes else None

    def _less_memory(self, error: Exception) -> Plan:
        plan = self.next_plan()
        if plan is None:
            raise error
        warnings.warn(
            f"{self.algorithm} found no memory for its workspace of {self.workspace_bytes} bytes on "
            f"{self.device.name}; {plan.algorithm} runs {self.problem} from now on",
            RuntimeWarning,
            stacklevel=5,
        )
        return plan

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        array = self.device.as_array(name, array)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the problem {self.problem} has {shape}")
        if array.dtype != self._dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, but the problem has {self.problem.dtype}")
        return array

    def _vectors(self, array: Any) -> Any:
        """The array as kernels load it: contiguous, and starting where a vector may."""
        if not array.flags.c_contiguous:
            return self.device.xp.ascontiguousarray(array)
        return array.copy() if self.device.address(array) % VECTOR_BYTES else array

    def _target(self, out: Any, x: Any, bias: Any) -> Any:
        """The array to compute into: `out` itself where that is safe."""
        xp = self.device.xp
        if out is not None:
            if not getattr(out.flags, "writeable", True):
                raise ValueError("out is read-only; it must be writeable")
            aligned = out.flags.c_contiguous and self.device.address(out) % VECTOR_BYTES == 0
            overlaps = xp.may_share_memory(out, x) or (bias is not None and xp.may_share_memory(out, bias))
            if aligned and not overlaps:
                return out
        return xp.empty(self._y_shape, self._dtype)


class EmptyGpuPlan(GpuPlan):
    """A problem with a zero-sized dimension: y is empty, or every element is an empty sum plus the bias."""

    def prepare_filter(self, w: Any) -> None:
        return None

    def run(self, x, w, bias, activation, y, workspace) -> None:
        y.fill(0)
        finish(y, bias, activation, self.problem)


def ceil_div(n: int, d: int) -> int:
    """How many pieces of size d cover n."""
    return -(-n // d)


def waves(blocks: int, machine: GpuMachine) -> int:
    """Blocks that the busiest multiprocessor computes."""
    return ceil_div(blocks, machine.multiprocessors)
