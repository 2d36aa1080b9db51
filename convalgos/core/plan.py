"""A plan: an algorithm fixed to a problem, which prepares a filter once and then runs on many inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from convalgos.core import epilogue, recent_filters
from convalgos.core.arrays import as_numpy, like, writable_view
from convalgos.core.bound_run import BoundRun
from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.choice import NOT_CHOSEN, Choice
from convalgos.core.epilogue import Activation, ActivationLike
from convalgos.core.laid_arrays import as_laid, copy_into, is_laid, lies_whole
from convalgos.core.plan_arrays import PlanArrays, numpy_dtype
from convalgos.core.prepared_filter import FilterForm, FilterKey, PreparedFilter, shared_key
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.core.tabular import Tabular

__all__ = [
    "NOT_CHOSEN", "Choice", "Named", "Plan", "QuickCall", "flipped", "numpy_dtype", "result_dtype", "tell",
    "watchers",
]  # fmt: skip

NONE_FREE = object()  # in the place of a workspace, where all are in use

watchers: list[Callable[[ConvProblem], None]] = []  # called with the problem of every watched run


def tell(problem: ConvProblem) -> None:
    """Let the watchers know of a run."""
    for watch in watchers:
        watch(problem)


class Named(Protocol):
    """What a plan asks of its algorithm."""

    @property
    def id(self) -> str: ...


QuickCall = Callable[[Any, Any, Any, Any, bool], Any]  # see `Plan.quick_call`


class Plan(PlanArrays, Tabular, ABC):
    """An algorithm fixed to a problem. `prepare` the filter once, then call with (x, filter).

    Subclasses implement `prepare_filter`, `run`, and `new_workspace` where they need scratch.
    """

    scratch_bytes: int | None = None  # of the scratch that `bind` takes; None: a run makes its own
    choice: Choice = NOT_CHOSEN
    takes_views = False  # whether `prepare_filter` reads a filter of any strides as fast as one that is laid
    any_order = False  # and of any order of its axes
    outputs_together: int | None = None  # of a block of a line: a NaN of its samples is spread to all
    reads_filter = False  # whether kernels read the filter, or dy in its place, as the caller has it
    _quick: QuickCall | None = None
    _where: Callable[[np.ndarray], int] | None = None  # the address of an array; None: filters are not kept

    def __init__(
        self, problem: ConvProblem, algorithm: Named, workspace_bytes: int = 0, *, device: str = "cpu"
    ):
        super().__init__(problem)
        self.algorithm = algorithm.id
        self._filter_device = device
        self._set_workspace(workspace_bytes)

    @cached_attribute
    def _key(self) -> FilterKey:  # type: ignore[override]
        """What filters are prepared for; found when it is first asked for, from the complete plan."""
        return shared_key(self.algorithm, self.filter_form(), self._filter_device)

    @property
    def computing(self) -> Plan:
        """This plan, or the one that it only converts and reshapes arrays for."""
        return self

    def chosen(self, choice: Choice) -> Self:
        """This plan, as the one that a planner chose."""
        self.choice = choice
        return self

    # --- for the caller ----------------------------------------------------------------------

    def prepare(self, w: ArrayLike, quantization: Quantization | None = None) -> PreparedFilter:
        """Bring a filter (K, C/groups, *kernel) into the plan's own form, which is a copy.

        Args:
            w: an array, or a sparse matrix of SciPy (K, C/groups * product of the kernel), in this order;
                for backward_weights dy, which each run may read again: it must keep its values until then.
            quantization: scales and zero points, of problems of integers; by default 1 and 0.

        Raises:
            ValueError: wrong shape, or a quantization of what is not quantised. TypeError: wrong dtype.
        """
        return self._in_own_form(self._checked(self._w_name, w, self._w_shape), quantization)

    def __call__(
        self,
        x: ArrayLike,
        w: ArrayLike | PreparedFilter,
        *,
        bias: ArrayLike | None = None,
        out: ArrayLike | None = None,
        activation: ActivationLike = None,
        residual: ArrayLike | None = None,
    ) -> Any:
        """y = activation(conv(x, w) + bias + residual); likewise dx of (dy, w), and dw of (x, dy) by itself.

        Args:
            x: (N, C, *spatial), or (N, *spatial, C) when the problem's layout is channels_last; backward_data
                takes dy (N, K, *spatial_out) here.
            w: what `prepare` returned, or a filter, which is then prepared in this call, or was in an earlier
                one where it is small and every byte is the same; backward_weights takes dy here.
            bias: (K,) or None; backward_data, as a transposed convolution, takes (C,), backward_weights None.
            out: array for the result, written whole; a new one is allocated when None. It may be of any
                strides, alignment and byte order, and overlap the other arrays of the call.
            activation: None, "relu", "relu6", ("clip", low, high), "leaky_relu" or ("leaky_relu", slope),
                "sigmoid", "silu", "hard_swish", "gelu", "gelu_tanh", "tanh", "elu", "selu",
                ("elu", alpha, scale), "softplus" or "mish"; backward_weights takes None.
            residual: an array like the result that is added before the activation, or None; `out` may be
                the same. backward_weights takes None, and so do integers, whose bias is of int32.

        Returns:
            y (N, K, *spatial_out) or dx (N, C, *spatial) in the problem's layout, or dw (K, C/groups,
            *kernel), of x's kind of array; `out` if it was given.

        Raises:
            ValueError: a shape or an activation is wrong, w was prepared for another plan, or out is
                read-only. TypeError: a dtype is wrong, or an array of a kind that this plan does not take.
        """
        if watchers and self.choice.watched:
            tell(self.problem)
        if (
            self._quick is not None and type(x) is np.ndarray and residual is None
            and (activation is None or (type(activation) is str and activation == "relu"))
        ):  # fmt: skip
            known: Any = w
            if type(w) is np.ndarray and self._where is not None:
                known = recent_filters.find_recent(self._key, self._where(w), w)
            if type(known) is PreparedFilter and known.key is self._key:
                target = self._new_target() if out is None else out
                y = self._quick(x, known.data, target, bias, activation is not None)
                if y is not None:
                    return y
        return self._call(x, w, bias, out, activation, residual)

    def bind(
        self,
        x: np.ndarray,
        w: ArrayLike | PreparedFilter,
        y: np.ndarray,
        bias: np.ndarray | None = None,
        activation: ActivationLike = None,
        residual: np.ndarray | None = None,
        scratch: np.ndarray | None = None,
    ) -> BoundRun:
        """A run on these very arrays, to be repeated while their values change: `run()` computes y.

        Args:
            x, y, residual: as of a call, but they must lie in the order of the problem's layout. Where the
                plan says `strided_batch`, images may lie apart: y may be a slice of the channels of an array.
                With `rows_apart` x and y may be parts of larger maps. `residual` may be y, for one more pass.
            bias: is read now, and not again.
            scratch: uint8, `scratch_bytes` from a cache line on, which other runs may use between; or None.

        Raises:
            ValueError, TypeError: as in a call. Unsupported: an array lies as the kernels do not take it.

        Example:
            >>> run = plan.bind(x, plan.prepare(w), y, activation="silu")  # doctest: +SKIP
            >>> run.run()  # doctest: +SKIP
        """
        self._check_bound(x, y, residual)
        w = self._own_filter(w)

        def run() -> None:
            self._call(x, w, bias, y, activation, residual)

        self._output_step(bias, activation, residual)  # what is wrong of it is told now
        return BoundRun(run)

    def _own_filter(self, w: ArrayLike | PreparedFilter) -> PreparedFilter:
        """The filter, prepared for this plan."""
        w = w if isinstance(w, PreparedFilter) else self.prepare(w)
        self._check_key(w)
        return w

    def _check_key(self, w: PreparedFilter) -> None:
        if w.key != self._key:
            raise ValueError(f"w was prepared for {w.key}, not for {self._key}")

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
        told = self.choice.explanation
        return (told() if callable(told) else told) or f"{self.algorithm} on {self.problem}"

    # --- for the implementor -----------------------------------------------------------------

    @abstractmethod
    def prepare_filter(self, w: Any) -> Any:
        """w: (K, C/groups, *kernel) `as_laid`, or as it came where `takes_as_it_lies`; or dy."""

    def filter_form(self) -> FilterForm | ConvProblem:
        """What `prepare_filter` depends on beside the values of the filter: plans of one algorithm whose
        forms are equal share prepared filters. A plan that knows says more than the problem: `FilterForm`.
        """
        return self.problem

    @abstractmethod
    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        """Write all of y, with the bias (K,) and None or "relu" as the activation.

        x, y: `as_laid`, in the problem's layout; w: from `prepare_filter`; workspace: from `new_workspace`.
        """

    def run_finished(
        self, x: Any, w: Any, bias: Any, residual: Any, activation: Activation | None, y: Any, workspace: Any
    ) -> None:
        """`run` with any output step: y = activation(conv + bias + residual).

        residual: laid as y and apart from it, or None.
        """
        self.run(x, w, bias, None, y, workspace)
        self.add_and_activate(y, residual, activation)

    def add_and_activate(self, y: Any, residual: Any, activation: Activation | None) -> None:
        """y = activation(y + residual) in place, both `as_laid`."""
        epilogue.add_and_activate(y, residual, activation)

    def new_workspace(self) -> Any:
        """Scratch for one run at a time; made when the pool is empty, then reused."""
        return None

    def quick_call(self, problem: ConvProblem) -> QuickCall | None:
        """A function (x, w, y, bias, relu) for a plan to keep as its `_quick`: it runs, and returns y.

        w is from `prepare_filter`; where the rest is not laid as a problem's arrays, it returns None.
        """
        return None

    def convert(self, source: np.ndarray, target: np.ndarray) -> None:
        """target[...] = source, which are `as_laid`, one of them float32 and the other shorter."""
        with np.errstate(over="ignore"):  # what is too large becomes infinity without a word, as in kernels
            target[...] = source

    # --- a call ------------------------------------------------------------------------------

    def _call(self, x: Any, w: Any, bias: Any, out: Any, activation: ActivationLike, residual: Any) -> Any:
        """`__call__`, in these steps.

        1. Views of arrays of other libraries, and the answer as one of theirs.
        2. x and the filter, checked, as kernels read them.
        3. The output step: bias and ReLU, which all kernels do, or what else there is.
        4. An array to compute into: `out` itself where that is safe.
        5. The run with the output step, in a workspace of its own.
        6. A gradient of a flipped filter is flipped; a copy into `out`.
        """
        if type(x) is not np.ndarray:
            return self._call_on_views(x, w, bias, out, activation, residual)
        if x.shape != self._x_shape or x.dtype is not self._dtype or not is_laid(x.flags):
            x = as_laid(self._checked(self._x_name, x, self._x_shape))
        given = None  # the filter where it comes as it is, or dy
        if type(w) is not PreparedFilter:
            given = self._checked(self._w_name, w, self._w_shape)
            w = recent_filters.prepare_recent(self, given)
        elif w.key is not self._key:
            self._check_key(w)
            w.key = self._key  # the same, and told so at once in the next call
        given = w.read if given is None else given
        fused, rest = None, None
        if bias is not None or activation is not None or residual is not None:
            bias, fused, residual, rest = self._output_step(bias, activation, residual)
        target = self._new_target() if out is None else self._target(out, (x, given, bias, residual))
        try:
            workspace = self._free.pop()
        except IndexError:
            workspace = NONE_FREE
        kept = workspace is not NONE_FREE
        if not kept:  # outside of the handler: what this raises is one error, not two
            workspace, kept = self.new_workspace(), self._comes_again()
        try:
            if rest is None and residual is None:
                self.run(x, w.data, bias, fused, target, workspace)
            else:
                self.run_finished(x, w.data, bias, residual, rest, target, workspace)
        finally:
            if kept:
                self._give_back(workspace)
        if self._flips_result:
            target = np.ascontiguousarray(flipped(target))
        return target if out is None or target is out else copy_into(out, target)

    def _call_on_views(
        self, x: Any, w: Any, bias: Any, out: Any, activation: ActivationLike, residual: Any
    ) -> Any:
        """A call with x of another library, such as a tensor, through a NumPy view of it."""
        if out is None:
            return like(self._call(as_numpy("x", x), w, bias, None, activation, residual), x)
        target = writable_view("out", out)
        self._call(as_numpy("x", x), w, bias, target, activation, residual)
        return out

    def _in_own_form(self, w: np.ndarray, quantization: Quantization | None = None) -> PreparedFilter:
        if quantization is not None:
            raise ValueError(f"quantization must be None: {self.problem} has no integers")
        w = flipped(w) if self._flips and not self._flips_result else w
        w = w if self.takes_as_it_lies(w) else as_laid(w)
        read = w if self.problem.direction == "backward_weights" else None
        return PreparedFilter(self._key, self.prepare_filter(w), read)

    def takes_as_it_lies(self, w: np.ndarray) -> bool:
        """Whether `prepare_filter` reads a filter of any strides without a copy."""
        return self.any_order and lies_whole(w)


def flipped(w: Any) -> Any:
    """A filter or its gradient (K, C/groups, *kernel) with its kernel turned round; a view."""
    return w[(slice(None), slice(None), *(slice(None, None, -1),) * (w.ndim - 2))]


def result_dtype(problem: ConvProblem) -> np.dtype:
    """The NumPy dtype of what a run of a problem writes."""
    return numpy_dtype(problem.dtype_of(problem.arrays[2]))
