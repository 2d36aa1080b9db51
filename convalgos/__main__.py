"""`python -m convalgos`: the command line."""

from convalgos.tools.cli.main import main

main(prog_name="python -m convalgos")
