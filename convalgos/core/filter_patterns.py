"""What is known of a filter before its weights are: where its zeros lie, or how its kernels are made.

A problem's `pattern` is one word. "N:M" and "blockRxC" tell of zeros (`core.sparsity`). The others tell of
the kernel of each pair of channels, which algorithms may then compute by less work:

- "box": all of its weights are alike;
- "gaussian": a(k, c) exp(-sum over dimensions of d^2 / (2 sigma^2)), d from the middle, one sigma for each;
- "rank1" to "rank8": a sum of that many outer products of 1-D filters; in 3-D, no matrix into which it
  unfolds has a higher rank;
- "rank3~0.0004": the nearest sum of three outer products leaves out no more than that share of it, of the sum
  of its absolute weights and of the root of the sum of their squares. So no output is off by more than that
  share of sum |w| max |x|, and of noise the outputs are off by that share of their size. Whether so much may
  be left out is for the limits of a choice to say.

A box and a Gaussian are of rank 1. A filter is of a pattern where it differs by no more than the rounding of
its type; `pattern_within` finds the pattern of a given one.

Sources: De Lathauwer, De Moor, Vandewalle 2000, "A multilinear singular value decomposition", of unfolding;
Eckart, Young 1936, "The approximation of one matrix by another of lower rank".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from convalgos.core import arguments

Array = np.ndarray[Any, Any]
UNSTRUCTURED, BOX, GAUSSIAN, RANK = "unstructured", "box", "gaussian", "rank"
KERNEL_PATTERNS = (BOX, GAUSSIAN, RANK)  # kinds that tell how kernels are made
MOST_TERMS = 8  # outer products of a rank
SHARE = r"\d?\.?\d{1,9}(?:e-\d{1,2})?"
WORDS = rf"(\d{{1,4}}):(\d{{1,4}})|block(\d{{1,4}})x(\d{{1,4}})|rank([1-9])(?:~({SHARE}))?|box|gaussian"
MOST_LEFT_OUT = 0.4  # of an error allowed: by chance twice as much may show, and there is rounding
ROUNDINGS = 4  # units in the last place, by which a filter of a pattern may differ from it


class Pattern(NamedTuple):
    """A pattern's kind and numbers: of "N:M" and "blockRxC" both, of "rankR" the first, of others none.

    left_out: the share of a kernel that "rankR~E" leaves out.
    """

    kind: str
    first: int = 1
    second: int = 1
    left_out: float = 0.0

    @property
    def text(self) -> str:
        """Of a rank, in one spelling."""
        return f"{self.kind}{self.first}" + (f"~{self.left_out:g}" if self.left_out else "")


def pattern_of(text: Any) -> Pattern:
    """What a pattern is.

    Raises:
        ValueError: it is none, or its numbers do not go together.
    """
    if text == UNSTRUCTURED:
        return Pattern(UNSTRUCTURED)
    found = re.fullmatch(WORDS, str(text))
    *counts, share = found.groups() if found else ("0", "1")
    numbers, left_out = [int(n) for n in counts if n], float(share or 0)
    kind = "N:M" if ":" in str(text) else re.split(r"\d", str(text))[0]
    if (kind == "N:M" and numbers[0] > numbers[-1]) or (kind == RANK and numbers[0] > MOST_TERMS):
        numbers = [0]
    if share is not None and not 0 < left_out < 1:
        numbers = [0]
    if min(numbers, default=1) < 1:
        raise ValueError(
            f"pattern={arguments.shown(text)} must be 'unstructured', 'N:M' with N <= M, such as '2:4', "
            f"'blockRxC', such as 'block16x1', 'box', 'gaussian', or 'rank1' to 'rank{MOST_TERMS}', or one "
            "of these that leaves out a share, such as 'rank2~0.001'"
        )
    return Pattern(kind, *numbers)._replace(left_out=left_out)


def examples(kinds: Sequence[str]) -> list[str]:
    """A pattern of each of `KERNEL_PATTERNS` that are given."""
    return ["rank1" if kind == RANK else kind for kind in kinds]


def terms_of(pattern: str) -> int | None:
    """The most outer products that kernels of a pattern are made of; None of those that are not."""
    kind, terms, *_ = pattern_of(pattern)
    return terms if kind in KERNEL_PATTERNS else None


def left_out_of(pattern: str) -> float:
    """The share of kernels that what is computed by their pattern leaves out."""
    return pattern_of(pattern).left_out if "~" in pattern else 0.0


def pattern_of_phases(pattern: str, strides: Sequence[int]) -> str:
    """The pattern of kernels of which every stride-th element is left, in every dimension."""
    kind = pattern_of(pattern).kind
    if kind == GAUSSIAN and max(strides) > 1:  # which has no element at its middle, or next to it
        return "rank1"
    if left_out_of(pattern) and max(strides) > 1:  # which may be a larger share of a phase
        return UNSTRUCTURED
    return pattern if kind in KERNEL_PATTERNS else UNSTRUCTURED


# --- filters of a pattern, at random ----------------------------------------------------------


def random_kernels(shape: Sequence[int], pattern: str, rng: np.random.Generator, whole: bool) -> Array:
    """A random filter (K, C/groups, *kernel) of "box", "gaussian" or "rankR", float64.

    whole: small integers, except for a Gaussian; else of about the size of standard normal numbers.
    """
    kind, terms, _, left_out = pattern_of(pattern)
    pairs, kernel = tuple(shape[:2]), tuple(shape[2:])

    def draw(*size: int) -> Array:
        return rng.choice((-2.0, -1.0, 1.0, 2.0), size) if whole else rng.standard_normal(size)

    if kind == BOX:
        return np.broadcast_to(draw(*pairs, *(1,) * len(kernel)), shape).copy()
    if kind == GAUSSIAN:
        sigmas = rng.uniform(0.1, 0.4, (*pairs, len(kernel))) * kernel + 0.3
        return sampled_gaussian(kernel, draw(*pairs), sigmas)
    total = np.zeros(shape)
    for _ in range(terms):
        product = np.ones(shape)
        for axis, size in enumerate(kernel, 2):
            product *= laid_along(draw(*pairs, size), axis, len(shape))
        total += product
    if left_out:
        rest = rng.standard_normal(shape)
        total += rest * (left_out / 2 / share_of(rest, total))[(..., *(None,) * len(kernel))]
    return total


def keeps_integers(pattern: str) -> bool:
    """Whether what is computed by the pattern of a filter of integers is exact."""
    return pattern_of(pattern).kind != GAUSSIAN and (terms_of(pattern) or 1) == 1 and not left_out_of(pattern)


# --- the pattern of a filter ------------------------------------------------------------------


def pattern_within(w: Array, max_rel_error: float = 0.0) -> str:
    """The pattern of a filter (K, C/groups, *kernel) that leaves the least to compute: "box", "gaussian",
    "rankR" or "rankR~E", or "unstructured" where it has none of these, or no outer products are fewer than
    its rows.

    Args:
        max_rel_error: of results by the pattern.
    """
    if w.ndim < 3 or not w.size:
        return UNSTRUCTURED
    if box_weights(w) is not None:
        return BOX
    if gaussian_sigmas(w) is not None:
        return GAUSSIAN
    sizes = [size for size in w.shape[2:] if size > 1]
    if len(sizes) < 2:
        return UNSTRUCTURED
    most = min(MOST_TERMS, min(sizes) - 1)
    terms = kernel_rank(w)
    found = Pattern(RANK, terms) if terms <= most else Pattern(UNSTRUCTURED)
    if max_rel_error and terms > 1:
        shares = [_rounded_up(share) for share in shares_left_out(w, min(terms - 1, most))]
        fewer = next((i for i, share in enumerate(shares) if share <= MOST_LEFT_OUT * max_rel_error), None)
        found = found if fewer is None else Pattern(RANK, fewer + 1, left_out=shares[fewer])
    return found.text if found.kind == RANK else UNSTRUCTURED


def box_weights(w: Array) -> Array | None:
    """(K, C/groups): the weight of each kernel, all of whose weights are alike; None where one's are not."""
    first = w.reshape(*w.shape[:2], -1)[..., 0]
    return first if bool((w == laid_along(first, 1, w.ndim)).all()) else None


