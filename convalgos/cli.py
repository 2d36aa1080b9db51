"""The command line: `convalgos explain | find | info`, and the commands of the other files."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console

from convalgos import api, bench_commands, commands, info, measure, select, termination
from convalgos.algorithm import Unsupported
from convalgos.commands import DEVICE
from convalgos.history.commands import history_group
from convalgos.problem import ConvProblem
from convalgos.progress import bar, teller
from convalgos.site import site
from convalgos.suites import Layer
from convalgos.version import __version__

INVALID = 2  # exit status


class _Invalid(click.ClickException):
    exit_code = INVALID


class _Commands(click.Group):
    """Errors that the caller can do something about are one line, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with termination.terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as reason:
            click.echo("interrupted", err=True)
            sys.exit(termination.status(reason))
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise _Invalid(f"{where}{error.strerror or error}") from error
        except (ValueError, TypeError, Unsupported) as error:
            raise _Invalid(" ".join(str(error).split())) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="convalgos")
def main() -> None:
    """Convolution algorithms behind one selector that says why.

    A PROBLEM reads like "n8 c64 h56 w56 k64 r3 s3 p1 stride2 groups4": batch, channels, size, filters,
    kernel, padding and the rest, with w and s alone in 1-D, and d and t before them in 3-D.
    """


@main.command("explain")
@click.argument("problem", nargs=-1, required=True)
@click.option(
    "--workspace-limit", type=click.IntRange(0), metavar="BYTES", help="Scratch that a call may take."
)
@click.option("--max-rel-error", type=click.FloatRange(0), help="Largest error bound, relative to max|y|.")
@click.option("--deterministic", is_flag=True, help="The same bits on every run.")
@click.option("--strict-nan", is_flag=True, help="A NaN stays in its footprint: no Winograd, no FFT.")
@click.option("--allow", multiple=True, metavar="FAMILY", help="Only this family or id; may be repeated.")
@click.option("--deny", multiple=True, metavar="FAMILY", help="Not this family or id; may be repeated.")
@click.option("--expected-calls", type=click.IntRange(1), help="Runs that share the preparing of the filter.")
@click.option(
    "--weights-constant/--weights-change",
    default=True,
    help="Whether every call brings the same filter, or another, which is then prepared each time.",
)
@click.option(
    "--exhaustive", is_flag=True, help="With other settings that are worth a try, as cuDNN's plans."
)
@DEVICE
def explain_command(problem: tuple[str, ...], allow: tuple[str, ...], **limits: Any) -> None:
    """Show the ranking of a problem as the selector sees it, and why the others are rejected.

    With limits it also shows what each of them costs: the time of the pick / without this limit.
    """
    limits["allow"] = allow or None
    click.echo(str(api.explain(ConvProblem.parse(" ".join(problem)), **limits)))


@main.command("find")
@click.argument("problem", nargs=-1, required=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of timing.")
@DEVICE
def find_command(problem: tuple[str, ...], rounds: int, device: str) -> None:
    """Time and check every algorithm on a problem."""
    layer = Layer("", "problem", ConvProblem.parse(" ".join(problem)))
    with bar() as progress:
        task = progress.add_task("", total=1)
        ranking, judge = select.rank(layer.problem, device), measure.Judge(layer.problem, site(device))
        tell = teller(progress, task, 0, layer.name)
        table = measure.table(ranking, rounds=rounds, judge=judge, progress=tell)
    click.echo(str(table))


@main.command("info")
@click.option("--constants", "with_constants", is_flag=True, help="Also those of the cost models.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with bytes and seconds.")
def info_command(with_constants: bool, as_json: bool) -> None:
    """Show what a bug report needs: versions, the machine, where its figures came from, what is kept."""
    found = info.facts(api.algorithms(), with_constants=with_constants)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        info.show(found, Console())


for command in (*bench_commands.COMMANDS, *commands.COMMANDS, history_group):
    main.add_command(command)
