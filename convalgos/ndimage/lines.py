"""Filters made of correlations along axes: what all have in common, from any array to the line engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.arguments import Shape, shown
from convalgos.core.axis_windows import AxisWindow
from convalgos.cpu.filtering.line_crosses import SHORTEST, CrossPass, why_not_sum
from convalgos.cpu.filtering.line_endings import ADD, ADD_SQUARE, PLAIN, ROOT, SQUARE
from convalgos.cpu.filtering.line_filters import LineFilter, line_filter, run_passes
from convalgos.cpu.filtering.line_steps import LineStep
from convalgos.cpu.filtering.term_sums import adding_step
from convalgos.cpu.runtime.array_steps import ArrayStep, Y, array_steps_of, chained
from convalgos.ndimage import arguments
from convalgos.ndimage.known_calls import Write, WriteOf, filled_apart

Combine = Callable[[np.ndarray, Iterator[np.ndarray]], None]  # y is the first term, then what all make


class Weights(NamedTuple):
    """A correlation along one axis, in SciPy's terms."""

    axis: int
    weights: np.ndarray  # (taps,)
    mode: Any
    origin: int = 0


def correlate_axes(
    x: np.ndarray, steps: Sequence[Weights], output: Any, cval: Any,
    within: Callable[[Shape], Write | None] | None = None,
) -> np.ndarray:  # fmt: skip
    """x correlated along each axis in turn, rounded to the type of the output after each.

    Args:
        x: as `arguments.input_array` gives it.
        output: None, a dtype, or an array.
        within: what fills an array of a shape in another way, where it does.

    Raises:
        ValueError, RuntimeError: as SciPy does.
    """
    if any(step.weights.dtype.kind == "c" for step in steps) or x.dtype.kind == "c":
        return _complex(x, steps, output, cval)
    result = arguments.real_output(output, x)
    read = tuple(_read(step, cval) for step in steps)
    if not x.size:
        return result
    filtered = line_filter(x.dtype, result.dtype.newbyteorder("="), read)

    def write_of(shape: Shape) -> Write:
        return (within and within(shape)) or _write_of(filtered, shape)

    return arguments.fill(result, x, write_of)


def _complex(x: np.ndarray, steps: Sequence[Weights], output: Any, cval: Any) -> np.ndarray:
    """`correlate_axes` of complex numbers."""
    if not any(step.weights.dtype.kind == "c" for step in steps):

        def write_of(shape: Shape, of: np.dtype, into: np.dtype, beyond: float) -> Write:
            return _write_of(line_filter(of, into, tuple(_read(step, beyond) for step in steps)), shape)

        boundaries = [arguments.boundary_of(step.mode) for step in steps]
        if (y := arguments.filled_pairs(x, output, cval, boundaries, write_of)) is not None:
            return y
    (first, *others) = steps

    def part(x: np.ndarray, weights: np.ndarray, output: Any, cval: Any) -> np.ndarray:
        return correlate_axes(x, [first._replace(weights=weights), *others], output, cval)

    return arguments.by_parts(part, x, first.weights, output, cval)


def _write_of(filtered: LineFilter, shape: Shape) -> Write:
    """What correlates arrays of a shape."""
    passes = filtered.passes(shape)
    if len(passes) == 1 and filtered.y.kind != "b":
        return passes[0]
    return _Passes(passes, filtered.y, math.prod(shape))


