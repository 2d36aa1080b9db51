"""The constants of the cost models, with their comments, as `convalgos info --constants` shows them.

A constant stands in the file that uses it, with a comment that says what it is and on which machine it was
found. They are read from there, so that none is written down twice.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from convalgos.gpu.device.machine import GpuMachine

KINDS = (int, float, tuple, dict)


@dataclass(frozen=True)
class Constant:
    """A module-level number, or several, of a file in `convalgos/cpu` or `convalgos/gpu`."""

    file: str
    name: str
    value: str
    comment: str


def constants(machine: GpuMachine | None = None) -> list[Constant]:
    """Those of every file, in the order of the files; on a GPU with those that were measured there."""
    found = _in_files()
    return [_on(machine, constant) for constant in found] if machine else [*found]


@cache
def _in_files() -> tuple[Constant, ...]:
    found: list[Constant] = []
    for package in ("cpu", "gpu"):
        for file, source in _sources(package, resources.files(f"convalgos.{package}")):
            found += in_source(file, source)
    return tuple(found)


def _sources(path: str, folder: Traversable) -> Iterator[tuple[str, str]]:
    """(path, text) of the Python files in a folder and in those below it, in the order of their names."""
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            yield from _sources(f"{path}/{entry.name}", entry)
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry.read_text("utf-8")


def _on(machine: GpuMachine, constant: Constant) -> Constant:
    """The constant by which a GPU is judged: the estimate of the file, or what was measured."""
    package, _, path = constant.file.removesuffix(".py").partition("/")
    name = f"{path}.{constant.name}"
    if package != "gpu" or name not in dict(machine.measured):
        return constant
    told = f"measured by gpu-check on {machine.measured_on}, before {constant.value}: {constant.comment}"
    return replace(constant, value=f"{machine.constant(name, 0.0):.4g}", comment=told)


def in_source(file: str, source: str) -> list[Constant]:
    """Assignments of numbers to names in capitals, each with its own comment or with that of its block."""
    behind, whole = _comments(source)
    found = []
    heading, last = "", 0
    for node in ast.parse(source).body:
        above = _above(whole, node.lineno)
        if above:
            heading = above
        elif node.lineno > last + 1:
            heading = ""  # an empty line ends the block that the comment was about
        last = node.end_lineno or node.lineno
        if not isinstance(node, ast.Assign) or not _is_number(node.value):
            continue
        names = [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
        own = " ".join(behind[n] for n in range(node.lineno, last + 1) if n in behind)
        comment = "; ".join(filter(None, (own, heading)))
        if all(name.isupper() for name in names) and comment:
            found.append(Constant(file, ", ".join(names), ast.unparse(node.value), comment))
    return found


def _is_number(node: ast.expr) -> bool:
    """Arithmetic of literals, or tuples and dicts of such."""
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_number, node.elts))
    if isinstance(node, ast.Dict):
        return bool(node.values) and all(map(_is_number, node.values))
    return isinstance(node, ast.Constant) and type(node.value) in KINDS


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """(line -> comment behind code, line -> comment that is the whole line)."""
    lines = iter(source.splitlines(keepends=True))
    behind: dict[int, str] = {}
    whole: dict[int, str] = {}
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            (behind if column else whole)[line] = token.string.lstrip("# ").rstrip()
    return behind, whole


def _above(whole: dict[int, str], line: int) -> str:
    """The comment lines that end right above a line."""
    block = []
    while line - 1 in whole and not whole[line - 1].startswith("---"):
        line -= 1
        block.append(whole[line])
    return " ".join(reversed(block))
