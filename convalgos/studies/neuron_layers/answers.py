"""The parts of the study's answer, made from what was timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from convalgos.studies.neuron_layers.decomposition import Decomposition
from convalgos.studies.neuron_layers.forms import FORMS, LINEAR, NeuronData
from convalgos.studies.study import Chart, Finding, Part, StudyCell, StudyColumn

RATE = StudyColumn("rate", "GFLOP/s")
ORIGINAL = 100  # times, at least, over the naive
NUMBA, STRIDED, PYTHON = "Numba", "Numba, strided", "Python"  # the naive loops
NAIVE = (STRIDED, NUMBA, PYTHON)


@dataclass(frozen=True)
class TriedLayer:
    """A layer that was timed: its form, the library, how it was cut."""

    form: str
    library: str
    cut: Decomposition
    seconds: float


def fastest_by_library(tried: Iterable[TriedLayer]) -> dict[str, TriedLayer]:
    """Library -> its fastest."""
    found: dict[str, TriedLayer] = {}
    for t in tried:
        found[t.library] = min(found.get(t.library, t), t, key=lambda each: each.seconds)
    return found


def loads_part(data: NeuronData, tried: Iterable[TriedLayer]) -> Part:
    """Rates against the vectors that a core takes at a time."""
    rows = [
        (f"{t.form}, {t.library}", t.cut.load, 1e3 * t.seconds, _rate(data, t.form, t.seconds)) for t in tried
    ]
    columns = (StudyColumn("layer"), StudyColumn("load"), StudyColumn("time", "ms"), RATE)
    text = f"{_sizes(data)}. The load is how many vectors a core takes at a time, on all threads."
    chart = Chart("lines", "load", ("rate",), by="layer", log_x=True)
    return Part("Load of a core", text, columns, tuple(rows), chart)


def memory_part(data: NeuronData, tried: Iterable[TriedLayer]) -> Part:
    """Rates of a linear layer by the order of x and by where results go."""
    rows = [
        (t.library, t.cut.order, t.cut.results, 1e3 * t.seconds, _rate(data, t.form, t.seconds))
        for t in tried
    ]
    columns = (*map(StudyColumn, ("library", "x", "results")), StudyColumn("time", "ms"), RATE)
    text = (
        "A linear layer at the best load of each library. Contiguous: the numbers of a vector lie together; "
        "strided: those of a dimension. New arrays cost the system a fault for each page."
    )
    return Part("Allocation", text, columns, tuple(rows))


def threads_part(data: NeuronData, tried: Iterable[TriedLayer]) -> Part:
    """Rates of a linear layer against threads."""
    rows = [(t.library, t.cut.threads, 1e3 * t.seconds, _rate(data, t.form, t.seconds)) for t in tried]
    columns = (StudyColumn("library"), StudyColumn("threads"), StudyColumn("time", "ms"), RATE)
    chart = Chart("lines", "threads", ("rate",), by="library")
    return Part("Threads", "A linear layer at the best load of each library.", columns, tuple(rows), chart)


def gains_part(
    data: NeuronData, finals: Iterable[TriedLayer], naive: Mapping[tuple[str, str], float]
) -> Part:
    """The best of each library and form beside the loops as they are written down."""
    rows: list[tuple[StudyCell, ...]] = []
    for (form, by), seconds in naive.items():
        rows.append((form, f"naive, {by}", 1e3 * seconds, _rate(data, form, seconds), None, None, None))
    for t in finals:
        over = [naive[t.form, by] / t.seconds if (t.form, by) in naive else None for by in NAIVE]
        rows.append((t.form, t.library, 1e3 * t.seconds, _rate(data, t.form, t.seconds), *over))
    columns = (
        *(StudyColumn("form"), StudyColumn("by"), StudyColumn("time", "ms"), RATE),
        *(StudyColumn(f"over naive {by}", "x") for by in NAIVE),
    )
    text = (
        "Naive: loops over single numbers on one thread, distances from differences; those of Python are "
        "timed on a few vectors, and scaled."
    )
    chart = Chart("bars", "by", ("rate",), by="form", log_y=True)
    return Part("The best against the naive", text, columns, tuple(rows), chart)


def whole_part(data: NeuronData, seconds: Mapping[str, float]) -> Part:
    """A linear layer that the library cuts itself."""
    rows = tuple((name, 1e3 * s, _rate(data, LINEAR, s)) for name, s in seconds.items())
    columns = (StudyColumn("library"), StudyColumn("time", "ms"), RATE)
    return Part("The library's own cut", "A linear layer in one call.", columns, rows)


def gain_finding(finals: Sequence[TriedLayer], naive: Mapping[tuple[str, str], float]) -> Finding:
    """How many times the naive the best is."""
    told, largest = [], 0.0
    for form in FORMS:
        best = min((t for t in finals if t.form == form), key=lambda t: t.seconds)
        ratios = {by: naive[form, by] / best.seconds for by in NAIVE if (form, by) in naive}
        largest = max(largest, ratios.get(STRIDED, 0.0))
        named = "; ".join(f"{by} {ratio:,.0f}" for by, ratio in ratios.items())
        told.append(f"{form} by {best.library} on {best.cut.threads} threads ({named})")
    return Finding(
        "Tuned by load and allocation, neuron layers are 100 to 250 times as fast as naive ones.",
        "Times the naive loops, which run on one thread: " + ", ".join(told) + ".",
        largest >= ORIGINAL if (LINEAR, STRIDED) in naive else None,
    )


def cut_finding(finals: Sequence[TriedLayer]) -> Finding:
    """The decomposition that the sweep recommends."""
    told = []
    for form in FORMS:
        best = min((t for t in finals if t.form == form), key=lambda t: t.seconds)
        told.append(f"{form}: {best.library}, {best.cut}")
    return Finding(
        "The load of each core and the allocation decide (which ones the original chose is not at hand).",
        "Recommended here: " + "; ".join(told) + ".",
        None,
    )


def _rate(data: NeuronData, form: str, seconds: float) -> float:
    return data.flops(form) / seconds / 1e9


def _sizes(data: NeuronData) -> str:
    vectors, dimension = data.x.shape
    return f"{len(data.w)} neurons on {vectors} vectors of dimension {dimension}"
