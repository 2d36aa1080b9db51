"""What a chart of a study draws: series of points, taken from the columns of its table."""

from __future__ import annotations

from dataclasses import dataclass

from convalgos.studies.study import Part, StudyCell, StudyColumn


@dataclass(frozen=True)
class Series:
    """Points of one colour: x and y of each, in the order of the rows; of a timeline its beginnings, too."""

    name: str
    x: tuple[StudyCell, ...]
    y: tuple[float, ...]
    start: tuple[float, ...] = ()


def series_of(part: Part) -> list[Series]:
    """The series of a part's chart; points without both coordinates are left out."""
    chart = part.chart
    if chart is None:
        return []
    groups: dict[str, list[int]] = {}
    by = part.values(chart.by) if chart.by else [""] * len(part.rows)
    for row, group in enumerate(by):
        groups.setdefault("" if group is None else str(group), []).append(row)
    x = part.values(chart.x)
    if chart.kind == "timeline":
        starts, ends = (part.values(name) for name in chart.y)
        spans = {i for i, (a, b) in enumerate(zip(starts, ends, strict=True)) if None not in (a, b)}
        whole = {name: [i for i in rows if i in spans] for name, rows in groups.items()}
        return [
            Series(name, *_picked(x, ends, rows), start=_picked(x, starts, rows)[1])
            for name, rows in whole.items()
        ]
    found = []
    for name in chart.y:
        y = part.values(name)
        for group, rows in groups.items():
            told = ", ".join(filter(None, (group, name if len(chart.y) > 1 or not group else "")))
            xs, ys = _picked(x, y, rows)
            if xs:
                found.append(Series(told, xs, ys))
    return found


def axis_title(part: Part, names: tuple[str, ...]) -> str:
    """What stands beside an axis: the columns' name if it is one, and their unit."""
    columns = [column for column in part.columns if column.name in names]
    units = list(dict.fromkeys(c.unit for c in columns if c.unit))
    name = columns[0].name if len(columns) == 1 else ""
    return f"{name} ({', '.join(units)})" if name and units else name or ", ".join(units)


def study_figure(value: StudyCell, column: StudyColumn) -> str:
    """A cell as it is shown: significant digits, with an exponent only where it is needed."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:.0f}"
    if abs(value) < 1e-3 or abs(value) >= 1e7:
        return f"{value:.{max(1, column.digits - 1)}e}".replace("e-0", "e-").replace("e+0", "e+")
    short = f"{value:.{column.digits}g}"
    return f"{float(short):.0f}" if "e" in short else short


def heading_of(column: StudyColumn) -> str:
    """The name of a column with its unit."""
    return f"{column.name} ({column.unit})" if column.unit else column.name


def holds_told(holds: bool | None) -> str:
    """What is said of a claim."""
    return {True: "holds here", False: "does not hold here", None: "this machine cannot tell"}[holds]


def _picked(
    x: list[StudyCell], y: list[StudyCell], rows: list[int]
) -> tuple[tuple[StudyCell, ...], tuple[float, ...]]:
    there = [(x[i], v) for i in rows if x[i] is not None and isinstance(v := y[i], int | float)]
    return tuple(a for a, _ in there), tuple(b for _, b in there)
