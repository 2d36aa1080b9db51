"""The JSON file of a study: everything that its answer holds, and what reads it back, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.cache_files import write_atomic
from convalgos.core.json_format import head, load, reading
from convalgos.studies.run import StudyResult, find_study
from convalgos.studies.study import Chart, Finding, NotRun, Part, StudyCell, StudyColumn
from convalgos.tools.bench.recorded_machine import machine_figures, read_machine

LONGEST = 100_000  # characters of a text


def save_study(result: StudyResult, path: Path) -> None:
    """Write a result; who reads meanwhile finds the old file or the new one whole."""
    write_atomic(path, json.dumps(study_as_json(result), indent=1, allow_nan=False) + "\n")


def study_as_json(result: StudyResult) -> dict[str, Any]:
    """All of it, for `json.dumps`; the words of the study itself are those of its file."""
    return head("study") | {
        "study": result.study.name,
        "command": result.command,
        "started": result.started,
        "seconds": round(result.seconds, 1),
        "threads": result.threads,
        "machine": machine_figures(result.machine),
        "versions": result.versions,
        "parts": [_part_as_json(part) for part in result.parts],
        "findings": [{"claim": f.claim, "here": f.here, "holds": f.holds} for f in result.findings],
        "not_run": [{"what": n.what, "needs": n.needs} for n in result.not_run],
    }


def read_study(path: str | Path) -> StudyResult:
    """The result in a file of `convalgos study --json`.

    Raises:
        ValueError: says what is wrong. OSError: the file cannot be read.
    """
    found = load(path, "study")
    with reading(path):
        return StudyResult(
            study=find_study(_text(found["study"])),
            machine=read_machine(found["machine"]),
            versions={_text(k): _text(v) for k, v in found["versions"].items()},
            command=_text(found["command"]),
            threads=strict_json.count_of("threads", found["threads"], 1, 1 << 20),
            started=_text(found["started"]),
            seconds=strict_json.number("seconds", found["seconds"], 0.0, 1e9),
            parts=[_part(part) for part in found["parts"]],
            findings=[
                Finding(_text(f["claim"]), _text(f["here"]), _holds(f["holds"])) for f in found["findings"]
            ],
            not_run=[NotRun(_text(n["what"]), _text(n["needs"])) for n in found["not_run"]],
        )


def _part_as_json(part: Part) -> dict[str, Any]:
    chart = part.chart
    return {
        "title": part.title,
        "text": part.text,
        "columns": [{"name": c.name, "unit": c.unit, "digits": c.digits} for c in part.columns],
        "rows": [list(row) for row in part.rows],
        "chart": None
        if chart is None
        else {
            "kind": chart.kind,
            "x": chart.x,
            "y": list(chart.y),
            "by": chart.by,
            "log_x": chart.log_x,
            "log_y": chart.log_y,
        },
    }


def _part(found: dict[str, Any]) -> Part:
    columns = tuple(
        StudyColumn(_text(c["name"]), _text(c["unit"]), strict_json.count_of("digits", c["digits"], 1, 17))
        for c in found["columns"]
    )
    rows = tuple(tuple(_cell(cell) for cell in row) for row in found["rows"])
    chart = None if found["chart"] is None else _chart(found["chart"])
    return Part(_text(found["title"]), _text(found["text"]), columns, rows, chart)


def _chart(found: dict[str, Any]) -> Chart:
    by = None if found["by"] is None else _text(found["by"])
    y = tuple(map(_text, found["y"]))
    return Chart(
        _text(found["kind"]), _text(found["x"]), y, by, found["log_x"] is True, found["log_y"] is True
    )


def _cell(value: Any) -> StudyCell:
    if value is None or isinstance(value, str):
        return value
    strict_json.number("a cell", value, -1e300, 1e300)
    number: StudyCell = value  # a whole one stays whole
    return number


def _holds(value: Any) -> bool | None:
    if value not in (True, False, None) or (isinstance(value, int) and type(value) is not bool):
        raise ValueError(f"holds={strict_json.excerpt(value)} must be true, false or null")
    return None if value is None else bool(value)


def _text(value: Any) -> str:
    return strict_json.text("a text", value, LONGEST)
