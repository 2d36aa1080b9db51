"""A plan: an algorithm fixed to a problem, which prepares a filter once and then runs on many inputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from convalgos.core import epilogue, workspaces
from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import shown
from convalgos.core.arrays import as_laid, as_numpy, is_laid, like, same_dtype, writable_view
from convalgos.core.problem import ConvProblem
from convalgos.core.tabular import Tabular

ALIGNED = 1 << 16  # bytes of a y from which on the alignment is worth its microsecond

watchers: list[Callable[[ConvProblem], None]] = []  # called with the problem of every watched run


def tell(problem: ConvProblem) -> None:
    """Let the watchers know of a run."""
    for watch in watchers:
        watch(problem)


class Named(Protocol):
    """What a plan asks of its algorithm."""

    @property
    def id(self) -> str: ...


class PreparedFilter:
    """A filter in the form that one plan runs on; `Plan.prepare` makes it. For backward_weights it is dy."""

    __slots__ = ("data", "key")

    def __init__(self, key: tuple[Any, ...], data: Any):
        self.key = key  # (algorithm id, problem), and on a GPU its name
        self.data = data


class Plan(Tabular, ABC):
    """An algorithm fixed to a problem. `prepare` the filter once, then call with (x, filter).

    Subclasses implement `prepare_filter`, `run`, and `new_workspace` where they need scratch.
    """

    explanation: str | Callable[[], str] = ""  # set by the selector: why this algorithm
    next_plan: Callable[[], Plan] | None = None  # of less workspace, where there is one; set by the selector
    watched = False  # whether its runs are those of a program, which `convalgos.measure.capture` counts
    used = 0  # when a cache of plans last gave it out, in its own count

    def __init__(self, problem: ConvProblem, algorithm: Named, workspace_bytes: int = 0):
        self.problem = problem
        self.algorithm = algorithm.id
        self.workspace_bytes = workspace_bytes
        self._key: tuple[Any, ...] = (algorithm.id, problem)
        self._dtype = numpy_dtype(problem.dtype)
        self._x_shape, self._w_shape, self._y_shape = problem.array_shapes
        self._x_name, self._w_name, _ = problem.arrays
        # The caller's filter lies flipped: so it is read, and so its gradient is written.
        self._flips = problem.mode == "convolution"
        self._flips_result = self._flips and problem.direction == "backward_weights"
        self._free: list[Any] = []  # workspaces not in use; list.pop and append are atomic
        self._counted = workspace_bytes >= workspaces.LARGE

    # --- for the caller ----------------------------------------------------------------------

    def prepare(self, w: Any) -> PreparedFilter:
        """Bring a filter (K, C/groups, *kernel) into the plan's own form, which is a copy.

        For backward_weights dy, which may be read again by each run: it must keep its values until then.

        Raises:
            ValueError: wrong shape. TypeError: wrong dtype.
        """
        return self._in_own_form(self._checked(self._w_name, w, self._w_shape))

    def __call__(
        self,
        x: Any,
        w: Any,
        *,
        bias: Any = None,
        out: Any = None,
        activation: Any = None,
        residual: Any = None,
    ) -> Any:
        """y = activation(conv(x, w) + bias + residual); likewise dx of (dy, w), and dw of (x, dy) by itself.

        Args:
            x: (N, C, *spatial), or (N, *spatial, C) when the problem's layout is channels_last; backward_data
                takes dy (N, K, *spatial_out) here.
            w: what `prepare` returned, or a filter, which is then prepared for this call only;
                backward_weights takes dy here.
            bias: (K,) or None; backward_data, as a transposed convolution, takes (C,), backward_weights None.
            out: array for the result, written whole; a new one is allocated when None. It may be of any
                strides, alignment and byte order, and overlap the other arrays of the call.
            activation: None, "relu", "relu6", ("clip", low, high), "leaky_relu" or ("leaky_relu", slope),
                "sigmoid", "silu", "hard_swish", "gelu" or "gelu_tanh"; backward_weights takes None.
            residual: an array like the result that is added before the activation, or None; `out` may be
                the same. backward_weights takes None.

        Returns:
            y (N, K, *spatial_out) or dx (N, C, *spatial) in the problem's layout, or dw (K, C/groups,
            *kernel), of x's kind of array; `out` if it was given.
        """
        if type(x) is not np.ndarray:
            if out is not None:
                target = writable_view("out", out)
                self(as_numpy("x", x), w, bias=bias, out=target, activation=activation, residual=residual)
                return out
            return like(self(as_numpy("x", x), w, bias=bias, activation=activation, residual=residual), x)
        if watchers and self.watched:
            tell(self.problem)
        if x.shape != self._x_shape or x.dtype != self._dtype or not is_laid(x.flags):
            x = as_laid(self._checked(self._x_name, x, self._x_shape))
        given = None  # the filter, or dy, where it comes as it is
        if type(w) is not PreparedFilter:
            given = self._checked(self._w_name, w, self._w_shape)
            w = self._in_own_form(given)
        elif w.key is not self._key and w.key != self._key:
            raise ValueError(
                f"w was prepared for {w.key[0]} on {w.key[1]}, not for {self.algorithm} on {self.problem}"
            )
        wanted, in_kernels = None, True
        if bias is not None or activation is not None or residual is not None:
            self._check_output_step(bias, activation, residual)
            wanted = epilogue.activation_of(activation)
            in_kernels = residual is None and wanted in (None, epilogue.RELU)
        if bias is not None:
            bias = as_laid(self._checked("bias", bias, (self.problem.bias_size,)))
        if residual is not None:
            residual = as_laid(self._checked("residual", residual, self._y_shape))
        target = self._new_target() if out is None else self._target(out, (x, given, bias, residual))
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = self.new_workspace()
        try:
            self.run(x, w.data, bias, "relu" if wanted and in_kernels else None, target, workspace)
        finally:
            self._free.append(workspace)
            if self._counted:
                workspaces.returned(self)
        if not in_kernels:
            epilogue.finish(target, residual, wanted)
        if self._flips_result:
            target = np.ascontiguousarray(flipped(target))
        if out is None or target is out:
            return target
        out[...] = target
        return out

    def __repr__(self) -> str:
        return f"<Plan of {self.problem}: {self.algorithm}, workspace {self.workspace_bytes / 1e6:.2f} MB>"

    def to_dict(self) -> dict[str, Any]:
        """What it is, as `json.dumps` takes it."""
        what = {"problem": str(self.problem), "algorithm": self.algorithm}
        return what | {"workspace_bytes": int(self.workspace_bytes), "flops": self.problem.flops}

    def _frame_rows(self) -> list[dict[str, Any]]:
        return [self.to_dict()]

    def explain(self) -> str:
        """Why this algorithm was picked, and why not the others."""
        told = self.explanation() if callable(self.explanation) else self.explanation
        return told or f"{self.algorithm} on {self.problem}"

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def prepare_filter(self, w: np.ndarray) -> Any:
        """w: (K, C/groups, *kernel) `as_laid`, already flipped for mode="convolution"; or dy."""

    @abstractmethod
    def run(
        self,
        x: np.ndarray,
        w: Any,
        bias: np.ndarray | None,
        activation: str | None,
        y: np.ndarray,
        workspace: Any,
    ) -> None:
        """Write all of y. x, y: `as_laid`, in the problem's layout; w: from `prepare_filter`."""

    def new_workspace(self) -> Any:
        """Scratch for one run at a time; made when the pool is empty, then reused."""
        return None

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        """target[...] = source, which are `as_laid`, one of them float32 and the other of 16 bits."""
        with np.errstate(over="ignore"):  # what is too large becomes infinity without a word, as in kernels
            target[...] = source

    # --- inside ------------------------------------------------------------------------------

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = as_numpy(name, array)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the problem {self.problem} has {shape}")
        if not same_dtype(array.dtype, self._dtype):
            raise TypeError(f"{name} has dtype {array.dtype}, but the problem has {self.problem.dtype}")
        return array

    def _in_own_form(self, w: np.ndarray) -> PreparedFilter:
        if self._flips and not self._flips_result:
            w = flipped(w)
        return PreparedFilter(self._key, self.prepare_filter(as_laid(w)))

    def _target(self, out: Any, read: tuple[np.ndarray | None, ...]) -> np.ndarray:
        """The array to compute into: `out` itself where that is safe."""
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out={type(out).__name__} must be an array of x's kind")
        if type(out) is not np.ndarray or out.shape != self._y_shape or out.dtype != self._dtype:
            self._checked("out", out, self._y_shape)
        flags = out.flags
        if not flags.writeable:
            raise ValueError("out is read-only; it must be writeable")
        if self._flips_result or out.dtype != self._dtype or not is_laid(flags):
            return self._new_target()
        for array in read:
            if array is not None and np.may_share_memory(out, array):
                return self._new_target()
        return out

    def _check_output_step(self, bias: Any, activation: Any, residual: Any) -> None:
        if self.problem.direction == "backward_weights":
            given = f"activation={shown(activation)}"
            for name, array in (("residual", residual), ("bias", bias)):
                given = given if array is None else f"{name}={type(array).__name__}"
            raise ValueError(f"{given} must be None: the gradient of a filter has no output step")

    def _new_target(self) -> np.ndarray:
        """An uninitialised y; a large one starts on a cache line, which stores of whole vectors like."""
        count = math.prod(self._y_shape)
        if count * self.problem.itemsize < ALIGNED:
            return np.empty(self._y_shape, self._dtype)
        return aligned_empty(count, self._dtype).reshape(self._y_shape)


