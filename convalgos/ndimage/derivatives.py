"""Derivatives of images: edges along one axis, and sums of derivatives along several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from convalgos.core.array_kinds import any_kind
from convalgos.core.laid_arrays import as_laid
from convalgos.ndimage import arguments
from convalgos.ndimage.correlations import correlate1d
from convalgos.ndimage.known_calls import known_calls
from convalgos.ndimage.lines import Weights, correlate_axes, length_of_terms, sum_of_axes, sum_terms

SECOND = np.array((1, -2, 1))  # differences


@known_calls
@any_kind("cupyx.scipy.ndimage")
def sobel(
    input: Any,
    axis: int = -1,
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
) -> Any:
    """The Sobel filter of one axis, as `scipy.ndimage.sobel`: differences along it, smoothed along all
    others.

    Args:
        input, output, cval: as `correlate1d` has them.
        axis: along which differences are taken, by the weights -1 0 1; those of all others are 1 2 1.
        mode: as `correlate1d` has it, one for all axes or one for each.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.sobel(np.eye(4))[1]
        array([ 1.,  0., -2., -1.])
    """
    return _edges(input, axis, output, mode, cval, (1, 2, 1))


@known_calls
@any_kind("cupyx.scipy.ndimage")
def prewitt(
    input: Any,
    axis: int = -1,
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
) -> Any:
    """The Prewitt filter of one axis, as `scipy.ndimage.prewitt`: `sobel`, smoothed by the weights 1 1 1.
    others.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.prewitt(np.eye(4))[1]
        array([ 0.,  0., -1., -1.])
    """
    return _edges(input, axis, output, mode, cval, (1, 1, 1))


def _edges(
    input: Any, axis: int, output: Any, mode: Any, cval: complex, smooth: tuple[int, ...]
) -> np.ndarray:
    x = arguments.input_array("input", input)
    along = arguments.one_axis(axis, x.ndim)
    modes = arguments.per_axis("mode", mode, x.ndim)
    others = [i for i in range(x.ndim) if i != along]
    steps = [Weights(along, np.array((-1, 0, 1)), modes[along])]
    steps += [Weights(i, np.array(smooth), modes[i]) for i in others]
    if x.dtype.kind == "c":  # whose dtype SciPy does not promote here
        output = arguments.output_array(output, x)
    return correlate_axes(x, steps, output, cval)


@known_calls
@any_kind("cupyx.scipy.ndimage")
def laplace(
    input: Any,
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    *,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """The sum of second differences along axes, as `scipy.ndimage.laplace` has it.

    Args:
        input, output, cval: as `correlate1d` has them.
        mode: as there, one for all axes or one for each.
        axes: those along which differences are taken, by the weights 1 -2 1; None for all.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.laplace(np.eye(3))
        array([[-2.,  2.,  0.],
               [ 2., -4.,  2.],
               [ 0.,  2., -2.]])
    """

    x = arguments.input_array("input", input)
    along = arguments.several_axes(axes, x.ndim)
    modes = arguments.per_axis("mode", mode, len(along))
    steps = [Weights(axis, SECOND, beyond) for axis, beyond in zip(along, modes, strict=True)]
    if (result := sum_of_axes(x, steps, output, cval)) is not None:
        return result

    def second(x: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
        return correlate1d(x, SECOND, axis, output, mode, cval)

    return generic_laplace(input, second, output, mode, cval, axes=axes)


@any_kind("cupyx.scipy.ndimage")
def generic_laplace(
    input: Any,
    derivative2: Callable[..., Any],
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    extra_arguments: Sequence[Any] = (),
    extra_keywords: dict[str, Any] | None = None,
    *,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """The sum of second derivatives that the caller's function finds, as `scipy.ndimage.generic_laplace`.

    Args:
        input, output, mode, cval, axes: as `laplace` has them.
        derivative2: called as derivative2(input, axis, output, mode, cval, *extra_arguments,
            **extra_keywords), for the first axis with an array to be filled as output, and for the others
            with its dtype.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> def second(x, axis, output, mode, cval):
        ...     return ca.ndimage.correlate1d(x, [1, -2, 1], axis, output, mode, cval)
        >>> bool((ca.ndimage.generic_laplace(np.eye(3), second) == ca.ndimage.laplace(np.eye(3))).all())
        True
    """
    results = _along_axes(input, derivative2, output, mode, cval, extra_arguments, extra_keywords, axes)
    total = next(results)
    sum_terms(total, results)
    return total


@any_kind("cupyx.scipy.ndimage")
def generic_gradient_magnitude(
    input: Any,
    derivative: Callable[..., Any],
    output: Any = None,
    mode: str | Sequence[str] = "reflect",
    cval: complex = 0.0,
    extra_arguments: Sequence[Any] = (),
    extra_keywords: dict[str, Any] | None = None,
    *,
    axes: int | Sequence[int] | None = None,
) -> Any:
    """The root of the sum of squared derivatives, as `scipy.ndimage.generic_gradient_magnitude` has it.

    Arguments are those of `generic_laplace`, with a function of first derivatives.

    Example:
        >>> import numpy as np, convalgos as ca
        >>> ca.ndimage.generic_gradient_magnitude(np.eye(3), ca.ndimage.sobel)[1].round(3)
        array([3.162, 0.   , 3.162])
    """
    results = _along_axes(input, derivative, output, mode, cval, extra_arguments, extra_keywords, axes)
    total = next(results)
    if len(arguments.several_axes(axes, np.ndim(input))):
        length_of_terms(total, results)
    return total


def _along_axes(
    input: Any, derivative: Callable[..., Any], output: Any, mode: Any, cval: Any, extra: Sequence[Any],
    keywords: dict[str, Any] | None, axes: Any,
) -> Iterator[np.ndarray]:  # fmt: skip
    """The output, filled with the derivative along the first axis, and then arrays of those along the others.

    Without axes, the output is the input. Where both share memory, derivatives are those of the input as it
    was.
    """
    x = arguments.input_array("input", input)
    result = arguments.output_array(output, x)
    along = arguments.several_axes(axes, x.ndim)
    modes = arguments.per_axis("mode", mode, len(along))
    if not along:
        result[...] = x
        yield result
    elif np.may_share_memory(result, x):
        x = x.copy()
    x = as_laid(x)  # once for all axes
    for number, (axis, beyond) in enumerate(zip(along, modes, strict=True)):
        into = result.dtype if number else result
        found = derivative(x, axis, into, beyond, cval, *extra, **(keywords or {}))
        yield found if number else result
