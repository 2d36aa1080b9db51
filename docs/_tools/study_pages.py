"""Pages of the studies, made from what `convalgos study NAME --json docs/_data/studies/NAME.json` measured.

    python docs/_tools/study_pages.py      # writes docs/studies/*.md, and pictures beside the JSON files

A page has the question of the study, each part of its answer with picture and table, what the original found
beside what was found, and the command and the machine. What is written depends on the JSON files and on the
words of the studies only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path

from convalgos.studies.run import StudyResult
from convalgos.studies.series import (
    Series,
    axis_title,
    heading_of,
    holds_told,
    series_of,
    study_figure,
)
from convalgos.studies.study import Part, StudyColumn
from convalgos.studies.study_file import read_study
from convalgos.tools.report.html import COLORS, STRONG
from convalgos.tools.report.terminal import figures_of

DOCS = Path(__file__).parents[1]
RESULTS, PAGES = DOCS / "_data" / "studies", DOCS / "studies"
WIDTH, HEIGHT, LETTER = 720, 340, 7.0  # units of a drawing; of a letter, about
BAR, GAP, TOP = 9, 7, 8  # of a bar, between two groups of them, above the plot
LONGEST_ROWS = 60  # of a table on a page: the rest is in the JSON file
MOST_TICKS = 8
TITLE = "# Studies"
ABOUT = """Questions about convolution, each answered by running it. `convalgos study` lists them, and
`convalgos study NAME` runs one on your machine: in ten minutes at most, with `--quick` in one. `--html`
writes a page with charts, `--json` a file.

Each page tells the question and where it comes from, how it is measured, and beside what the original work
found what was found on the machine that it names. A study that you write is one file in
`convalgos/studies/`: see {doc}`../guides/researcher`."""


def result_files() -> dict[str, StudyResult]:
    """name -> result, of every JSON file that is kept."""
    return {path.stem: read_study(path) for path in sorted(RESULTS.glob("*.json"))}


def generated() -> dict[Path, str]:
    """path -> text, of all pages and pictures."""
    results = result_files()
    made = {PAGES / "index.md": _index(results)}
    for name, result in results.items():
        made[PAGES / f"{name}.md"] = _page(name, result)
        for i, part in enumerate(result.parts):
            if drawing := picture(part):
                made[RESULTS / f"{name}-{i + 1}.svg"] = drawing
    return made


# --- pages -------------------------------------------------------------------------------------


def _index(results: dict[str, StudyResult]) -> str:
    lines = ["| study | question | claims that hold |", "|---|---|---|"]
    for name, result in results.items():
        known = [f.holds for f in result.findings if f.holds is not None]
        lines.append(f"| [{name}]({name}.md) | {result.study.question} | {sum(known)} of {len(known)} |")
    toctree = ["```{toctree}", ":hidden:", "", *results, "```"]
    return "\n".join([TITLE, "", ABOUT, "", *lines, "", *toctree]) + "\n"


def _page(name: str, result: StudyResult) -> str:
    study = result.study
    blocks = [
        f"# The study {name}",
        f"**{study.question}**",
        f"Source: {study.source}",
        f"Method: {study.method}",
        f"What to look at: {study.look_at}",
        f"```sh\n{result.command}\n```",
        f"{result.threads} threads of an {result.machine.name}, {result.started}, {result.seconds:.0f} s.",
    ]
    if result.findings:
        rows = [f"| {_cell(f.claim)} | {_cell(f.here)} | {holds_told(f.holds)} |" for f in result.findings]
        blocks += ["## What was found", "\n".join(["| claim | here | |", "|---|---|---|", *rows])]
    for i, part in enumerate(result.parts):
        blocks += [f"## {_cell(part.title)}", part.text, *_picture_of(name, i + 1, part), _table(part)]
    if result.not_run:
        missing = [f"- {_cell(n.what)}, which needs {_cell(n.needs)}" for n in result.not_run]
        blocks += ["## Not run", "\n".join(missing)]
    figures = "; ".join(f"{key} {value}" for key, value in figures_of(result.machine).items())
    packages = ", ".join(f"{key} {value}" for key, value in result.versions.items())
    blocks += ["## Machine and versions", f"{figures}.", f"{packages}."]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _picture_of(name: str, number: int, part: Part) -> list[str]:
    if picture(part) is None:
        return []
    return [f"```{{raw}} html\n:file: ../_data/studies/{name}-{number}.svg\n```"]


def _table(part: Part) -> str:
    lines = [
        "| " + " | ".join(_cell(heading_of(column)) for column in part.columns) + " |",
        "|" + "---|" * len(part.columns),
    ]
    for row in part.rows[:LONGEST_ROWS]:
        cells = (_cell(study_figure(v, c)) for v, c in zip(row, part.columns, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
    if len(part.rows) > LONGEST_ROWS:
        lines += ["", f"{len(part.rows) - LONGEST_ROWS} more rows are in the JSON file."]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that is no markup in a cell of Markdown."""
    for mark in "\\`*_|<[":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


