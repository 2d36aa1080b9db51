"""A study in a terminal: its question first, then each part of the answer as it comes."""

from __future__ import annotations

from rich.console import Console

from convalgos.studies import run
from convalgos.studies.run import StudyResult
from convalgos.studies.series import heading_of, holds_told, study_figure
from convalgos.studies.study import Answer, Finding, NotRun, Part, Study
from convalgos.tools.console.text_output import cell
from convalgos.tools.console.text_table import Column, print_table


def list_studies(console: Console) -> None:
    """Print all studies with their questions."""
    rows = [(study.name, study.question) for study in run.studies().values()]
    print_table([Column("study"), Column("question", wraps=True)], rows, console)


def show_question(study: Study, console: Console) -> None:
    """Print what is asked, and what to look at in the answer."""
    console.print(cell(study.question, style="bold"))
    for heading, words in (("Source", study.source), ("Method", study.method), ("Look at", study.look_at)):
        console.print(cell(f"{heading}: {' '.join(words.split())}"))
    console.print()


def show_answer(answer: Answer, console: Console) -> None:
    """Print a part of the answer."""
    if isinstance(answer, Part):
        _show_part(answer, console)
    elif isinstance(answer, Finding):
        style = {True: "green", False: "red", None: ""}[answer.holds]
        console.print(cell(f"Claim: {answer.claim}"))
        console.print(cell(f"Here: {answer.here}"))
        told = holds_told(answer.holds)
        console.print(
            cell(f"It {told}." if answer.holds is not None else f"{told.capitalize()}.", style=style)
        )
        console.print()
    else:
        console.print(cell(not_run_told(answer), style="dim"))
        console.print()


def show_end(result: StudyResult, console: Console) -> None:
    """Print where it was measured, and for how long."""
    told = f"{result.study.name}: {result.seconds:.0f} s on {result.threads} threads of {result.machine.name}"
    console.print(cell(told))


def not_run_told(missing: NotRun) -> str:
    """What was not measured, in one line."""
    return f"not run: {missing.what}, which needs {missing.needs}"


def _show_part(part: Part, console: Console) -> None:
    console.print(cell(part.title, style="bold"))
    if part.text:
        console.print(cell(" ".join(part.text.split())))
    columns = []
    for i, column in enumerate(part.columns):
        words = all(isinstance(row[i], str | None) for row in part.rows)
        heading = heading_of(column).replace(" (", "\n(") if column.unit else column.name
        columns.append(Column(heading, right=not words, wraps=words, spare=0 if words else i))
    rows = [
        [study_figure(value, column) for value, column in zip(row, part.columns, strict=True)]
        for row in part.rows
    ]
    print_table(columns, rows, console)
