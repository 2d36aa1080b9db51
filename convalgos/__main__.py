from convalgos.cli import main

main(prog_name="python -m convalgos")
