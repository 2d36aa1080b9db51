"""The command line, called within the process of a test."""

from click.testing import CliRunner

from convalgos.tools.cli.main import main


def run(*arguments, status=0):
    """What `convalgos ARGUMENTS` prints and returns; it must end with this status."""
    result = CliRunner(catch_exceptions=False).invoke(main, list(map(str, arguments)))
    assert result.exit_code == status, result.output
    return result
