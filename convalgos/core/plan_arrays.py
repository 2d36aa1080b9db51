"""The arrays of a plan's calls: what shapes and dtypes they have, and where a result is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.core import epilogue
from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import shown
from convalgos.core.arrays import as_numpy, same_dtype
from convalgos.core.bound_run import BoundRun, check_bound, share_elements
from convalgos.core.element_types import OF_ML_DTYPES, ml_dtype
from convalgos.core.epilogue import ActivationLike
from convalgos.core.errors import read_only
from convalgos.core.laid_arrays import as_laid, is_laid
from convalgos.core.plan_sizes import PlanSizes
from convalgos.core.problem import ConvProblem
from convalgos.core.sparsity import dense_filter, is_sparse_matrix


class PlanArrays(PlanSizes):
    """Checks of the arrays of a problem, and new ones for its results."""

    strided_batch = False  # whether the kernels take x and y whose images lie apart, in a bound run
    rows_apart = False  # whether they take x and y whose rows do, as parts of larger maps, in a bound run

    def __init__(self, problem: ConvProblem):
        self._x_name, self._w_name, result = problem.arrays
        self._dtypes = _dtypes_of(
            problem.sums_integers, *[(name, problem.dtype_of(name)) for name in problem.arrays]
        )
        self._dtype, self._y_dtype = self._dtypes[self._x_name], self._dtypes[result]
        self._set_sizes(problem)
        # The caller's filter lies flipped: so it is read, and so its gradient is written.
        self._flips = problem.mode == "convolution"
        self._flips_result = self._flips and problem.direction == "backward_weights"

    def _output_step(
        self, bias: Any, activation: ActivationLike, residual: Any
    ) -> tuple[np.ndarray | None, str | None, np.ndarray | None, epilogue.Activation | None]:
        """(bias, activation of the kernels, residual, activation that is left), checked."""
        self._check_output_step(bias, activation, residual)
        wanted = epilogue.activation_of(activation)
        if bias is not None:
            bias = as_laid(self._checked("bias", bias, (self.problem.bias_size,)))
        if residual is not None:
            residual = as_laid(self._checked("residual", residual, self._y_shape))
        if residual is None and wanted == epilogue.RELU:
            return bias, "relu", None, None
        return bias, None, residual, wanted

    def _check_output_step(self, bias: Any, activation: Any, residual: Any) -> None:
        if self.problem.direction != "backward_weights":
            return
        if any(given is not None for given in (bias, activation, residual)):
            given = f"activation={shown(activation)}"
            for name, array in (("residual", residual), ("bias", bias)):
                given = given if array is None else f"{name}={type(array).__name__}"
            raise ValueError(f"{given} must be None: the gradient of a filter has no output step")

    def _checked(self, name: str, array: Any, shape: tuple[int, ...]) -> Any:
        """A NumPy view of an argument, of this shape and the problem's dtype for it."""
        if type(array) is np.ndarray and array.shape == shape and array.dtype is self._dtypes[name]:
            return array
        array = as_numpy(name, dense_filter(array, shape) if is_sparse_matrix(array) else array)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the problem {self.problem} has {shape}")
        if not same_dtype(array.dtype, dtype := self._dtypes[name]):
            raise TypeError(f"{name} has dtype {array.dtype}, but the problem has {dtype}")
        return array

    def bound_again(
        self, settings: Any, x: Sequence[int], y: Sequence[int], scratch: int, told: bool
    ) -> BoundRun | None:
        """A run as `bind` gave it for other sizes of the maps; None where it is bound as the first was.

        Args:
            settings: of that run.
            x, y: addresses of its arrays, x and the residual, and y, which the caller keeps alive.
            told: whether the run is told where they lie.
        """
        return None

    def _check_bound(self, x: Any, y: Any, residual: Any) -> None:
        """Raise where the arrays of a bound run are not as it takes them."""
        strided, rows = self.strided_batch, self.rows_apart
        check_bound(self._x_name, x, self._x_shape, self._dtype, strided, rows_apart=rows)
        check_bound("y", y, self._y_shape, self._y_dtype, strided, written=True, rows_apart=rows)
        if residual is not None:
            check_bound("residual", residual, self._y_shape, self._y_dtype, strided)
        if share_elements(x, y):
            raise ValueError("y must not overlap x")
        if residual is not None and share_elements(residual, y):
            same = residual.ctypes.data == y.ctypes.data and residual.strides == y.strides
            if not same:
                raise ValueError("residual must be y itself, or apart from it")

    def _target(self, out: Any, read: tuple[Any, ...]) -> Any:
        """The array to compute into: `out` itself where that is safe."""
        if type(out) is not np.ndarray or out.shape != self._y_shape or out.dtype is not self._y_dtype:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"out={type(out).__name__} must be an array of x's kind")
            self._checked("out", out, self._y_shape)
        flags = out.flags
        if not flags.writeable:
            raise read_only("out")
        if self._flips_result or out.dtype != self._y_dtype or not is_laid(flags):
            return self._new_target()
        for array in read:
            if array is not None and np.may_share_memory(out, array):
                return self._new_target()
        return out

    def _new_target(self) -> np.ndarray:
        """An uninitialised y; a large one starts on a cache line, which stores of whole vectors like."""
        if self._aligns:
            return aligned_empty(self._y_count, self._y_dtype).reshape(self._y_shape)
        return np.empty(self._y_shape, self._y_dtype)


@cache
def _dtypes_of(sums_integers: bool, *names: tuple[str, str]) -> dict[str, np.dtype]:
    """The dtypes of all arrays of a call, of these names and types of x, the filter and the result."""
    found = {name: numpy_dtype(dtype) for name, dtype in names}
    result = found[names[-1][0]]
    return found | {
        "bias": numpy_dtype("int32") if sums_integers else result,
        "residual": result,
        "out": result,
    }


@cache
def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a problem's dtype; NumPy has not all, and binary values are int8."""
    if name in OF_ML_DTYPES:
        return ml_dtype(name)
    return np.dtype("int8" if name == "binary" else name)
