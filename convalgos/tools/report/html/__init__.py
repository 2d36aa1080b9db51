"""Pages: one self-contained HTML file with charts by Plotly, and tables that can be sorted and filtered.

Whatever is data is escaped here, once: callers pass plain text, except where `Html` says that it is markup.
A page loads nothing: style, script and Plotly are inside, and its content policy forbids the rest. Colours
follow the reader's light or dark scheme by style alone: charts, too, turn light where a page is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from convalgos.core.errors import Unsupported, missing

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
# Of middle lightness: they stand out from white and from black. They are apart from
# each other in OKLab, also to eyes that do not tell red from green.
COLORS = (
    *("#768ba8", "#b3260e", "#a3c003", "#fd7dcd", "#8e35a1", "#b57c27", "#a881fe", "#237261", "#5468de"),
    *("#dea08b", "#43a979", "#70b7fa", "#e900f8", "#e40984", "#ff3b00", "#8900ff", "#072eff", "#00d8be"),
    *("#835c69", "#008900", "#c46f89", "#00de00", "#5828c0", "#e0b8f8", "#c8d090", "#685010", "#305090"),
    *("#980058",),
)
STRONG, NEUTRAL = "#4c7be0", "#8b93a3"
SEEN_AT_ONCE = 10  # rows of a table that needs no filter
Figure = dict[str, Any]  # Plotly's: {"data": [...], "layout": {...}}


class Html(str):
    """Text that is markup already."""


def markup(value: object) -> Html:
    """A value as markup: escaped, unless it is markup."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def page(title: str, subtitle: str, parts: Iterable[Html]) -> str:
    """The whole file.

    Raises:
        Unsupported: Plotly is not installed.
    """
    if reason := missing("plotly"):
        raise Unsupported(f"a page with charts {reason}")
    from plotly.offline import get_plotlyjs

    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{markup(title)}</title>
<style>
{_asset("style.css")}</style>
</head>
<body>
<header><h1>{markup(title)}</h1><p>{markup(subtitle)}</p></header>
<main>
{body}
</main>
<script>{get_plotlyjs()}</script>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""


def section(title: str, about: str, *parts: Html) -> Html:
    """A heading, a sentence that says how to read what follows, and that."""
    return Html(f"<section><h2>{markup(title)}</h2><p>{markup(about)}</p>{''.join(parts)}</section>")


def figure_tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """The figures that matter most: (what, value, remark) each."""
    found = "".join(
        f"<div><dt>{markup(what)}</dt><dd>{markup(value)}<small>{markup(remark)}</small></dd></div>"
        for what, value, remark in figures
    )
    return Html(f'<dl class="tiles">{found}</dl>')


def chart(figure: Figure, label: str, *, height: int = 420, title: str = "") -> Html:
    """A chart that is as wide as there is room; `label` tells it to those who cannot see it."""
    data = json.dumps(figure, allow_nan=False).replace("<", "\\u003c")
    heading = f"<figcaption>{markup(title)}</figcaption>" if title else ""
    return Html(
        f'<figure class="chart" role="img" aria-label="{markup(label)}">{heading}'
        f'<div class="plot" style="height:{height}px"></div>'
        f'<script type="application/json">{data}</script></figure>'
    )


def grid(parts: Iterable[Html]) -> Html:
    """Small charts beside each other where there is room."""
    return Html(f'<div class="grid">{"".join(parts)}</div>')


def html_table(
    heading: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    label: str,
    numeric: Iterable[str] = (),
    wide: Iterable[str] = (),
) -> Html:
    """A table whose columns sort when their heading is pressed; a field filters its rows where they are many.

    Args:
        rows: cells in the order of the heading: text, markup, None for an empty one, or a pair (number to
            sort by, what is shown).
        numeric: headings of the columns that hold numbers.
        wide: headings of the columns that may break into lines.
    """
    numbers, breaking = set(numeric), set(wide)
    kinds = [f"{'number' if h in numbers else 'words'}{' wide' if h in breaking else ''}" for h in heading]
    head = "".join(
        f'<th scope="col" class="{kind}" aria-sort="none"><button type="button">{markup(h)}</button></th>'
        for h, kind in zip(heading, kinds, strict=True)
    )
    body = [f"<tr>{''.join(_cell(v, kind) for v, kind in zip(row, kinds, strict=True))}</tr>" for row in rows]
    words = (
        f'<label>filter <input type="search" placeholder="words, all of which a row has"'
        f' aria-label="filter {markup(label)}"></label> <output></output>'
    )
    return Html(
        f'<div class="table">{words if len(body) > SEEN_AT_ONCE else ""}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{markup(label)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div></div>"
    )


def definitions(pairs: Mapping[str, object]) -> Html:
    """Names and what they stand for."""
    found = "".join(f"<dt>{markup(k)}</dt><dd>{markup(v)}</dd>" for k, v in pairs.items())
    return Html(f'<dl class="pairs">{found}</dl>')


def details(title: str, *parts: Html) -> Html:
    """What is shown when its title is pressed."""
    return Html(f"<details><summary>{markup(title)}</summary>{''.join(parts)}</details>")


def code(words: str) -> Html:
    return Html(f"<pre><code>{markup(words)}</code></pre>")


def warning(lines: Iterable[str]) -> Html:
    """A list of what went wrong."""
    return Html(f'<ul class="warning">{"".join(f"<li>{markup(line)}</li>" for line in lines)}</ul>')


def layout(x: str, y: str, **more: Any) -> Figure:
    """A Plotly layout with two titled axes; colours of text and lines are those of the style."""
    axis = {"automargin": True, "zeroline": False, "fixedrange": False}
    found: Figure = {
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "title": {"text": x, "standoff": 12}},
        "yaxis": {**axis, "title": {"text": y, "standoff": 12}},
    }
    for name, value in more.items():
        found[name] = {**found[name], **value} if isinstance(found.get(name), dict) else value
    return found


def label(*lines: str) -> str:
    """Plain text for a chart, which would take parts of it for markup."""
    return "<br>".join(escape(line) for line in lines)


def colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, the same for the same names."""
    return {name: COLORS[i % len(COLORS)] for i, name in enumerate(sorted(set(names)))}


def _cell(value: object, kind: str) -> str:
    order = ""
    if isinstance(value, tuple):
        number, value = value
        order = f' data-order="{float(number)!r}"'
    return f'<td class="{kind}"{order}>{"" if value is None else markup(value)}</td>'


@cache
def _asset(name: str) -> str:
    return (files("convalgos.tools.report.html") / name).read_text("utf-8")
