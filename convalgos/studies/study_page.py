"""The page of a study: its question, each part of the answer with chart and table, and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from convalgos.core.cache_files import write_atomic
from convalgos.studies.run import StudyResult
from convalgos.studies.series import Series, axis_title, heading_of, holds_told, series_of, study_figure
from convalgos.studies.study import Finding, Part
from convalgos.studies.study_table import not_run_told
from convalgos.tools.report.charts import log_axis
from convalgos.tools.report.html import (
    COLORS,
    STRONG,
    Figure,
    Html,
    chart,
    code,
    definitions,
    html_table,
    label,
    layout,
    page,
    section,
    warning,
)
from convalgos.tools.report.terminal import figures_of

LINE, AROUND, HEIGHT = 22, 100, 420  # pixels: of a bar, of the axes, of a chart without bars


def study_page(result: StudyResult) -> str:
    """The text of an HTML file: what a study found.

    Raises:
        Unsupported: Plotly is not installed.
    """
    study = result.study
    asked = {"Source": study.source, "Method": study.method, "Look at": study.look_at}
    parts = [section("The question", study.question, definitions(asked)), _findings(result.findings)]
    parts += [_part(part) for part in result.parts]
    if result.not_run:
        missing = [not_run_told(n) for n in result.not_run]
        parts.append(section("Not run", "What this machine or installation lacks.", warning(missing)))
    parts.append(
        section(
            "Machine, versions, and how to do it again",
            f"On {result.threads} threads, in {result.seconds:.0f} s, by:",
            code(result.command),
            definitions(figures_of(result.machine) | result.versions),
        )
    )
    return page(f"convalgos study: {study.name}", f"{result.machine.name}, {result.started}", parts)


def write_page(result: StudyResult, path: Path) -> None:
    """Write the page into a file."""
    write_atomic(path, study_page(result))


def _findings(findings: Iterable[Finding]) -> Html:
    rows = [(f.claim, f.here, holds_told(f.holds)) for f in findings]
    heading = ("the original found", "found here", "")
    table = html_table(heading, rows, label="findings", wide=heading[:2])
    return section("What was found", "The claims of the original beside the figures of this machine.", table)


def _part(part: Part) -> Html:
    heading = [heading_of(column) for column in part.columns]
    rows = [
        [
            (float(value), study_figure(value, column)) if isinstance(value, int | float) else value
            for value, column in zip(row, part.columns, strict=True)
        ]
        for row in part.rows
    ]
    numeric = [
        h for i, h in enumerate(heading) if not all(isinstance(row[i], str | None) for row in part.rows)
    ]
    table = html_table(heading, rows, label=part.title, numeric=numeric)
    drawn = [_drawn(part)] if part.chart and series_of(part) else []
    return section(part.title, part.text, *drawn, table)


def _drawn(part: Part) -> Html:
    assert part.chart is not None
    series, kind = series_of(part), part.chart.kind
    bars = sum(len(s.x) for s in series) if kind == "bars" else len({x for s in series for x in s.x})
    height = AROUND + LINE * max(6, bars) if kind in ("bars", "timeline") else HEIGHT
    return chart({"data": _data(part, series), "layout": _layout(part, series)}, part.title, height=height)


def _data(part: Part, series: list[Series]) -> list[Figure]:
    assert part.chart is not None
    kind, data = part.chart.kind, []
    for i, s in enumerate(series):
        color = COLORS[i % len(COLORS)] if len(series) > 1 else STRONG
        drawn: Figure = {"name": label(s.name), "marker": {"color": color}, "x": list(s.x), "y": list(s.y)}
        if kind in ("bars", "timeline"):
            lengths = [end - start for end, start in zip(s.y, s.start, strict=True)] if s.start else s.y
            names = [label(str(x)) for x in s.x]
            drawn |= {"type": "bar", "orientation": "h", "x": list(lengths), "y": names}
            drawn |= {"base": list(s.start)} if s.start else {}
        else:
            drawn |= {"type": "scatter", "mode": "lines+markers" if kind == "lines" else "markers"}
            drawn["x"] = [label(x) if isinstance(x, str) else x for x in s.x]
        data.append(drawn)
    return data


def _layout(part: Part, series: list[Series]) -> Figure:
    """Bars lie, so that their names can be read: their numbers are on the horizontal axis."""
    assert part.chart is not None
    lying, of = part.chart.kind in ("bars", "timeline"), part.chart
    numbers, words = ("xaxis", "yaxis") if lying else ("yaxis", "xaxis")
    more: Figure = {"barmode": "overlay"} if of.kind == "timeline" else {}
    if of.log_y:
        more[numbers] = log_axis([v for s in series for v in s.y if v > 0])
    if lying:
        more[words] = {"type": "category", "autorange": "reversed", "title": None}
    elif of.log_x:
        more[words] = log_axis([v for s in series for v in s.x if isinstance(v, int | float) and v > 0])
    x, y = axis_title(part, (of.x,)), axis_title(part, of.y)
    return layout(y, "", **more) if lying else layout(x, y, **more)
