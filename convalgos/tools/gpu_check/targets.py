"""What was aimed for, and what was reached: geometric means over the layers that were timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.run import geometric_mean
from convalgos.tools.gpu_check.baselines import Baseline
from convalgos.tools.gpu_check.cases import is_dense, is_depthwise, is_winograd
from convalgos.tools.gpu_check.steps import CUDNN
from convalgos.tools.gpu_check.timing import Ceiling, HostTime, LayerTimes, Timed

OWN_CALL, CUDNN_CALL, CAPTURED_CALL = 12e-6, 15e-6, 3e-6  # seconds of the host
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


def fastest(layer: LayerTimes) -> Timed | None:
    """What the selector takes once it has measured."""
    return layer.best()


def kind_of(baseline: Baseline) -> str:
    """Without the number of cuDNN's plan."""
    return "cuDNN" if baseline.name.startswith(CUDNN) else baseline.name


def winograd(layer: LayerTimes) -> Timed | None:
    return layer.best(lambda row: row.algorithm.startswith("gpu.winograd"))


def targets(
    layers: Sequence[LayerTimes],
    signals: Sequence[LayerTimes],
    calls: Sequence[HostTime],
    ceilings: Sequence[Ceiling],
) -> list[Reached]:
    """All of them, whether or not anything was timed for them."""
    first, last = "channels_first", "channels_last"

    def over(
        what: str,
        target: float,
        who: Of,
        wanted: Callable[[ConvProblem], bool],
        layout: str,
        *types: str,
        direction: str = "forward",
    ) -> Reached:
        chosen = [
            la
            for la in layers
            if (la.case.problem.direction, la.case.problem.layout) == (direction, layout)
            and la.case.type in types
            and wanted(la.case.problem)
        ]
        ratios, names = {}, Counter[str]()
        for layer in chosen:
            mine, peer = who(layer), layer.baseline
            if mine and peer:
                ratios[layer.case.title] = peer.seconds / mine.median_s
                names[kind_of(peer)] += 1
        return replace(_mean(what, target, ratios), beside=", ".join(f"{n} {c}" for n, c in names.items()))

    def everything(problem: ConvProblem) -> bool:
        return True

    def depthwise(wanted: Callable[[int], bool]) -> Callable[[ConvProblem], bool]:
        return lambda p: is_depthwise(p) and p.ndim == 2 and wanted(max(p.kernel))

    floats = ("float32", "float16", "bfloat16")
    found = [
        over("strict float32, channels first: the pick", 1.6, picked, everything, first, "float32"),
        over("strict float32, channels first: once measured", 1.6, fastest, everything, first, "float32"),
        over("Winograd, 3x3 with C, K >= 64 and N <= 8", 2.2, winograd, is_winograd, first, "float32"),
        *(
            reached
            for name in floats
            for reached in (
                over(f"depthwise 3x3, {name}", 1.1, picked, depthwise(lambda r: r == 3), first, name),
                over(
                    f"depthwise 5x5 and larger, {name}", 3.0, picked, depthwise(lambda r: r > 3), first, name
                ),
                over(f"depthwise 31x31, {name}", 10.0, picked, depthwise(lambda r: r == 31), first, name),
            )
        ),
        *(
            reached
            for name in ("tf32", "float16")
            for reached in (
                over(f"{name}, channels first: the pick", 1.3, picked, is_dense, first, name),
                over(f"{name}, channels last: our own", 0.9, ours, is_dense, last, name),
                over(f"{name}, channels last: the pick", 1.0, picked, is_dense, last, name),
            )
        ),
    ]
    found.append(_copy_share(layers, ceilings))
    found += [
        over(f"{word} of {kind}, {name}: the pick", 1.0, picked, wanted, layout, name, direction=direction)
        for direction, word in GRADIENTS.items()
        for kind, wanted, layout, name in (
            ("dense layers, channels first", is_dense, first, "float32"),
            ("dense layers, channels last", is_dense, last, "float16"),
            ("dense layers, channels last", is_dense, last, "tf32"),
            ("depthwise layers", is_depthwise, first, "float32"),
            ("depthwise layers", is_depthwise, first, "float16"),
        )
    ]
    for library in dict.fromkeys(name for la in signals for name in la.others):
        ratios = {
            la.case.title: la.others[library] / pick.median_s
            for la in signals
            if (pick := la.picked) and library in la.others
        }
        found.append(_mean(f"long causal 1-D, 1k to 128k, beside {library}", 4.0, ratios))
    own = {f"{c.algorithm} {c.problem}": c.call_s for c in calls if not c.algorithm.startswith(CUDNN)}
    vendor = {f"{c.algorithm} {c.problem}": c.call_s for c in calls if c.algorithm.startswith(CUDNN)}
    captured = {f"{c.algorithm} {c.problem}": c.captured_s for c in calls if c.captured_s is not None}
    found += [
        _slowest("host time of a call, our own", OWN_CALL, own),
        _slowest("host time of a call, cuDNN", CUDNN_CALL, vendor),
        _slowest("host time of a captured call", CAPTURED_CALL, captured),
    ]
    return found


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
