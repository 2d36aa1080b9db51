"""The page of `convalgos run --html`: the steps in order, their layouts in colour, and where time goes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from convalgos.tools.bench.network_run import NetworkResults
from convalgos.tools.report.html import (
    NEUTRAL,
    STRONG,
    Figure,
    Html,
    chart,
    code,
    colors,
    definitions,
    figure_tiles,
    html_table,
    label,
    layout,
    page,
    section,
)
from convalgos.tools.report.network import footer, layouts_told
from convalgos.tools.report.terminal import digits, figures_of

if TYPE_CHECKING:
    from convalgos.network.explanation import StepRow

STEP_HEIGHT, AROUND = 14, 90  # pixels: of a step, and of the axes
NAMES = {"title": None, "ticksuffix": " "}  # of an axis, apart from the bars
HEADING = ("step", "what", "algorithm", "layouts", "output", "us", "predicted us", "% of time", "% of peak")
WORDS = HEADING[:5]


def network_page(results: NetworkResults) -> str:
    """The text of an HTML file: how long each step of a network takes.

    Raises:
        Unsupported: Plotly is not installed.
    """
    steps = results.explanation.rows
    figure = _steps(steps)
    parts = [
        figure_tiles(_tiles(results)),
        section(
            "Libraries",
            "Time of a run end to end, each library in the same rounds.",
            chart(_libraries(results), "time of each library", height=AROUND + 40 * len(results.times)),
        ),
        section(
            "The network",
            "Its steps in the order in which they run, coloured by the layout that they write. A bar is the "
            "time of the step by itself; point at it for its figures.",
            chart(
                figure, "time and layout of every step", height=AROUND + STEP_HEIGHT * max(8, len(steps))
            ),
        ),
        section("Where the time goes", "By what a step does.", chart(_kinds(steps), "time by kind of step")),
        section(
            "All figures",
            "Press a heading to sort.",
            html_table(
                HEADING, [_row(results, row) for row in steps], label="steps",
                numeric=set(HEADING).difference(WORDS), wide=("what",),
            ),
        ),
        section(
            "Machine, versions, and how to do it again", "The command that made this page:",
            code(results.command), definitions(figures_of(results.machine) | results.versions),
        ),
    ]  # fmt: skip
    title = f"convalgos run: {Path(results.model).name}"
    return page(title, f"{footer(results)[0]}, {results.started}", parts)


def _tiles(results: NetworkResults) -> list[tuple[str, str, str]]:
    found = []
    if timing := results.ours.timing:
        found.append(("a run", f"{digits(timing.median * 1e3)} ms", f"± {50 * timing.spread:.0f} %"))
    for times in results.times[1:]:
        if ratio := results.ratio(times):
            found.append(
                (f"{times.name} takes", f"{ratio:.2f}x as long", f"outputs differ by {times.error:.0e}")
            )
    explained = results.explanation
    arena = f"and {results.filter_bytes / 1e6:.1f} MB of filters"
    return [*found, ("arena", f"{explained.arena_bytes / 1e6:.1f} MB", arena)]


def _libraries(results: NetworkResults) -> Figure:
    timed = [times for times in results.times if times.timing]
    data = {
        "type": "bar", "orientation": "h", "y": [label(times.name) for times in timed],
        "x": [1e3 * times.timing.median for times in timed if times.timing],
        "marker": {"color": [STRONG, *[NEUTRAL] * (len(timed) - 1)]},
        "hovertemplate": "%{y}: %{x:.3f} ms<extra></extra>",
    }  # fmt: skip
    return {"data": [data], "layout": layout("ms", "", yaxis={**NAMES, "autorange": "reversed"})}


def _steps(steps: tuple[StepRow, ...]) -> Figure:
    """A bar for each step, of the colour of its layout."""
    color = colors(row.writes for row in steps)
    names = [label(f"{i + 1} {row.name}") for i, row in enumerate(steps)]
    data = []
    for writes, of in color.items():
        mine = [(name, row) for name, row in zip(names, steps, strict=True) if row.writes == writes]
        data.append(
            {
                "type": "bar", "orientation": "h", "name": label(writes), "marker": {"color": of},
                "y": [name for name, _ in mine], "x": [1e6 * (row.measured_s or 0) for _, row in mine],
                "customdata": [_told(row) for _, row in mine],
                "hovertemplate": "%{customdata}<br>%{x:.1f} us<extra></extra>",
            }
        )  # fmt: skip
    axis = {
        "type": "category", "categoryarray": names, "autorange": "reversed", "dtick": 1,
        "tickfont": {"size": 9}, **NAMES,
    }  # fmt: skip
    return {"data": data, "layout": layout("us", "", yaxis=axis, barmode="overlay", bargap=0.15)}


def _kinds(steps: tuple[StepRow, ...]) -> Figure:
    """Time by algorithm, or by kind of step where it has none, or by library."""
    seconds: Counter[str] = Counter()
    for row in steps:
        seconds[row.algorithm or row.what.partition(":")[0]] += row.measured_s or 0  # type: ignore[assignment]
    names = [name for name, _ in seconds.most_common()]
    data = {
        "type": "bar", "orientation": "h", "y": [label(name) for name in names],
        "x": [1e6 * seconds[name] for name in names], "marker": {"color": STRONG},
        "hovertemplate": "%{y}: %{x:.1f} us<extra></extra>",
    }  # fmt: skip
    return {"data": [data], "layout": layout("us", "", yaxis={**NAMES, "autorange": "reversed"})}


def _told(row: StepRow) -> str:
    return label(row.name, f"{row.what} {row.algorithm}", layouts_told(row), "x".join(map(str, row.shape)))


def _row(results: NetworkResults, row: StepRow) -> list[Html | str | tuple[float, str] | None]:
    total, seconds = results.explanation.measured_s or 1.0, row.measured_s or 0.0
    share = 100 * seconds / total
    return [
        row.name, row.what, row.algorithm, layouts_told(row), "x".join(map(str, row.shape)),
        (seconds, digits(seconds * 1e6)), (row.predicted_s, digits(row.predicted_s * 1e6)),
        (share, f"{share:.1f}"), (row.of_peak, f"{100 * row.of_peak:.0f}") if row.of_peak else None,
    ]  # fmt: skip
