"""`plan`: how to split a convolution over workers, by what computing and moving data are predicted to take.

Computing is predicted by the cost models of the library, for the block that a worker has. What is moved is
counted in bytes, and takes the network's latency and bandwidth: halos, maps that several filters' workers
read, and sums over channels, which are added in a tree. The chunks of x are taken to lie where they are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from convalgos.core import arguments, setting
from convalgos.core.problem import ConvProblem, Shape
from convalgos.dask.engine import DaskArray
from convalgos.dask.maps import Order, as_dask
from convalgos.select import choose
from convalgos.select.constraints import Constraints

SHOWN = 8  # candidates that are told


@dataclass(frozen=True)
class Interconnect:
    """What connects workers.

    Args:
        bandwidth: bytes/s into a worker; 10 Gbit/s by default.
        latency: seconds of a message.
        task: seconds that the scheduler takes for a task, one after the other.
    """

    bandwidth: float = 1.25e9
    latency: float = 1e-4
    task: float = 2e-4

    def seconds(self, nbytes: float, messages: int = 1) -> float:
        """To receive so much."""
        return messages * self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Split:
    """One way to split: parts of the batch, of each spatial dimension, of filters and of channels."""

    images: int
    space: Shape
    filters: int
    channels: int
    compute_s: float = 0.0  # of the largest block
    exchange_s: float = 0.0  # until a worker has what it reads, and sums are added
    schedule_s: float = 0.0  # of all tasks

    @property
    def blocks(self) -> int:
        """Tasks that compute."""
        return self.images * math.prod(self.space) * self.filters * self.channels

    @property
    def seconds(self) -> float:
        """In all."""
        return max(self.compute_s + self.exchange_s, self.schedule_s)

    def __str__(self) -> str:
        kinds = {"images": self.images, "filters": self.filters, "channels": self.channels}
        told = [f"{n} of {name}" for name, n in kinds.items() if n > 1]
        if math.prod(self.space) > 1:
            told.append(f"{'x'.join(map(str, self.space))} of space")
        return " x ".join(told) or "whole"


@dataclass(frozen=True)
class SplitPlan:
    """The splits that were compared, fastest first."""

    problem: ConvProblem
    workers: int
    network: Interconnect
    whole_s: float  # predicted, on one worker
    candidates: tuple[Split, ...]

    @property
    def best(self) -> Split:
        """The fastest."""
        return self.candidates[0]

    @property
    def efficiency(self) -> float:
        """Time of one worker / workers / time of all of them."""
        return self.whole_s / self.workers / self.best.seconds if self.best.seconds else 1.0

    def chunks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes of the chunks of x, in its layout, and of w, as `rechunk` takes them."""
        p, best = self.problem, self.best
        space = (-(-n // parts) for n, parts in zip(p.spatial, best.space, strict=True))
        channels = -(-p.C // best.channels) if p.groups == 1 else p.C
        order = Order(p.layout, p.ndim)
        x = order.laid((-(-p.N // best.images), channels, *space))
        return x, (-(-p.K // best.filters), p.w_shape[1], *p.kernel)

    def cut(self, x: Any, w: Any) -> tuple[DaskArray, DaskArray]:
        """Both arrays in these chunks, for `conv`."""
        of_x, of_w = self.chunks()
        return as_dask("x", x).rechunk(of_x), as_dask("w", w, whole=True).rechunk(of_w)

    def explain(self) -> str:
        """Each candidate with its seconds."""
        lines = [
            f"{self.problem} on {self.workers} workers, {self.network.bandwidth / 1e9:.3g} GB/s and "
            f"{self.network.latency * 1e6:.3g} us between them",
            f"  {'split':32s} {'compute':>11s} {'exchange':>11s} {'schedule':>11s} {'in all':>11s}  "
            "efficiency",
        ]
        for mark, split in zip(["->", *["  "] * SHOWN], self.candidates, strict=False):
            times = split.compute_s, split.exchange_s, split.schedule_s, split.seconds
            told = " ".join(f"{s * 1e3:8.3f} ms" for s in times)
            share = self.whole_s / self.workers / split.seconds if split.seconds else 1.0
            lines.append(f"{mark}{split!s:32s} {told}  {share:.0%}")
        if len(self.candidates) > SHOWN:
            lines.append(f"  and {len(self.candidates) - SHOWN} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()


def plan(
    problem: ConvProblem, workers: int = 1, network: Interconnect | None = None, *, threads: int = 1
) -> SplitPlan:
    """Choose how to split a convolution over workers.

    Args:
        problem: of the whole, forward.
        workers: how many there are, each of which gets a block or none.
        network: what connects them; 10 Gbit/s by default.
        threads: of a worker; all are taken to be machines like this one.

    Example:
        >>> import convalgos as ca, convalgos.dask as cd
        >>> found = cd.plan(ca.ConvProblem.parse("n64 c64 h56 w56 k64 r3 s3 p1"), workers=4)
        >>> str(found.best), found.chunks()[0]
        ('4 of images', (16, 64, 56, 56))
    """
    if not isinstance(problem, ConvProblem) or problem.direction != "forward":
        raise ValueError(f"problem={arguments.shown(problem)} must be a ConvProblem of the forward pass")
    workers = arguments.integer("workers", workers, 1, 1 << 20)
    network = network or Interconnect()
    with setting.threads_of_calls(arguments.integer("threads", threads, 1)):
        whole = _compute_seconds(problem, Split(1, (1,) * problem.ndim, 1, 1))
        found = [_timed(problem, split, network) for split in _splits(problem, workers)]
    found.sort(key=lambda split: (split.seconds, split.blocks))
    return SplitPlan(problem, workers, network, whole, tuple(found))


def _splits(p: ConvProblem, workers: int) -> list[Split]:
    """Those by one or two kinds of parts, on all workers, on shares of them, and on powers of two."""
    most = {"images": p.N, "space": math.prod(p.spatial_out), "filters": p.gemm_n, "channels": p.C}
    if p.groups > 1:
        most["filters"], most["channels"] = p.groups, 1
    counts = {*_divisors(workers), *(1 << i for i in range(workers.bit_length()))}
    found = set()
    for first, second in ((n, count // n) for count in counts for n in _divisors(count)):
        for one, other in product(most, most):
            if first > most[one] or second > most[other] or (one == other and first > 1):
                continue
            parts = dict.fromkeys(most, 1)
            parts[other] = second
            parts[one] *= first
            space = _boxes(p.spatial_out, parts.pop("space"))
            if space is not None:
                found.add(Split(space=space, **parts))
    return list(found)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _boxes(spatial: Shape, parts: int) -> Shape | None:
    """Parts of each dimension, so many in all, whose halos are least; None where there are none.

    Of equals the one that cuts outer dimensions: its blocks lie together in memory.
    """
    if len(spatial) == 1:
        return (parts,) if parts <= spatial[0] else None
    found = []
    for n in _divisors(parts):
        if n <= spatial[0] and (rest := _boxes(spatial[1:], parts // n)) is not None:
            found.append((n, *rest))

    def halo(box: Shape) -> float:
        return sum(n / s for n, s in zip(box, spatial, strict=True))

    return min(found, key=lambda box: (halo(box), [-n for n in box]), default=None)


def _block(p: ConvProblem, split: Split) -> ConvProblem:
    """The problem of the largest block, its halo included."""
    sizes = [-(-n // parts) for n, parts in zip(p.spatial_out, split.space, strict=True)]
    x = [(n - 1) * s + reach for n, s, reach in zip(sizes, p.stride, p.kernel_extent, strict=True)]
    groups = -(-p.groups // split.filters) if p.groups > 1 else 1
    filters = groups * p.gemm_n if p.groups > 1 else -(-p.K // split.filters)
    channels = groups * p.w_shape[1] if p.groups > 1 else -(-p.C // split.channels)
    return p.replace(
        x_shape=(-(-p.N // split.images), channels, *x), w_shape=(filters, channels // groups, *p.kernel),
        groups=groups, padding=((0, 0),) * p.ndim,
    )  # fmt: skip


def _compute_seconds(p: ConvProblem, split: Split) -> float:
    return _predicted(p if split.blocks == 1 else _block(p, split), setting.thread_count())


@cache
def _predicted(block: ConvProblem, threads: int) -> float:
    """Seconds of a block on so many threads, those of the caller."""
    if block.is_empty:
        return 0.0
    return choose.close_candidates(block, "cpu", Constraints(weights_constant=True), 1.0)[0].estimate_s


def _timed(p: ConvProblem, split: Split, network: Interconnect) -> Split:
    """A split with its seconds."""
    block = _block(p, split)
    exchange = 0.0
    for axis, parts in enumerate(split.space):
        if parts > 1:
            face = block.x_bytes / max(1, block.spatial[axis])
            exchange += network.seconds(face * (p.kernel_extent[axis] - 1), 2)
    if split.filters > 1 and p.groups == 1:
        exchange += network.seconds(block.x_bytes * (1 - 1 / split.filters))
    if split.blocks > 1:
        exchange += network.seconds(block.w_bytes)
    if split.channels > 1:
        levels = math.ceil(math.log2(split.channels))
        exchange += levels * network.seconds(block.y_bytes)
    tasks = split.blocks * (1 + 2 * sum(parts > 1 for parts in split.space) + (split.channels > 1))
    return Split(
        split.images, split.space, split.filters, split.channels, _compute_seconds(p, split), exchange,
        tasks * network.task,
    )  # fmt: skip