class _Passes:
    """Passes one after the other, to so many elements of a type."""

    def __init__(self, passes: Sequence[Write], y: np.dtype, count: int):
        self._passes, self._y, self._count = passes, y, count

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does, for `array_steps.array_steps_of`."""
        found = chained([array_steps_of(each) for each in self._passes])
        if found is None or self._y != np.bool_:
            return found
        return [*found, adding_step(self._y, self._count, source=Y)]  # bytes become 0 or 1

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        run_passes(self._passes, x, y)
        if y.dtype == np.bool_:
            np.not_equal(y.view(np.uint8), 0, out=y)


class _Terms:
    """Passes from x to y, of which all but the first meet what y has.

    Args:
        count, dtype: of the elements of y.
        combine: as `Combination` has it, or None where passes do that.
    """

    def __init__(self, terms: Sequence[_Passes], count: int, dtype: np.dtype, combine: Combine | None):
        self._terms, self._count, self._dtype, self._combine = terms, count, dtype, combine

    @property
    def array_steps(self) -> list[ArrayStep] | None:
        """What a call does, for `array_steps.array_steps_of`."""
        first, *others = (term.array_steps for term in self._terms)
        if self._combine is not None:
            if self._dtype.kind == "f" or (self._combine is not sum_terms and self._dtype.kind != "b"):
                return None
            step = adding_step(self._dtype, self._count)  # of booleans, roots of squares are sums
            others = [chained([steps, [step]]) for steps in others]
        if first is None or None in others:
            return None
        return [*first, *(step for steps in others for step in steps or ())]

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        first, *others = self._terms
        first(x, y)
        if self._combine is None:
            for term in others:
                term(x, y)
        else:
            self._combine(y, (filled_apart(x, self._dtype, term) for term in others))


def _read(step: Weights, cval: Any) -> LineStep:
    """The step, of any size."""
    weights = arguments.real_numbers("weights", step.weights)
    if weights.ndim != 1 or not weights.size:
        told = f"no filter weights given: weights={shown(step.weights)} must be a sequence of numbers"
        raise arguments.InvalidArgument(told)
    low = len(weights) // 2 + arguments.checked_origin(step.origin, len(weights))
    window = AxisWindow(0, len(weights), low, arguments.boundary_of(step.mode))
    return LineStep(step.axis, tuple(weights.tolist()), window, arguments.real_number("cval", cval))


def sum_of_axes(x: np.ndarray, steps: Sequence[Weights], output: Any, cval: Any) -> np.ndarray | None:
    """The sum of x correlated along each axis, in one pass where that gives SciPy's rounding; None of complex
    numbers, of no elements and of no axes."""
    if x.dtype.kind == "c" or not x.size or not steps:
        return None
    result = arguments.output_array(output, x)
    given = [_read(step, cval) for step in steps]
    write_terms = _terms_of(x.dtype, result.dtype, [[step] for step in given], SUM)
    if write_terms is None:
        return None
    types, read = (x.dtype, result.dtype.newbyteorder("=")), sorted(given, key=lambda step: step.axis)
    if types[1].kind == "b" or why_not_sum(*types, read):
        return arguments.fill(result, x, write_terms)
    crossed, last = CrossPass(*types, read), read[-1].axis

    def write_of(shape: Shape) -> Write:
        return crossed.of(shape) if shape[last] >= SHORTEST else write_terms(shape)

    return arguments.fill(result, x, write_of)


def combined_terms(
    x: np.ndarray, terms: Sequence[Sequence[Weights]], output: Any, cval: Any, by: Combination
) -> np.ndarray | None:
    """What terms make together, each of them x correlated by steps in turn, of the type of the output.

    None of complex numbers, of no elements, and of a term without steps.
    """
    if x.dtype.kind == "c" or not x.size or not terms or not all(terms):
        return None
    result = arguments.output_array(output, x)
    write_of = _terms_of(x.dtype, result.dtype, [[_read(step, cval) for step in term] for term in terms], by)
    return None if write_of is None else arguments.fill(result, x, write_of)


def _terms_of(
    x: np.dtype, y: np.dtype, terms: Sequence[Sequence[LineStep]], by: Combination
) -> WriteOf | None:
    """What makes for a shape what `combined_terms` does; None of other types of y."""
    dtype = y.newbyteorder("=")
    if dtype.kind not in "fiub":
        return None
    endings: tuple[int, ...] = (PLAIN,) * len(terms)
    combine: Combine | None = by.combine
    first, further, last = by.endings
    if first == PLAIN and len(terms) == 1:
        combine = None
    elif dtype.kind == "f" and len(terms) > 1:  # terms meet y where they are summed
        endings, combine = (first, *(further,) * (len(terms) - 2), last), None
    filters = [line_filter(x, dtype, tuple(t), end) for t, end in zip(terms, endings, strict=True)]

    def write_of(shape: Shape) -> Write:
        count = math.prod(shape)
        return _Terms([_Passes(each.passes(shape), dtype, count) for each in filters], count, dtype, combine)

    return write_of


def sum_terms(y: np.ndarray, others: Iterable[np.ndarray]) -> None:
    """y and others, added up in y's type."""
    for other in others:
        y += other


def length_of_terms(y: np.ndarray, others: Iterable[np.ndarray]) -> None:
    """The root of the sum of squares of y and others, which are written, in y's type."""
    np.multiply(y, y, out=y)
    for other in others:
        np.multiply(other, other, out=other)
        y += other
    dtype = np.float32 if y.dtype == np.uint8 else None  # in float16, NumPy's choice, it takes longer
    np.sqrt(y, out=y, casting="unsafe", dtype=dtype)


class Combination(NamedTuple):
    """How terms make an array together.

    endings: of passes of floats, for the first term, for others, and for the last one.
    combine: makes it of y, which is the first term, and of the others.
    """

    endings: tuple[int, int, int]
    combine: Combine


SUM = Combination((PLAIN, ADD, ADD), sum_terms)
LENGTH = Combination((SQUARE, ADD_SQUARE, ROOT), length_of_terms)
