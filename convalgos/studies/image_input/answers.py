"""The parts of the study's answer, made from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from convalgos.studies.image_input.decoding import STEPS
from convalgos.studies.image_input.pipeline import Span, waited
from convalgos.studies.study import Answer, Chart, Finding, Part, StudyCell, StudyColumn

MEGA = 1e6
UNTOLD = "(the figures of the original are not at hand)"


class InputTimes(Protocol):
    """What was measured: files by resolution, seconds for all of them by way, time lines, a step."""

    files: dict[str, list[Path]]
    seconds: dict[tuple[str, str], float]
    spans: dict[str, list[Span]]
    step: float | None
    batch: int

    def rate(self, resolution: str, way: str) -> float: ...


def image_steps_part(found: InputTimes, medians: Mapping[str, Sequence[float]]) -> Part:
    """Milliseconds of an image in each step, by resolution."""
    rows: list[tuple[StudyCell, ...]] = []
    for resolution, seconds in medians.items():
        size = _bytes(found.files[resolution]) / len(found.files[resolution])
        rows.append((resolution, size / 1e3, *(1e3 * float(s) for s in seconds), 1e3 * float(sum(seconds))))
    columns = (StudyColumn("resolution"), StudyColumn("file", "kB"), *(StudyColumn(s, "ms") for s in STEPS))
    text = "Median of the images, by one thread; the files lie in the system's memory."
    return Part(
        "The way of one image", text, (*columns, StudyColumn("image", "ms")), tuple(rows),
        Chart("bars", "resolution", STEPS),
    )  # fmt: skip


def bandwidth_part(rates: Mapping[str, tuple[float, float]]) -> Part:
    """How fast files are read whole, from the disk and from the system's memory."""
    rows = tuple((name, disk / MEGA, memory / MEGA) for name, (disk, memory) in rates.items())
    read = [StudyColumn(f"from {place}", "MB/s") for place in ("disk", "memory")]
    text = (
        "Whole files, one after the other. Before reading from disk the system was asked to drop them from "
        "its memory; a disk of a virtual machine may hold them in memory of its own."
    )
    return Part("Read bandwidth", text, (StudyColumn("resolution"), *read), rows)


def rates_part(found: InputTimes) -> Part:
    """Images per second of each way and resolution, and the bytes read for them."""
    rows: list[tuple[StudyCell, ...]] = []
    for (resolution, way), seconds in found.seconds.items():
        rate, serial = found.rate(resolution, way), found.seconds[resolution, "serial"]
        read = _bytes(found.files[resolution]) / seconds / MEGA
        rows.append((resolution, way, rate, serial / seconds, read))
    columns = (
        *map(StudyColumn, ("resolution", "loaded by")),
        *(StudyColumn("images/s"), StudyColumn("over serial", "x"), StudyColumn("read", "MB/s")),
    )
    text = f"{len(next(iter(found.files.values())))} images at a time; every way gives the same batch."
    chart = Chart("lines", "loaded by", ("images/s",), by="resolution", log_y=True)
    return Part("Images loaded per second", text, columns, tuple(rows), chart)


def limits_part(found: InputTimes) -> Part:
    """By resolution: what input gives and computation takes, and who waits for whom."""
    assert found.step is not None
    taken = found.batch / found.step
    rows: list[tuple[StudyCell, ...]] = []
    for resolution in found.files:
        ways = [way for r, way in found.seconds if r == resolution]
        best = max(ways, key=lambda way: found.rate(resolution, way))
        serial = found.rate(resolution, "serial")
        first = first_that_keeps_up(found, resolution)
        rows.append(
            (resolution, serial, best, found.rate(resolution, best), taken, first or "none", taken / serial)
        )
    columns = (
        StudyColumn("resolution"),
        StudyColumn("serial, images/s"),
        *(StudyColumn("fastest"), StudyColumn("fastest, images/s"), StudyColumn("a step takes, images/s")),
        *(StudyColumn("computation is the limit from"), StudyColumn("cores that load", digits=2)),
    )
    text = (
        f"A step of ResNet-50 on {found.batch} images takes {1e3 * found.step:.0f} ms. The last column is "
        "how many cores loading keeps busy while steps follow one another without a pause."
    )
    return Part("When computation is the limit", text, columns, tuple(rows))


def time_lines_part(found: InputTimes, resolution: str) -> Part:
    """When each batch was loaded and computed with."""
    rows = tuple(
        (f"{way}: {span.what}", f"batch {span.batch + 1}", 1e3 * span.begin, 1e3 * span.end)
        for way, spans in found.spans.items()
        for span in spans
    )
    columns = (
        StudyColumn("line"),
        StudyColumn("batch"),
        StudyColumn("begin", "ms"),
        StudyColumn("end", "ms"),
    )
    told = "; ".join(f"{way}: {waited(spans):.0%}" for way, spans in found.spans.items())
    text = f"Images of {resolution}. Share of the time in which nothing was computed: {told}."
    return Part("Time lines", text, columns, rows, Chart("timeline", "line", ("begin", "end"), by="batch"))


def input_findings(found: InputTimes) -> Iterator[Answer]:
    """What several processes give, and when computation is the limit."""
    best = _fastest_together(found)
    gains = {r: found.rate(r, way) / found.rate(r, "serial") for r, way in best.items()}
    told = "; ".join(f"{r}: {gain:.2f} by {best[r]}" for r, gain in gains.items())
    yield Finding(
        f"Serial input was compared with that of several processes, by image resolution {UNTOLD}.",
        f"Images per second over serial loading: {told}.",
        None,
    )
    if found.step is None:
        return
    first = {resolution: first_that_keeps_up(found, resolution) for resolution in found.files}
    named = "; ".join(f"{resolution}: from {way or 'no way'} on" for resolution, way in first.items())
    lines = "; ".join(f"{way}: {waited(spans):.0%}" for way, spans in found.spans.items())
    waits = f" Share of the time of the largest images in which nothing was computed: {lines}." * bool(lines)
    yield Finding(
        f"It was told when computation is the limit, with the time lines of both {UNTOLD}.",
        f"Steps compute {found.batch / found.step:.1f} images/s. Computation is the limit: {named}." + waits,
        None,
    )


def first_that_keeps_up(found: InputTimes, resolution: str) -> str | None:
    """The first way whose images come as fast as a step takes them."""
    assert found.step is not None
    taken = found.batch / found.step
    ways = (way for r, way in found.seconds if r == resolution)
    return next((way for way in ways if found.rate(resolution, way) >= taken), None)


def _fastest_together(found: InputTimes) -> dict[str, str]:
    """Resolution -> the fastest of several threads or processes."""
    best: dict[str, str] = {}
    for resolution, way in found.seconds:
        before = best.get(resolution)
        if way != "serial" and (not before or found.rate(resolution, way) > found.rate(resolution, before)):
            best[resolution] = way
    return best


def _bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)
