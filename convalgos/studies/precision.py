"""Error against speed of every algorithm, and what the errors of Winograd and of FFTs grow with.

Source: Barabasz et al., arXiv:1803.10986, on the points and the growth of Winograd's errors; Lavin and Gray,
arXiv:1509.09308, on F(2, 3) and F(4, 3) in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import convalgos as ca
from convalgos.core.element_types import PRECISIONS
from convalgos.core.errors import Unsupported
from convalgos.select import choose
from convalgos.select.constraints import Constraints
from convalgos.select.measure.accuracy import AccuracyCheck
from convalgos.select.measure.table import Row, time_candidates
from convalgos.studies.real_filters import (
    RULE,
    TRAINED,
    RealLayer,
    filters_like_trained,
    real_layer,
    trained_filters,
)
from convalgos.studies.study import (
    Answer,
    Chart,
    Finding,
    NotRun,
    Part,
    Study,
    StudyColumn,
    StudySetting,
)
from convalgos.studies.timed_plans import timed_plan
from convalgos.studies.winograd_rounding import LARGEST_M, error_growth, point_sets, rounding_error

FORMATS = ("float64", "float32", "float16", "bfloat16")
ERROR, BOUND = StudyColumn("error", digits=2), StudyColumn("error bound", digits=2)


class PrecisionStudy(Study):
    """Tables of algorithms on real filters, then Winograd's points, tiles and formats, then FFTs."""

    name = "precision"
    question = "What does the speed of each algorithm cost in precision?"
    source = (
        "A seminar's remark that fast algorithms round differently, and two papers: F(4, 3) in float32 is "
        "good enough to train on (arXiv:1509.09308); errors of Winograd's algorithm grow exponentially with "
        "the tile, and better points take a part of that away (arXiv:1803.10986)."
    )
    method = (
        "Every algorithm that serves a layer, in every number format, is timed in turns and checked: the "
        "largest error of an output relative to the largest output, against float64, beside the bound that "
        "it states. Filters are those of a trained network where one is installed; inputs are normal numbers "
        "after a ReLU. Points and formats of Winograd's transforms are varied in NumPy."
    )
    look_at = (
        "Which algorithms nobody else beats in both speed and error; how the error multiplies with each step "
        "of m; and that no error passes its bound."
    )
    size: ClassVar[int] = 56  # of maps
    channels: ClassVar[int] = 64
    trained: ClassVar[int] = 2  # filters of the trained network
    sizes: ClassVar[tuple[int, ...]] = (14, 28, 56, 112, 224)  # of maps that FFTs transform whole

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        found = trained_filters()
        if not found:
            yield NotRun("the layers with trained filters", f"{TRAINED} (pip install rapidocr-onnxruntime)")
        like = real_layer("like trained", filters_like_trained(self.channels, self.channels), self.size)
        some = list(found.items())[: 1 if setting.quick else self.trained]
        over = []
        for layer in (like, *(real_layer(name, w, self.size) for name, w in some)):
            rows = _measured(layer, setting)
            yield _table(layer, rows)
            over += [(layer.name, row) for row in rows if not row.error <= row.error_bound]
        yield _within_bounds(over)
        yield from _growth(like, setting)
        yield _formats(like, setting)
        yield from _transforms(self.sizes[: 3 if setting.quick else None], setting)


def _measured(layer: RealLayer, setting: StudySetting) -> list[Row]:
    """Every candidate in every format, fastest first."""
    setting.tell(f"every algorithm on {layer.name}")
    ranking = choose.rank(layer.problem, "cpu", Constraints(precisions=tuple(PRECISIONS)))
    check = AccuracyCheck(layer.problem, arrays=(layer.x, layer.w))
    budget = min(8.0 if setting.quick else 60.0, setting.left() / 4)
    return list(time_candidates(ranking, check=check, time_budget=max(1.0, budget), within=50.0).rows)


def _table(layer: RealLayer, rows: list[Row]) -> Part:
    """One row for each candidate; those that are best in speed or error are marked."""
    cells, least = [], float("inf")
    for row in sorted(rows, key=lambda row: row.median_s):
        best = row.error < least
        least = min(least, row.error)
        _, _, precision = row.algorithm.rpartition(".as_")
        dtype = precision if precision in PRECISIONS and precision != row.algorithm else layer.problem.dtype
        share = row.error / row.error_bound if row.error_bound else None
        cells.append(
            (
                row.algorithm, dtype, 1e6 * row.median_s, rows[0].median_s / row.median_s, row.error,
                row.error_bound, share, "yes" if best else "",
            )
        )  # fmt: skip
    made = f" Filters by rule: {RULE}." if layer.name == "like trained" else ""
    return Part(
        f"Every algorithm on {layer.name}, {layer.problem}",
        f"In all number formats; conversions of x count.{made} On the front are those that nothing faster is "
        "as precise as.",
        (
            StudyColumn("algorithm"), StudyColumn("format"), StudyColumn("time", "us"),
            StudyColumn("speed", "of the fastest", 2), ERROR, BOUND, StudyColumn("error / bound", digits=2),
            StudyColumn("on the front"),
        ),
        tuple(cells),
        Chart("points", "error", ("time",), by="format", log_x=True, log_y=True),
    )  # fmt: skip


