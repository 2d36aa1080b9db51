"""The targets of the GPU's algorithms, and what was reached: geometric means over the timed layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.results import geometric_mean
from convalgos.tools.gpu_check.baselines import Baseline
from convalgos.tools.gpu_check.cases import is_dense, is_depthwise, is_winograd
from convalgos.tools.gpu_check.steps import CUDNN
from convalgos.tools.gpu_check.timing import Ceiling, HostTime, LayerTimes, Timed

OWN_CALL, CUDNN_CALL, CAPTURED_CALL = 12e-6, 15e-6, 3e-6  # seconds of the host
FIRST, LAST = "channels_first", "channels_last"
GRADIENTS = {"backward_data": "dx", "backward_weights": "dw"}  # as they are called in the report


@dataclass(frozen=True)
class Reached:
    """A target, and what was reached over so many layers; `least` is the layer that is furthest behind.

    `beside` tells how many of the layers stand beside what.
    """

    what: str
    target: float
    reached: float | None
    count: int
    least: str = ""
    at_most: bool = False  # smaller is better
    unit: str = "x"
    beside: str = ""

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached <= self.target if self.at_most else self.reached >= self.target


Of = Callable[[LayerTimes], "Timed | None"]


def picked(layer: LayerTimes) -> Timed | None:
    """What the selector takes without having measured."""
    return layer.picked


def ours(layer: LayerTimes) -> Timed | None:
    return layer.best(lambda row: row.ours)


def once_measured(layer: LayerTimes) -> Timed | None:
    """What the selector takes once it has measured."""
    return layer.best()


def kind_of(baseline: Baseline) -> str:
    """Without the number of cuDNN's plan."""
    return "cuDNN" if baseline.name.startswith(CUDNN) else baseline.name


def winograd(layer: LayerTimes) -> Timed | None:
    return layer.best(lambda row: row.algorithm.startswith("gpu.winograd"))


class Goal(NamedTuple):
    """A target for the ratio of a baseline's time to ours, over the layers that are wanted."""

    what: str
    target: float
    who: Of
    wanted: Callable[[ConvProblem], bool]
    layout: str
    type: str
    direction: str = "forward"

    def reached(self, layers: Iterable[LayerTimes]) -> Reached:
        ratios, names = {}, Counter[str]()
        for layer in layers:
            mine, peer = self.who(layer), layer.baseline
            if self._is_about(layer) and mine and peer:
                ratios[layer.case.title] = peer.seconds / mine.median_s
                names[kind_of(peer)] += 1
        beside = ", ".join(f"{name} {count}" for name, count in names.items())
        return replace(_mean(self.what, self.target, ratios), beside=beside)

    def _is_about(self, layer: LayerTimes) -> bool:
        problem, type_ = layer.case.problem, layer.case.type
        told = (problem.direction, problem.layout, type_)
        return told == (self.direction, self.layout, self.type) and self.wanted(problem)


def targets_reached(
    layers: Sequence[LayerTimes],
    signals: Sequence[LayerTimes],
    calls: Sequence[HostTime],
    ceilings: Sequence[Ceiling],
) -> list[Reached]:
    """All of them, whether or not anything was timed for them."""
    return [
        *(goal.reached(layers) for goal in _forward_goals()),
        _copy_share(layers, ceilings),
        *(goal.reached(layers) for goal in _gradient_goals()),
        *_long_signals(signals),
        *_host_times(calls),
    ]


def _forward_goals() -> Iterator[Goal]:
    strict = "strict float32, channels first:"
    yield Goal(f"{strict} the pick", 1.6, picked, lambda p: True, FIRST, "float32")
    yield Goal(f"{strict} once measured", 1.6, once_measured, lambda p: True, FIRST, "float32")
    what = "Winograd, 3x3 with C, K >= 64 and N <= 8"
    yield Goal(what, 2.2, winograd, is_winograd, FIRST, "float32")
    for name in ("float32", "float16", "bfloat16"):
        for size, target, wanted in (
            ("3x3", 1.1, _depthwise(3, 3)),
            ("5x5 and larger", 3.0, _depthwise(4, 1000)),
            ("31x31", 10.0, _depthwise(31, 31)),
        ):
            yield Goal(f"depthwise {size}, {name}", target, picked, wanted, FIRST, name)
    for name in ("tf32", "float16"):
        yield Goal(f"{name}, channels first: the pick", 1.3, picked, is_dense, FIRST, name)
        yield Goal(f"{name}, channels last: our own", 0.9, ours, is_dense, LAST, name)
        yield Goal(f"{name}, channels last: the pick", 1.0, picked, is_dense, LAST, name)


