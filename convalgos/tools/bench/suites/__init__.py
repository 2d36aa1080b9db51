"""Layers of real networks as data: the embedded suites, and tables of the same format.

`convbench` stands beside the suites: 8,298 distinct convolutions of 1,017 public image models, with how many
layers are like each, for samples of what networks are made of (see `sampling`). The facts are those of the
table of ConvBench (Alvarenga et al. 2024, arXiv:2407.10730; MIT licence), for one image.

A table is a CSV file whose first line names `COLUMNS`; sizes of several dimensions are written `56x56`,
one per spatial dimension:

    suite,name,ndim,N,C,spatial,K,kernel,stride,pad,dilation,groups
    resnet50,res2_3x3,2,8,64,56x56,64,3x3,1x1,1x1,1x1,1
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from convalgos.core.problem import ConvProblem

COLUMNS = ("suite", "name", "ndim", "N", "C", "spatial", "K", "kernel", "stride", "pad", "dilation", "groups")
ARGUMENT_COLUMN = {  # what a refused argument of ConvProblem is called in the table
    "x_shape": "spatial",
    "w_shape": "kernel",
    "padding": "pad",
    "stride": "stride",
    "dilation": "dilation",
    "groups": "groups",
}


@dataclass(frozen=True)
class Layer:
    """One convolution of a network, and how many of its layers are the same (where that is known)."""

    suite: str
    name: str
    problem: ConvProblem
    count: int = 1


@cache
def suites() -> dict[str, tuple[Layer, ...]]:
    """The embedded suites by name, in the order of their table.

    Example:
        >>> from convalgos.tools.bench.suites import suites
        >>> [str(layer.problem) for layer in suites()["resnet50"]][1]
        'n8 c64 h56 w56 k64 r1 s1'
    """
    text = (files("convalgos.tools.bench.suites") / "layers.csv").read_text("utf-8")
    found: dict[str, list[Layer]] = {}
    for layer in read_lines("layers.csv", text.splitlines()):
        found.setdefault(layer.suite, []).append(layer)
    return {name: tuple(layers) for name, layers in found.items()}


CONVBENCH = "convbench"


def names() -> list[str]:
    """Of everything that `suite` knows."""
    return [*suites(), CONVBENCH]


def suite(name: str) -> tuple[Layer, ...]:
    """The layers of an embedded suite, or of convbench.

    Raises:
        KeyError: there is none of this name; `names` lists them.

    Example:
        >>> layers = suite("convbench")
        >>> len(layers), str(layers[1].problem), layers[1].count
        (8298, 'n1 c1024 h16 w16 k256 r1 s1', 554)
    """
    return _convbench() if name == CONVBENCH else suites()[name]


@cache
def _convbench() -> tuple[Layer, ...]:
    packed = (files("convalgos.tools.bench.suites") / "convbench.csv.gz").read_bytes()
    rows = csv.DictReader(gzip.decompress(packed).decode().splitlines())
    return tuple(
        Layer(CONVBENCH, f"{row['example']}_{i}", ConvProblem.parse(row["problem"]), int(row["layers"]))
        for i, row in enumerate(rows, 1)
    )


def read_table(path: Path) -> tuple[Layer, ...]:
    """The layers of a CSV table.

    Raises:
        ValueError: names the file, the line and the column. OSError: the file cannot be read.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8: {error}") from None
    return read_lines(str(path), lines)


def read_lines(source: str, lines: Iterable[str]) -> tuple[Layer, ...]:
    """`read_table` on lines already read; `source` is what errors call them."""
    reader = csv.reader(lines)
    header = [word.strip() for word in next(reader, [])]
    if sorted(header) != sorted(COLUMNS):
        absent = [c for c in COLUMNS if c not in header]
        extra = [c for c in header if c not in COLUMNS]
        what = f"is missing {', '.join(absent)}" if absent else f"has {', '.join(extra)} too many"
        raise ValueError(f"{source}, line 1: the header must be {','.join(COLUMNS)}; it {what}")
    layers = []
    for row in reader:
        where = f"{source}, line {reader.line_num}"
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(f"{where}: has {len(row)} columns; the header has {len(header)}")
        layers.append(_layer(where, dict(zip(header, map(str.strip, row), strict=True))))
    if not layers:
        raise ValueError(f"{source} lists no layers")
    return tuple(layers)


def _layer(where: str, row: dict[str, str]) -> Layer:
    """One row of a table; `where` is its file and line."""

    def sizes(column: str, count: int) -> tuple[int, ...]:
        parts = row[column].split("x")
        if len(parts) != count or not all(part.isdecimal() for part in parts):
            valid = "a whole number" if count == 1 else f"{count} whole numbers joined by x"
            raise ValueError(f"{where}, column {column}: {row[column]!r} must be {valid}")
        return tuple(map(int, parts))

    for column in ("suite", "name"):
        if not row[column]:
            raise ValueError(f"{where}, column {column}: must not be empty")
    (ndim,) = sizes("ndim", 1)
    if not 1 <= ndim <= 3:
        raise ValueError(f"{where}, column ndim: {ndim} must be 1, 2 or 3")
    n, c, k, groups = (sizes(column, 1)[0] for column in ("N", "C", "K", "groups"))
    if not groups or c % groups:
        raise ValueError(f"{where}, column groups: {groups} must be at least 1 and divide C={c}")
    spatial, kernel, stride, padding, dilation = (
        sizes(column, ndim) for column in ("spatial", "kernel", "stride", "pad", "dilation")
    )
    try:
        problem = ConvProblem((n, c, *spatial), (k, c // groups, *kernel), stride, padding, dilation, groups)
    except ValueError as error:
        column = ARGUMENT_COLUMN[str(error).partition("=")[0]]
        raise ValueError(f"{where}, column {column}: {error}") from None
    return Layer(row["suite"], row["name"], problem)