class EmptyPlan(Plan):
    """A problem with a zero-sized dimension: y is empty, or every element is an empty sum plus the bias."""

    def prepare_filter(self, w: np.ndarray) -> None:
        return None

    def run(self, x, w, bias, activation, y, workspace) -> None:
        y.fill(0)
        finish(y, bias, activation, self.problem)


class CastPlan(Plan):
    """Data of 16 bits around a plan that computes float32; only the answer is rounded."""

    def __init__(self, problem: ConvProblem, algorithm: Named, inner: Plan):
        super().__init__(problem, algorithm, inner.workspace_bytes + self.converted_bytes(problem))
        self._inner = inner

    @staticmethod
    def converted_bytes(problem: ConvProblem) -> int:
        """What is read first and what is written, in float32."""
        first, _, result = problem.array_shapes
        return 4 * (math.prod(first) + math.prod(result))

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(self._wide(w, np.empty(w.shape, np.float32)))

    def new_workspace(self) -> Any:
        """(workspace of the plan, x or dy in float32, y or its gradient in float32)."""
        wide = (
            aligned_empty(math.prod(shape), np.float32).reshape(shape)
            for shape in (self._x_shape, self._y_shape)
        )
        return self._inner.new_workspace(), *wide

    def run(self, x, w, bias, activation, y, workspace) -> None:
        inner_workspace, wide_x, wide_y = workspace
        bias = None if bias is None else bias.astype(np.float32)
        self._inner.run(self._wide(x, wide_x), w, bias, activation, wide_y, inner_workspace)
        self._inner.convert(wide_y, y)

    def _wide(self, array: np.ndarray, wide: np.ndarray) -> np.ndarray:
        self._inner.convert(array, wide)
        return wide


