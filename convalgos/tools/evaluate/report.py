"""What `convalgos select evaluate` shows: tables for a terminal, and a page with the scatter of picks.

The page is one file that needs nothing else; each point of its plots tells its layer when pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from convalgos.tools.console.text_output import cell
from convalgos.tools.console.text_table import Column, print_table
from convalgos.tools.evaluate.model_errors import ModelError
from convalgos.tools.evaluate.recorded_tables import Recorded
from convalgos.tools.evaluate.regret import Evaluation, PickRegret, geometric
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
NETWORKS = 30  # that are listed: those with the largest mean regret
REGRETS = (0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)  # that are named on an axis
WORST_COLUMNS = ("regret", "pick", "fastest", "layer", "problem")
NOISE_COLUMNS = ("picks of", "mean", "P95", "max", "ties with the fastest")
MODELS = "Cost models, on candidates within 3x of the fastest"
MODEL_COLUMNS = ("family", "times", "predicted / measured", "scatter")
KIND_MODEL_COLUMNS = ("algorithm", "kind", "times", "predicted / measured", "P10", "P90")

Row = tuple[str, ...]
COLUMNS = (
    *("selector", "layers", "mean", "P50", "P95", "max"),
    *("within 5 %", "within 2x", "right", "gap closed", "lost ms"),
)


def summary_rows(evaluations: Sequence[Evaluation], single: Evaluation) -> list[Row]:
    """A row for each selector, and one for the best single algorithm; columns as in COLUMNS."""
    return [
        (
            e.name if e is not single else f"only {e.name}",
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


def noise_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """Regret as it is timed: that of each selector, and of what the other half of the samples picks."""

    def row(name: str, values: np.ndarray, right: str) -> Row:
        figures = f"{geometric(values):.3f}", f"{np.quantile(values, 0.95):.2f}", f"{values.max():.2f}"
        return (name, *figures, right)

    floor = row("the other half: the noise floor", evaluations[0].floors, "")
    return [floor, *(row(e.name, e.timed, f"{e.right:.0%}") for e in evaluations)]


def kind_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """A row for each kind: its layers, its noise floor, and what KINDS says of each selector."""
    groups = [e.by_kind() for e in evaluations]
    order = sorted(groups[0], key=lambda kind: -len(groups[0][kind].judged))
    return [
        (
            kind,
            str(len(groups[0][kind].judged)),
            f"{geometric(groups[0][kind].floors):.3f}",
            *(
                f"{g[kind].mean:.3f}, {g[kind].quantile(0.95):.2f}, {g[kind].regrets.max():.2f}, "
                f"{g[kind].right:.0%}"
                for g in groups
            ),
        )
        for kind in order
    ]


def kind_columns(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    return ("kind", "layers", "noise floor", *(e.name for e in evaluations))


def network_rows(evaluations: Sequence[Evaluation]) -> list[Row]:
    """A row for each network: its name, its layers, and mean and largest regret of each selector.

    Of more than NETWORKS those with the largest regret of the first selector.
    """
    groups = [e.by_group() for e in evaluations]
    names = list(groups[0])
    if len(names) > NETWORKS:
        names = sorted(names, key=lambda name: -groups[0][name].mean)[:NETWORKS]
    return [
        (
            name,
            str(len(groups[0][name].judged)),
            *(f"{g[name].mean:.3f}, {g[name].regrets.max():.2f}" for g in groups),
        )
        for name in names
    ]


def worst_rows(evaluation: Evaluation) -> list[Row]:
    """The picks that cost most, relative to the fastest."""
    ranked = sorted(evaluation.judged, key=lambda j: -j.regret)[:WORST]
    return [
        (f"{j.regret:.2f}", j.pick, j.case.oracle, _name(j), str(j.case.layer.problem))
        for j in ranked
        if not j.right
    ]


def model_rows(errors: Sequence[ModelError]) -> tuple[tuple[str, ...], list[Row]]:
    """The headings and a row for each family, and where they are told apart for each kind of layers in it."""
    if not any(m.kind for m in errors):
        return MODEL_COLUMNS, [(m.name, str(m.count), f"{m.bias:.2f}", f"{m.scatter:.2f}") for m in errors]
    return KIND_MODEL_COLUMNS, [
        (m.name, m.kind or "all", str(m.count), f"{m.bias:.2f}", f"{m.low:.2f}", f"{m.high:.2f}")
        for m in errors
    ]


def show_evaluation(
    evaluations: Sequence[Evaluation], single: Evaluation, errors: Sequence[ModelError], console: Console
) -> None:
    """All of it on a terminal."""
    for _, title, words, headings, rows in _tables(evaluations, single, errors):
        console.print(cell(f"{title}. {words}", style="italic"))
        print_table(_columns(headings), rows, console)


def evaluation_page(
    evaluations: Sequence[Evaluation],
    single: Evaluation,
    errors: Sequence[ModelError],
    tables: Sequence[Recorded],
) -> str:
    """The page."""
    machines = "; ".join(f"{t.machine.summary}, convalgos {t.versions.get('convalgos', '?')}" for t in tables)
    parts = [
        figure_tiles(
            (f"mean regret of {e.name}", f"{e.mean:.3f}", f"worst {e.regrets.max():.2f}") for e in evaluations
        )
    ]
    for e, title, words, headings, rows in _tables(evaluations, single, errors):
        shown = [_page_table(headings, rows)]
        if e is not None:
            words = f"{PLOT} {words}"
            shown.insert(0, chart(_scatter(e), f"regret of each pick of {e.name}", height=460))
        parts.append(section(title, words, *shown))
    return page(TITLE, machines, parts)


# --- inside ----------------------------------------------------------------------------------

TITLE = "Selectors on recorded tables"
NOISE = (
    "Time of the pick over the least time in the same half of the samples. The noise floor is that of the "
    "candidate which the other half finds to be the fastest; regret, above, is the one over the other."
)
EXPLAINED = (
    "Regret is the time of the pick over that of the fastest candidate, which is chosen on one half of the "
    "samples and scored on the other. A pick that cannot be told from the fastest counts as right."
)
KINDS = "Mean, P95 and largest regret, and the share of picks that are right."
WORST_WORDS = "Those with the largest regret."
PLOT = "A point for each layer: the regret over the time of the fastest."
MODEL_WORDS = (
    "Geometric mean of predicted / measured time, which is less than 1 where a model promises too much, and "
    "how far it varies."
)


Shown = tuple[Evaluation | None, str, str, tuple[str, ...], list[Row]]


def _tables(
    evaluations: Sequence[Evaluation], single: Evaluation, errors: Sequence[ModelError]
) -> list[Shown]:
    """All tables: whose picks a plot shows beside it, title, explanation, headings and rows."""
    names = tuple(e.name for e in evaluations)
    first = {e.selector: e for e in reversed(evaluations)}  # of several that learned from other parts
    networks = "Mean and largest regret"
    if len(evaluations[0].by_group()) > NETWORKS:
        networks += f", of the {NETWORKS} with the largest mean of {names[0]}"
    networks += "."
    return [
        (None, "How far picks are from the fastest", EXPLAINED, COLUMNS, summary_rows(evaluations, single)),
        (None, "How much of that is noise", NOISE, NOISE_COLUMNS, noise_rows(evaluations)),
        (None, "By kind of layer", KINDS, kind_columns(evaluations), kind_rows(evaluations)),
        (None, "By network", networks, ("network", "layers", *names), network_rows(evaluations)),
        *(
            (e, f"Picks of {e.name}", WORST_WORDS, WORST_COLUMNS, worst_rows(e))
            for e in reversed(first.values())
        ),
        (None, MODELS, MODEL_WORDS, *model_rows(errors)),
    ]


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
