"""The command line: what errors look like, exit statuses, `convalgos info`, and the commands of all files."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from convalgos.api import planning
from convalgos.core.errors import Unsupported
from convalgos.core.version import __version__
from convalgos.tools.cli import (
    bench_commands,
    explain_commands,
    info,
    listing_commands,
    record_commands,
    run_commands,
    select_commands,
    study_commands,
    warm_commands,
)
from convalgos.tools.cli.completion import HOW
from convalgos.tools.cli.history_commands import history_group
from convalgos.tools.console import termination
from convalgos.tools.console.exit_status import DONE, MEANING, REFUSED
from convalgos.tools.console.text_output import clean, console, flush_output, silence


class _Told(click.ClickException):
    """An error in one line."""

    exit_code = REFUSED

    def __init__(self, message: object):
        super().__init__(clean(" ".join(str(message).split())))


class _Commands(click.Group):
    """Errors that the caller can do something about are one line, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._carry_out(ctx)
        finally:
            flush_output()

    def _carry_out(self, ctx: click.Context) -> Any:
        try:
            with termination.terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as reason:
            click.echo("interrupted", err=True)
            sys.exit(termination.status(reason))
        except BrokenPipeError:  # who read the output has enough, as `| head`
            silence(sys.stdout)
            sys.exit(DONE)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise _Told(f"{where}{error.strerror or error}") from error
        except MemoryError as error:
            raise _Told(f"there is not enough memory: {error}") from error
        except (ValueError, TypeError, ImportError, Unsupported) as error:
            raise _Told(error) from error


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"{HOW}\n\n{MEANING}"
)
@click.version_option(__version__, prog_name="convalgos")
def main() -> None:
    """Convolution algorithms behind one selector that says why.

    A PROBLEM reads like "n8 c64 h56 w56 k64 r3 s3 p1 stride2 groups4": batch, channels, size, filters,
    kernel, padding and the rest, with w and s alone in 1-D, and d and t before them in 3-D.
    """


@main.command("info")
@click.option("--constants", "with_constants", is_flag=True, help="Also those of the cost models.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with bytes and seconds.")
def info_command(with_constants: bool, as_json: bool) -> None:
    """Show what a bug report needs: versions, the machine, where its figures came from, what is kept."""
    found = info.machine_facts(planning.algorithms(), with_constants=with_constants)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        info.show_facts(found, console())


for command in (
    *bench_commands.COMMANDS,
    *explain_commands.COMMANDS,
    *listing_commands.COMMANDS,
    *record_commands.COMMANDS,
    *run_commands.COMMANDS,
    *select_commands.COMMANDS,
    *study_commands.COMMANDS,
    *warm_commands.COMMANDS,
    history_group,
):
    main.add_command(command)