class RereadPlan(Plan):
    """A plan for the other layout, where that is the same memory: other shapes are given to the same data."""

    def __init__(self, problem: ConvProblem, algorithm: Named, inner: Plan):
        super().__init__(problem, algorithm, inner.workspace_bytes)
        self._inner = inner
        self._shapes = inner.problem.array_shapes

    def prepare_filter(self, w: np.ndarray) -> Any:
        return self._inner.prepare_filter(w.reshape(self._shapes[1]))

    def new_workspace(self) -> Any:
        return self._inner.new_workspace()

    def run(self, x, w, bias, activation, y, workspace) -> None:
        first, _, result = self._shapes
        self._inner.run(x.reshape(first), w, bias, activation, y.reshape(result), workspace)


def flipped(w: Any) -> Any:
    """A filter or its gradient (K, C/groups, *kernel) with its kernel turned round; a view."""
    return w[(slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))]


def finish(y: np.ndarray, bias: np.ndarray | None, activation: str | None, problem: ConvProblem) -> None:
    """The output step in NumPy, in place, for plans that have no kernel of their own to fuse it into.

    y: an array of the problem's layout, or a piece of one with all its dimensions.
    """
    if bias is not None:
        y += bias.reshape(-1, *(1,) * problem.ndim) if problem.layout == "channels_first" else bias
    if activation == "relu":
        np.maximum(y, 0, out=y)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a problem's dtype; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
