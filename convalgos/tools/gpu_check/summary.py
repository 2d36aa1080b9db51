"""The last lines of a check, on a screen or two: what is wrong, what is slow, and beside which target."""

from __future__ import annotations

from collections.abc import Iterable

from convalgos.tools.gpu_check.report import Report, aim, reached
from convalgos.tools.gpu_check.results import Result
from convalgos.tools.gpu_check.targets import Reached, kind_of, once_measured
from convalgos.tools.gpu_check.timing import LayerTimes

LINES = 60
WIDE = 200  # characters of a line
WRONG, SLOW = 16, 12  # lines of algorithms that are wrong, and of layers that are slow, at most


def summary(report: Report, where: object) -> list[str]:
    """At most LINES lines.

    Args:
        where: the report lies.
    """
    checked = {r.algorithm for r in report.results if r.what == "y"}
    lines = [
        f"=== {report.figures.name}: {len(report.results)} checks of {len(checked)} algorithms, "
        f"{len(report.wrong)} wrong; {len(report.layers)} layers timed",
        f"report: {where}",
        *(f"note: {text}" for text in report.notes),
        "phases: " + "; ".join(f"{name} {took}" for name, took in report.phases.items()),
        *(f"ceiling: {c.name} {c.value:.3e}" for c in report.ceilings),
        *_refused(report),
        *(f"BARRED: {text}" for text in report.barred),
        *_wrong(report),
    ]
    targets, slow = report.targets(), _slow(report.layers)
    timed = [t for t in targets if t.reached is not None]
    lines += [f"SLOW: {_told(t)}" for t in timed if not t.met]
    lines += [f"reached: {_told(t)}" for t in timed if t.met]
    if idle := [t.what for t in targets if t.reached is None]:
        lines.append(f"not timed: {len(idle)} of {len(targets)} targets: {'; '.join(idle)}")
    lines += slow
    shown = [line if len(line) <= WIDE else line[: WIDE - 3] + "..." for line in lines]
    if len(shown) > LINES:
        shown = [*shown[: LINES - 1], f"... {len(shown) - LINES + 1} lines more in the report"]
    return shown


def _refused(report: Report) -> Iterable[str]:
    refused = [a.question for a in report.answers if a.answer.startswith("refused")]
    if report.answers:
        yield f"driver: {len(refused)} of its maps refused" + (f": {'; '.join(refused)}" if refused else "")


def _wrong(report: Report) -> Iterable[str]:
    """A line for each algorithm, those with the most first."""
    found: dict[str, list[Result]] = {}
    for result in report.wrong:
        found.setdefault(result.algorithm or result.case, []).append(result)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    for name, results in ordered[:WRONG]:
        yield f"WRONG: {name} {len(results)} times, as {results[0]}"
    if more := [name for name, _ in ordered[WRONG:]]:
        yield f"WRONG, too: {', '.join(more)}"


def _told(t: Reached) -> str:
    beside = f" beside {t.beside}" if t.beside else ""
    behind = f"; furthest behind: {t.least}" if t.least else ""
    return f"{t.what}: {reached(t)}, aim {aim(t)}, {t.count} timed{beside}{behind}"


def _slow(layers: Iterable[LayerTimes]) -> Iterable[str]:
    """The layers on which the fastest of all candidates is furthest behind the baseline."""
    ratios = []
    for layer in layers:
        best, peer = once_measured(layer), layer.baseline
        if best and peer and peer.seconds < best.median_s:
            ratios.append((peer.seconds / best.median_s, layer, best, peer))
    for ratio, layer, best, peer in sorted(ratios, key=lambda row: row[0])[:SLOW]:
        yield (
            f"slow layer: {layer.case.title} {layer.case.type} {layer.case.problem.layout} "
            f"{layer.case.problem.direction}: {best.algorithm} {best.median_s * 1e6:.1f} us, "
            f"{kind_of(peer)} {peer.seconds * 1e6:.1f} us ({ratio:.2f}x)"
        )