def _within_bounds(over: list[tuple[str, Row]]) -> Finding:
    told = "; ".join(
        f"{row.algorithm} on {name}: {row.error:.1e} > {row.error_bound:.1e}" for name, row in over
    )
    return Finding(
        "Every algorithm stays within the error bound that it states.", told or "All do.", not over
    )


def _growth(layer: RealLayer, setting: StudySetting) -> Iterator[Answer]:
    """F(m, 3) of growing tiles: by each set of points in NumPy, and by the kernels that there are."""
    setting.tell("Winograd's points and tiles")
    x, w = layer.x[0], layer.w[: min(16, len(layer.w))]
    check = AccuracyCheck(layer.problem, arrays=(layer.x, layer.w))
    rows, errors = [], {}
    for m in range(2, 7 if setting.quick else LARGEST_M + 1):
        if setting.left() < 0:
            break
        kernel = _kernel_error(layer.problem, f"cpu.winograd.f{m}x3", check)
        for name, points in point_sets(m).items():
            errors[m, name] = rounding_error(x, w, m, points)
            own = kernel if name == "of this library" else None
            told = " ".join(map(str, points))
            rows.append((name, m, errors[m, name], error_growth(m, points), own, (m + 2) ** 2 / m**2, told))
    yield Part(
        "Winograd's tiles and points, float32",
        "F(m, 3) computes m by m outputs from (m + 2) by (m + 2) products. The predicted growth is that of "
        "independent data over direct sums; the error of the kernel is that of this library's algorithm.",
        (
            StudyColumn("points"), StudyColumn("m"), ERROR, StudyColumn("predicted growth", "x"),
            StudyColumn("error of the kernel", digits=2), StudyColumn("products / output"),
            StudyColumn("values"),
        ),
        tuple(rows),
        Chart("lines", "m", ("error",), by="points", log_y=True),
    )  # fmt: skip
    whole = {m: error for (m, name), error in errors.items() if name == "whole numbers"}
    largest = max(whole)
    steps = (whole[largest] / whole[2]) ** (1 / (largest - 2))
    yield Finding(
        "Errors of Winograd's algorithm grow exponentially with the tile (arXiv:1803.10986).",
        f"At whole numbers the error grows {steps:.1f} times with each step of m, from "
        f"{whole[2]:.1e} at m = 2 to {whole[largest]:.1e} at m = {largest}.",
        steps > 1.5,
    )
    gains = {m: whole[m] / error for (m, name), error in errors.items() if name == "of this library"}
    best = max(gains, key=gains.__getitem__)
    yield Finding(
        "Better points take a part of that growth away (arXiv:1803.10986).",
        "The points of this library against whole numbers: "
        + ", ".join(f"{gain:.1f} times less at m = {m}" for m, gain in gains.items()) + ".",
        gains[best] > 1.2,
    )  # fmt: skip


def _kernel_error(problem: ca.ConvProblem, algorithm: str, check: AccuracyCheck) -> float | None:
    try:
        return timed_plan(problem, algorithm, check=check).error()
    except (Unsupported, ValueError):
        return None  # no kernel of so large tiles


def _formats(layer: RealLayer, setting: StudySetting) -> Part:
    """The same transforms with their results rounded to shorter and longer formats."""
    setting.tell("Winograd's formats")
    x, w = layer.x[0], layer.w[: min(16, len(layer.w))]
    rows = []
    for m in (2, 4, 6):
        points = point_sets(m)["of this library"]
        rows += [(dtype, m, rounding_error(x, w, m, points, dtype)) for dtype in FORMATS]
    return Part(
        "Winograd's number format",
        "Transformed inputs and filters rounded to a format, sums in float32 (in float64 with that).",
        (StudyColumn("format"), StudyColumn("m"), ERROR),
        tuple(rows),
        Chart("lines", "m", ("error",), by="format", log_y=True),
    )


def _transforms(sizes: tuple[int, ...], setting: StudySetting) -> Iterator[Answer]:
    """FFTs of whole maps of growing size, and of tiles."""
    setting.tell("FFTs")
    rows: list[tuple[str, int, float, float]] = []
    for size in sizes:
        layer = real_layer("", filters_like_trained(8, 8), size)
        check = AccuracyCheck(layer.problem, arrays=(layer.x, layer.w))
        for name in ("cpu.fft.fftw", "cpu.fft.mkl", "cpu.fft_tiles.t16", "cpu.fft_tiles.t32", "cpu.direct"):
            try:
                made = timed_plan(layer.problem, name, check=check)
            except (Unsupported, ValueError):
                continue
            rows.append((name, size, made.error(), made.bound))
    yield Part(
        "FFTs by the size of the map, float32",
        "3x3 filters of 8 channels on square maps; whole maps are transformed at once, tiles one by one.",
        (StudyColumn("algorithm"), StudyColumn("size"), ERROR, BOUND),
        tuple(rows),
        Chart("lines", "size", ("error",), by="algorithm", log_x=True, log_y=True),
    )
    whole = [(size, error) for name, size, error, _ in rows if name.startswith("cpu.fft.")]
    if len({size for size, _ in whole}) > 1:
        (small, first), (large, last) = min(whole), max(whole)
        yield Finding(
            "Errors of FFTs grow with the logarithm of their length, where Winograd's grow exponentially.",
            f"{first:.1e} on {small} x {small} pixels and {last:.1e} on {large} x {large}.",
            last < 4 * first,
        )


STUDY = PrecisionStudy()
