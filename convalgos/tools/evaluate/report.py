"""What `convalgos select evaluate` shows: tables for a terminal, and a page with the scatter of picks.

The page is one file that needs nothing else; each point of its plots tells its layer when pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from convalgos.tools.console.text_table import Column, print_table
from convalgos.tools.evaluate.recorded_tables import Recorded
from convalgos.tools.evaluate.regret import Evaluation, ModelError, PickRegret
from convalgos.tools.report.charts import family_colors, family_name, log_axis, marks
from convalgos.tools.report.html import (
    Figure,
    Html,
    chart,
    figure_tiles,
    html_table,
    label,
    layout,
    page,
    section,
)
from convalgos.tools.report.terminal import digits

WORST = 10  # picks that are listed
REGRETS = (0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)  # that are named on an axis
WORST_COLUMNS = ("regret", "pick", "fastest", "layer", "problem")
MODELS = "Cost models, on candidates within 3x of the fastest"
MODEL_COLUMNS = ("family", "times", "predicted / measured", "scatter")

Row = tuple[str, ...]
COLUMNS = (
    *("selector", "layers", "mean", "P50", "P95", "max"),
    *("within 5 %", "within 2x", "right", "gap closed", "lost ms"),
)


def summary_rows(evaluations: Sequence[Evaluation], single: Evaluation) -> list[Row]:
    """A row for each selector, and one for the best single algorithm; columns as in COLUMNS."""
    return [
        (
            e.selector if e is not single else f"only {e.selector}",
            str(len(e.judged)),
            f"{e.mean:.3f}",
            f"{e.quantile(0.5):.2f}",
            f"{e.quantile(0.95):.2f}",
            f"{e.regrets.max():.2f}",
            f"{e.within(1.05):.0%}",
            f"{e.within(2):.0%}",
            f"{e.right:.0%}",
            f"{e.gap_closed(single):.0%}",
            digits(e.lost_s * 1e3),
        )
        for e in (*evaluations, single)
    ]


def network_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """A row for each network: its name, its layers, and mean and largest regret of each selector."""
    groups = [e.by_group() for e in evaluations]
    return [
        (
            name,
            str(len(found.judged)),
            *(f"{g[name].mean:.3f}, {g[name].regrets.max():.2f}" for g in groups),
        )
        for name, found in groups[0].items()
    ]


def worst_rows(evaluation: Evaluation) -> list[Row]:
    """The picks that cost most, relative to the fastest."""
    ranked = sorted(evaluation.judged, key=lambda j: -j.regret)[:WORST]
    return [
        (f"{j.regret:.2f}", j.pick, j.case.oracle, _name(j), str(j.case.layer.problem))
        for j in ranked
        if not j.right
    ]


def model_rows(errors: Sequence[ModelError]) -> list[Row]:
    return [(m.family, str(m.count), f"{m.bias:.2f}", f"{m.scatter:.2f}") for m in errors]


def show_evaluation(
    evaluations: Sequence[Evaluation], single: Evaluation, errors: Sequence[ModelError], console: Console
) -> None:
    """All of it on a terminal."""
    names = tuple(e.selector for e in evaluations)
    tables = [
        ("regret: time of the pick / time of the fastest", COLUMNS, summary_rows(evaluations, single)),
        ("mean and largest regret by network", ("network", "layers", *names), network_rows(evaluations)),
    ]
    tables += [(f"worst picks of {e.selector}", WORST_COLUMNS, worst_rows(e)) for e in evaluations]
    for title, headings, rows in (*tables, (MODELS, MODEL_COLUMNS, model_rows(errors))):
        print_table(_columns(headings), rows, console, title)


def evaluation_page(
    evaluations: Sequence[Evaluation],
    single: Evaluation,
    errors: Sequence[ModelError],
    tables: Sequence[Recorded],
) -> str:
    """The page."""
    machines = "; ".join(f"{t.machine.summary}, convalgos {t.versions.get('convalgos', '?')}" for t in tables)
    names = tuple(e.selector for e in evaluations)
    parts = [
        figure_tiles(
            (f"mean regret of {e.selector}", f"{e.mean:.3f}", f"worst {e.regrets.max():.2f}")
            for e in evaluations
        ),
        section(
            "How far picks are from the fastest",
            EXPLAINED,
            _page_table(COLUMNS, summary_rows(evaluations, single)),
        ),
    ]
    parts += [
        section(
            f"Picks of {e.selector}",
            "A point for each layer: the regret over the time of the fastest. The table lists the worst.",
            chart(_scatter(e), f"regret of each pick of {e.selector}", height=460),
            _page_table(WORST_COLUMNS, worst_rows(e)),
        )
        for e in evaluations
    ]
    parts += [
        section(
            "By network",
            "Mean and largest regret.",
            _page_table(("network", "layers", *names), network_rows(evaluations)),
        ),
        section(
            MODELS,
            "Geometric mean of predicted / measured time, and the typical factor around it.",
            _page_table(MODEL_COLUMNS, model_rows(errors)),
        ),
    ]
    return page(TITLE, machines, parts)


# --- inside ----------------------------------------------------------------------------------

TITLE = "Selectors on recorded tables"
EXPLAINED = (
    "Regret is the time of the pick over that of the fastest candidate, which is chosen on one half of the "
    "samples and scored on the other. A pick that cannot be told from the fastest counts as right."
)


def _name(j: PickRegret) -> str:
    layer = j.case.layer
    return f"{layer.suite}/{layer.name}" if layer.suite else layer.name


def _columns(headings: Sequence[str]) -> list[Column]:
    """The first stands to the left; words of others go on in the next line, and the last go first."""
    return [
        Column(heading, right=i > 0, wraps=heading not in COLUMNS, spare=i if headings is COLUMNS else 0)
        for i, heading in enumerate(headings)
    ]


def _page_table(heading: Sequence[str], rows: Sequence[Row]) -> Html:
    numbers = [h for i, h in enumerate(heading) if all(_number(row[i]) is not None for row in rows)]
    cells = [[v if (n := _number(v)) is None else (n, v) for v in row] for row in rows]
    return html_table(heading, cells, label=heading[0], numeric=numbers, wide=("problem",))


def _number(words: str) -> float | None:
    """The number that a cell begins with."""
    try:
        return float(words.partition(",")[0].rstrip("%"))
    except ValueError:
        return None


def _scatter(e: Evaluation) -> Figure:
    """Regret over the time of the fastest, both logarithmic, a point for each layer."""
    data: list[Figure] = []
    for name, mark in marks(family_colors(j.pick for j in e.judged)).items():
        mine = [j for j in e.judged if family_name(j.pick) == name]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(name),
                "x": [j.case.seconds(j.case.oracle) * 1e3 for j in mine],
                "y": [j.regret for j in mine],
                "marker": {**mark, "size": 9, "opacity": 0.8},
                "customdata": [
                    label(
                        f"{_name(j)}: {j.pick}, regret {j.regret:.2f}",
                        f"fastest {j.case.oracle}, {digits(j.case.seconds(j.case.oracle) * 1e3)} ms",
                        str(j.case.layer.problem),
                    )
                    for j in mine
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    times = [j.case.seconds(j.case.oracle) * 1e3 for j in e.judged]
    look = layout(
        "ms of the fastest",
        "regret",
        xaxis=log_axis(times),
        yaxis={"type": "log", "tickvals": REGRETS, "ticktext": [f"{r:g}" for r in REGRETS]},
    )
    return {"data": data, "layout": look}