# --- pictures ----------------------------------------------------------------------------------


def picture(part: Part) -> str | None:
    """The SVG of a part, in the colours of the page around it; None where it has no chart."""
    series = [s for s in series_of(part) if s.x]
    if part.chart is None or not series:
        return None
    if part.chart.kind in ("bars", "timeline"):
        lines, height = _bars(part, series)
    else:
        lines, height = _plot(part, series)
    legend, above = _legend(series)
    body = "\n".join([*legend, f'<g transform="translate(0 {above})">', *lines, "</g>"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + above}" role="img" '
        f'style="width:100%;max-width:45rem;height:auto" font-family="inherit" font-size="12">\n'
        f"<title>{escape(part.title)}</title>\n{body}\n</svg>\n"
    )


class Scale:
    """Numbers to units of a drawing, on a linear or a logarithmic axis."""

    def __init__(self, values: list[float], start: float, end: float, log: bool, from_zero: bool = True):
        seen = [v for v in values if v > 0] if log else [*values, *([0.0] if from_zero else [])]
        low, high = min(seen, default=1.0), max(seen, default=1.0)
        self.log, self._start, self._end = log, start, end
        if log:
            self._low, self._high = math.log10(low) - 0.08, math.log10(high) + 0.08
        else:
            self._low, self._high = low, (high if high > low else low + 1) * 1.02

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        share = (value - self._low) / (self._high - self._low)
        return round(self._start + min(1.0, max(0.0, share)) * (self._end - self._start), 1)

    def ticks(self) -> list[float]:
        if not self.log:
            step = 10 ** math.floor(math.log10((self._high - self._low) / 4))
            step *= next(s for s in (1, 2, 5, 10) if (self._high - self._low) / (s * step) <= MOST_TICKS)
            first = math.ceil(self._low / step)
            return [i * step for i in range(first, math.floor(self._high / step) + 1)]
        span = self._high - self._low
        digits = (1, 2, 5) if span < 2 else (1,)
        every = max(1, round(span / MOST_TICKS))
        powers = range(math.floor(self._low), math.ceil(self._high) + 1, every)
        found = [d * 10.0**e for e in powers for d in digits]
        return [t for t in found if self._low <= math.log10(t) <= self._high]


def _bars(part: Part, series: list[Series]) -> tuple[list[str], float]:
    """Lying bars, a group for each value of x; of a timeline each group is one line."""
    chart = part.chart
    assert chart is not None
    names = list(dict.fromkeys(str(x) for s in series for x in s.x))
    left = min(300.0, LETTER * max(map(len, names)) + 12)
    numbers = [v for s in series for v in (*s.y, *s.start)]
    scale = Scale(numbers, left, WIDTH - 16, chart.log_y)
    column = next(c for c in part.columns if c.name == chart.y[0])
    thick = BAR if not series[0].start else 2 * BAR
    each = thick * (1 if series[0].start else len(series)) + GAP
    bottom = TOP + each * len(names)
    lines = _axis(scale, TOP, bottom, axis_title(part, chart.y))
    for at, name in enumerate(names):
        middle = TOP + each * at + each / 2
        lines.append(
            f'<text x="{left - 6}" y="{middle + 4:.1f}" text-anchor="end" fill="currentColor" '
            f'font-size="{11 if LETTER * len(name) < left else 8}">{escape(name)}</text>'
        )
    for i, s in enumerate(series):
        begins = s.start or (None,) * len(s.x)
        for x, value, begin in zip(s.x, s.y, begins, strict=True):
            if chart.log_y and value <= 0:
                continue
            y = TOP + each * names.index(str(x)) + GAP / 2 + (0 if begin is not None else thick * i)
            x0 = left if begin is None else scale(begin)
            width = max(0.5, scale(value) - x0)
            lines.append(
                _bar(x0, y, width, thick - 1, _color(i, series), f"{s.name} {study_figure(value, column)}")
            )
    return lines, bottom + 42


