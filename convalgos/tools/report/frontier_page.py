"""The page of one ranking: the error bound of each candidate against its time, in every number format."""

from __future__ import annotations

from convalgos.select.ranking import Candidate, Ranking
from convalgos.tools.report import html
from convalgos.tools.report.charts import log_axis
from convalgos.tools.report.html import NEUTRAL, Figure, label, layout
from convalgos.tools.report.terminal import digits

ABOUT = (
    "Each point is a candidate, by number format: how long a run takes, measured or predicted, conversions "
    "counted, and what its error is within, relative to max|y|. On the line lie those that nothing else "
    "beats in both."
)


def ranking_page(ranking: Ranking) -> str:
    """The whole file.

    Raises:
        Unsupported: Plotly is not installed, or nothing can serve the problem.
    """
    pick = ranking.candidates[0].id if ranking.candidates else "no algorithm can serve it"
    parts = [html.section("Error against time", ABOUT, html.chart(frontier(ranking), "error against time"))]
    rows = [
        (c.id, c.precision, *(_number(v) for v in (c.estimate_s * 1e6, c.prepare_s * 1e6, c.error_bound)))
        for c in ranking.candidates
    ]
    heading = ("algorithm", "format", "us", "prepare us", "error bound")
    parts.append(html.html_table(heading, rows, label="candidates", numeric=heading[2:]))
    parts += [html.details("Rejected", html.definitions({r.id: r.why_not for r in ranking.rejected}))]
    return html.page(str(ranking.problem), pick, parts)


def frontier(ranking: Ranking) -> Figure:
    """A chart of the candidates, and a line through `ranking.frontier`."""
    formats = dict.fromkeys(c.precision for c in ranking.candidates)
    color = html.colors(formats)
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(name),
            "x": [_bound(c) for c in ranking.candidates if c.precision == name],
            "y": [c.estimate_s * 1e6 for c in ranking.candidates if c.precision == name],
            "marker": {"color": color[name], "size": 10},
            "customdata": [_told(c) for c in ranking.candidates if c.precision == name],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        for name in formats
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [_bound(c) for c in ranking.frontier],
            "y": [c.estimate_s * 1e6 for c in ranking.frontier],
            "line": {"color": NEUTRAL, "width": 1.5, "dash": "dot"},
            "showlegend": False,
            "hoverinfo": "skip",
        }
    )
    look = layout(
        "error bound, relative to max|y|",
        "time of a run, us",
        xaxis=log_axis([_bound(c) for c in ranking.candidates]),
        yaxis=log_axis([c.estimate_s * 1e6 for c in ranking.candidates]),
        showlegend=True,
    )
    return {"data": data, "layout": look}


def _bound(candidate: Candidate) -> float:
    """Its error bound on a logarithmic axis: exact answers stand at a bit of float64."""
    return max(candidate.error_bound, 2.0**-53)


def _number(value: float) -> tuple[float, str]:
    return value, digits(value) if value >= 0.01 else f"{value:.1e}"


def _told(c: Candidate) -> str:
    return label(c.id, f"{digits(c.estimate_s * 1e6)} us, error within {c.error_bound:.1e}")
