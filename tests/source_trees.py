"""The files of the package as trees of syntax: parsed once for all the tests of a process that read them."""

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "convalgos"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def trees() -> dict[Path, ast.Module]:
    found = {path: tree(path) for path in sorted(PACKAGE.rglob("*.py"))}
    gc.freeze()  # a million objects and more: to look for cycles among them took half a second each time
    return found