def gaussian_sigmas(w: Array) -> tuple[Array, Array] | None:
    """The (K, C/groups) weights in the middle and (K, C/groups, dimensions) sigmas of sampled Gaussians, in
    elements; None where a kernel is none. A middle between two elements has the weight that would lie there.

    The logarithms of the weights on the line through the largest one are fitted, weighted by their squares.
    """
    wide = w.astype(np.float64)
    kernel = wide.shape[2:]
    middle = wide[(..., *(size // 2 for size in kernel))]  # (K, C/groups)
    sigmas = np.empty((*wide.shape[:2], len(kernel)))
    peak = middle.copy()
    for axis, size in enumerate(kernel):
        at = tuple(slice(None) if i == axis else n // 2 for i, n in enumerate(kernel))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            falls = -np.log(wide[(..., *at)] / middle[..., None])  # (K, C/groups, size)
            squares = (np.arange(size) - (size - 1) / 2) ** 2
            squares = squares - squares[size // 2]
            weights = np.where(np.isfinite(falls), np.exp(-2 * falls), 0.0)
            falls = np.where(weights > 0, falls, 0.0)
            slope = (weights * falls * squares).sum(-1) / (weights * squares**2).sum(-1)  # 1 / (2 sigma^2)
            slope = np.where(np.isfinite(slope), np.maximum(slope, 0), 0.0)
            sigmas[..., axis] = np.sqrt(0.5 / slope)
        peak *= np.exp(slope * (0.0 if size % 2 else 0.25))
    near = np.abs(sampled_gaussian(kernel, peak, sigmas) - wide) <= _rounding(w) * np.abs(
        laid_along(peak, 1, w.ndim)
    )
    return (peak, sigmas) if bool(near.all()) else None


def kernel_rank(w: Array) -> int:
    """The highest rank of the matrices into which kernels unfold, by singular values above their rounding."""
    allowed, highest = _rounding(w), 1
    for axis in _unfoldings(w):
        values = np.linalg.svd(unfolded(w, axis), compute_uv=False)  # (K, C/groups, most)
        beyond = np.sqrt(np.cumsum(values[..., ::-1] ** 2, axis=-1))[..., ::-1]  # left out from each on
        counted = (beyond > allowed * beyond[..., :1]).sum(-1)
        highest = max(highest, int(counted.max(initial=1)))
    return highest


def shares_left_out(w: Array, most: int) -> list[float]:
    """The largest shares of a kernel that its nearest sums of 1 to `most` outer products leave out."""
    largest = [0.0] * most
    for axis in _unfoldings(w):
        rest = matrices = unfolded(w, axis)
        # (K, C/groups, rows, n), (K, C/groups, n), (K, C/groups, n, columns)
        u, values, v = np.linalg.svd(matrices, full_matrices=False)
        for i in range(min(most, values.shape[-1])):
            term = u[..., i, None] * values[..., None, i, None] * v[..., i, None, :]  # (..., rows, columns)
            rest = rest - term
            largest[i] = max(largest[i], float(share_of(rest, matrices).max()))
    return largest


def share_of(rest: Array, of: Array) -> Array:
    """(K, C/groups): how large one kernel is beside another, by absolute weights and by their squares."""
    shares = []
    for norm in (1, 2):
        part, whole = (np.linalg.norm(a.reshape(*a.shape[:2], -1), norm, axis=-1) for a in (rest, of))
        shares.append(np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0))
    larger: Array = np.maximum(*shares)
    return larger


def _rounded_up(share: float) -> float:
    """To two digits, so that alike filters are of one pattern."""
    if share == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return float(f"{math.ceil(share / unit - 1e-9) * unit:.2g}")


def _unfoldings(w: Array) -> range:
    """Axes along which kernels unfold into different matrices: one has the rank of its transpose."""
    return range(2, w.ndim - (w.ndim == 4))


def unfolded(w: Array, axis: int) -> Array:
    """(K, C/groups, size of the axis, elements of the others) of a filter, float64."""
    return np.moveaxis(w.astype(np.float64), axis, 2).reshape(*w.shape[:2], w.shape[axis], -1)


def sampled_gaussian(kernel: Sequence[int], peak: Array, sigmas: Array) -> Array:
    """(K, C/groups, *kernel) of (K, C/groups) weights in the middle and (K, C/groups, dimensions) sigmas."""
    w = laid_along(peak, 1, 2 + len(kernel))
    for axis, size in enumerate(kernel):
        d = np.arange(size) - (size - 1) / 2
        with np.errstate(divide="ignore", over="ignore"):
            line = np.exp(-0.5 * (d / sigmas[..., axis, None]) ** 2)
        w = w * laid_along(line, axis + 2, 2 + len(kernel))
    return w


def laid_along(lines: Array, axis: int, ndim: int) -> Array:
    """(K, C/groups) or (K, C/groups, size) with dimensions of 1 so that the last of them is `axis`."""
    shape = [*lines.shape[:2], *(1,) * (ndim - 2)]
    if lines.ndim == 3:
        shape[axis] = lines.shape[2]
    return lines.reshape(shape)


def _rounding(w: Array) -> float:
    return ROUNDINGS * float(np.finfo(w.dtype).eps) if w.dtype.kind == "f" else ROUNDINGS * math.ulp(1.0)
