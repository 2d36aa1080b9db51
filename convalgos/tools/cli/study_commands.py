"""The command that answers questions by running them: `convalgos study`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from convalgos.core.errors import Unsupported, missing
from convalgos.tools.cli.completion import study_names
from convalgos.tools.cli.thread_option import threads_asked
from convalgos.tools.console.text_output import console, echo

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("study")
@click.argument("name", required=False, shell_complete=study_names)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="gpu: what runs there, too.",
)
@click.option("--quick", is_flag=True, help="A first answer, within a minute.")
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Of all libraries; all cores by default."
)
@click.option("--html", "html_path", type=FILE, metavar="FILE", help="Write a page with charts and tables.")
@click.option("--json", "json_path", type=FILE, metavar="FILE", help="Save everything measured.")
@click.option(
    "--chainer-python",
    metavar="PATH",
    help="A Python that has Chainer, for the study `functions` (CONVALGOS_CHAINER_PYTHON).",
)
def study_command(
    name: str | None,
    device: str,
    quick: bool,
    threads: int | None,
    html_path: Path | None,
    json_path: Path | None,
    chainer_python: str | None,
) -> None:
    """Answer the question of the study NAME by running it; without NAME, list the studies.

    Each part of the answer is shown as it comes, and saved at once. A study ends within ten minutes. It tells
    what the original work found beside what is found here, and what this machine lacks.
    """
    from convalgos.studies import run, study_file, study_page, study_table
    from convalgos.studies.study import Answer, StudySetting

    if name is None:
        study_table.list_studies(console())
        return
    study = run.find_study(name)
    if html_path is not None and (reason := missing("plotly")):
        raise Unsupported(f"--html {reason}")
    if chainer_python is not None:
        os.environ["CONVALGOS_CHAINER_PYTHON"] = chainer_python
    result = run.new_result(study, device, threads_asked(threads), shlex.join(["convalgos", *sys.argv[1:]]))
    shown = console()

    def show(answer: Answer) -> None:
        study_table.show_answer(answer, shown)
        if json_path is not None:
            study_file.save_study(result, json_path)

    study_table.show_question(study, shown)
    setting = StudySetting(
        quick=quick, device=device, threads=result.threads, tell=lambda what: echo(f"... {what}", err=True)
    )
    try:
        run.run_study(result, setting, show)
    finally:  # also of one that was interrupted
        if json_path is not None:
            study_file.save_study(result, json_path)
        if html_path is not None:
            study_page.write_page(result, html_path)
    study_table.show_end(result, shown)


COMMANDS: tuple[click.Command, ...] = (study_command,)