def _bar(x: float, y: float, width: float, height: float, color: str, told: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{color}">'
        f"<title>{escape(told)}</title></rect>"
    )


def _axis(scale: Scale, top: float, bottom: float, title: str) -> list[str]:
    """The horizontal axis, with lines over the plot."""
    lines = []
    for tick in scale.ticks():
        x = scale(tick)
        lines.append(f'<path d="M{x} {top}V{bottom}" stroke="currentColor" stroke-opacity="0.15"/>')
        lines.append(_text(x, bottom + 15, f"{tick:g}", "middle"))
    return [*lines, _text(WIDTH / 2, bottom + 33, title, "middle")]


def _plot(part: Part, series: list[Series]) -> tuple[list[str], float]:
    """Lines or points over numbers, or over words in their order."""
    chart = part.chart
    assert chart is not None
    left, right, bottom = 62.0, WIDTH - 16.0, HEIGHT - 44.0
    words = [str(x) for s in series for x in s.x if isinstance(x, str)]
    places = {name: float(i) for i, name in enumerate(dict.fromkeys(words))}
    points = [
        [(places[x] if isinstance(x, str) else float(x or 0), y) for x, y in zip(s.x, s.y, strict=True)]
        for s in series
    ]
    numbers = [x for each in points for x, _ in each]
    x_scale = Scale(numbers, left, right, chart.log_x and not places, from_zero=False)
    y_scale = Scale([y for each in points for _, y in each], bottom, TOP, chart.log_y)
    lines = _axis(x_scale, TOP, bottom, axis_title(part, (chart.x,))) if not places else []
    lines += [_text(x_scale(at), bottom + 15, name, "middle") for name, at in places.items()]
    for tick in y_scale.ticks():
        y = y_scale(tick)
        lines.append(f'<path d="M{left} {y}H{right}" stroke="currentColor" stroke-opacity="0.15"/>')
        lines.append(_text(left - 6, y + 4, f"{tick:g}", "end"))
    lines.append(_text(left, TOP - 12, axis_title(part, chart.y), "start"))
    column = next(c for c in part.columns if c.name == chart.y[0])
    for i, (s, each) in enumerate(zip(series, points, strict=True)):
        lines += _marks(s, each, (x_scale, y_scale), _color(i, series), chart.kind == "lines", column)
    return lines, HEIGHT


def _marks(
    s: Series, points: list[tuple[float, float]], scales: tuple[Scale, Scale], color: str, joined: bool,
    column: StudyColumn,
) -> Iterator[str]:  # fmt: skip
    x_scale, y_scale = scales
    there = [(x, y) for x, y in points if (y > 0 or not y_scale.log) and (x > 0 or not x_scale.log)]
    if joined:
        path = "L".join(f"{x_scale(x)} {y_scale(y)}" for x, y in sorted(there))
        yield f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'
    for x, y in there:
        told = f"{s.name} {x:g}: {study_figure(y, column)}"
        yield (
            f'<circle cx="{x_scale(x)}" cy="{y_scale(y)}" r="{2.6 if joined else 3.6}" fill="{color}">'
            f"<title>{escape(told)}</title></circle>"
        )


def _legend(series: list[Series]) -> tuple[list[str], float]:
    """Names of the series with their colours, and the height that they take."""
    if len(series) == 1:
        return [], 14.0
    lines, x, y = [], 10.0, 14.0
    for i, s in enumerate(series):
        width = 24 + LETTER * len(s.name)
        if x + width > WIDTH - 10 and x > 10:
            x, y = 10.0, y + 17
        lines.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{_color(i, series)}"/>')
        lines.append(_text(x + 14, y, s.name, "start"))
        x += width
    return lines, y + 22


def _color(i: int, series: list[Series]) -> str:
    return COLORS[i % len(COLORS)] if len(series) > 1 else STRONG


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'


def main() -> None:
    made = generated()
    for folder, pattern in ((PAGES, "*.md"), (RESULTS, "*.svg")):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(pattern):
            if old not in made:
                old.unlink()
    for path, text in made.items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