def _gradient_goals() -> Iterator[Goal]:
    for direction, word in GRADIENTS.items():
        for kind, wanted, layout, name in (
            ("dense layers, channels first", is_dense, FIRST, "float32"),
            ("dense layers, channels last", is_dense, LAST, "float16"),
            ("dense layers, channels last", is_dense, LAST, "tf32"),
            ("depthwise layers", is_depthwise, FIRST, "float32"),
            ("depthwise layers", is_depthwise, FIRST, "float16"),
        ):
            what = f"{word} of {kind}, {name}: the pick"
            yield Goal(what, 1.0, picked, wanted, layout, name, direction)


def _depthwise(least: int, most: int) -> Callable[[ConvProblem], bool]:
    """Whether a problem is a depthwise one in 2-D whose longest side of the filter is within these."""
    return lambda p: is_depthwise(p) and p.ndim == 2 and least <= max(p.kernel) <= most


def _long_signals(signals: Sequence[LayerTimes]) -> Iterator[Reached]:
    for library in dict.fromkeys(name for la in signals for name in la.others):
        ratios = {
            la.case.title: la.others[library] / pick.median_s
            for la in signals
            if (pick := la.picked) and library in la.others
        }
        yield _mean(f"long causal 1-D, 1k to 128k, beside {library}", 4.0, ratios)


def _host_times(calls: Sequence[HostTime]) -> Iterator[Reached]:
    own = {f"{c.algorithm} {c.problem}": c.call_s for c in calls if not c.algorithm.startswith(CUDNN)}
    vendor = {f"{c.algorithm} {c.problem}": c.call_s for c in calls if c.algorithm.startswith(CUDNN)}
    captured = {f"{c.algorithm} {c.problem}": c.captured_s for c in calls if c.captured_s is not None}
    yield _slowest("host time of a call, our own", OWN_CALL, own)
    yield _slowest("host time of a call, cuDNN", CUDNN_CALL, vendor)
    yield _slowest("host time of a captured call", CAPTURED_CALL, captured)


def _copy_share(layers: Iterable[LayerTimes], ceilings: Iterable[Ceiling]) -> Reached:
    """1-D depthwise of at most 5 taps: the bytes that it must move, per second, beside those of a copy."""
    what = "depthwise 1-D of at most 5 taps: share of a copy's bandwidth"
    copy = next((c.value for c in ceilings if c.name.startswith("copy")), None)
    shares = {}
    for layer in layers:
        p, pick = layer.case.problem, layer.picked
        short = p.ndim == 1 and is_depthwise(p) and p.kernel[0] <= 5
        if copy and pick and short and (p.direction, p.layout) == ("forward", "channels_first"):
            shares[f"{layer.case.title} {layer.case.type}"] = p.bytes / pick.median_s / copy
    return _mean(what, 0.92, shares)


def _mean(what: str, target: float, ratios: dict[str, float]) -> Reached:
    least = min(ratios, key=lambda name: ratios[name]) if ratios else ""
    told = f"{least} {ratios[least]:.2f}" if least else ""
    return Reached(what, target, geometric_mean(ratios.values()), len(ratios), told)


def _slowest(what: str, target: float, seconds: dict[str, float]) -> Reached:
    """The geometric mean of times in microseconds, with the longest of them."""
    longest = max(seconds, key=lambda name: seconds[name]) if seconds else ""
    told = f"{longest} {seconds[longest] * 1e6:.1f}" if longest else ""
    mean = geometric_mean(seconds.values())
    reached = None if mean is None else mean * 1e6
    return Reached(what, target * 1e6, reached, len(seconds), told, at_most=True, unit=" us")
