"""What there is: `convalgos algorithms` and `convalgos suites`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import click

from convalgos.api import planning
from convalgos.core.algorithm import Algorithm
from convalgos.core.errors import missing
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.core.tabular import count
from convalgos.select import registry
from convalgos.tools.bench.suites import CONVBENCH, Layer, suite, suites
from convalgos.tools.cli import completion
from convalgos.tools.console.text_output import console
from convalgos.tools.console.text_table import Column, print_table

PROBE = ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1")  # which those serve that lack nothing, or nearly all
SHORT = {"forward": "y", "backward_data": "dx", "backward_weights": "dw"}


@click.command("algorithms")
@click.argument("family", required=False, shell_complete=completion.families)
def algorithms_command(family: str | None) -> None:
    """List all algorithms, or those of a FAMILY: what they do, and whether they run here.

    Ids of a family that differ in their last part only share a line. What it computes is y, the forward
    pass, dx, the gradient of the input, or dw, that of the filter.
    """
    found = [
        a
        for a in planning.algorithms()
        if family is None or a.id == family or f"{a.id}.".startswith(f"{family}.")
    ]
    if not found:
        names = {n for a in planning.algorithms() for n in (a.device, a.family, a.id)}
        raise ValueError(f"{family!r} is no algorithm and no family{did_you_mean(family, sorted(names))}")
    columns = [
        *(
            Column("id", wraps=True),
            Column("what it does", wraps=True),
            Column("computes", wraps=True, spare=1),
        ),
        *(Column("dtypes", wraps=True, spare=2), Column("here", wraps=True)),
    ]
    groups: dict[tuple[str, ...], list[Algorithm]] = {}
    for algorithm in found:
        groups.setdefault((algorithm.family, *_facts(algorithm)), []).append(algorithm)
    rows = [(_ids(same), *facts[1:]) for facts, same in groups.items()]
    print_table(columns, rows, console())


@click.command("suites")
def suites_command() -> None:
    """List the suites of layers that are embedded, for bench, explain, find, training and tune."""
    columns = [Column("suite"), Column("layers", right=True), Column("kinds", wraps=True)]
    rows = [(name, str(len(layers)), counted_kinds(layers)) for name, layers in suites().items()]
    total = sum(map(len, suites().values()))
    rows.append(("all", str(total), "every layer of all of them"))
    images = (
        f"2-D, of {sum(layer.count for layer in suite(CONVBENCH)):,} layers of image models; see --sample"
    )
    print_table(columns, [*rows, (CONVBENCH, str(len(suite(CONVBENCH))), images)], console())


COMMANDS: tuple[click.Command, ...] = (algorithms_command, suites_command)


def counted_kinds(layers: Iterable[Layer]) -> str:
    """The kinds of layers, the most frequent first, with counts above one.

    Example:
        >>> kinds(suites()["alexnet"])
        '2-D: 3x3 grouped (2), 11x11 stride 4, 3x3, 5x5 grouped'
    """
    found = Counter(_kind(layer.problem) for layer in layers)
    parts: dict[str, list[str]] = {}
    for (ndim, what), times in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        parts.setdefault(ndim, []).append(f"{what} ({times})" if times > 1 else what)
    return "; ".join(f"{ndim}: {', '.join(what)}" for ndim, what in parts.items())


# --- inside ----------------------------------------------------------------------------------


def _kind(p: ConvProblem) -> tuple[str, str]:
    words = ["x".join(map(str, p.kernel)) if p.ndim > 1 else count(p.kernel[0], "tap")]
    if p.groups > 1:
        words.append("depthwise" if p.groups == p.C else "grouped")
    for word, sizes in (("stride", p.stride), ("dilation", p.dilation)):
        if set(sizes) != {1}:
            words.append(f"{word} {'x'.join(map(str, sizes)) if len(set(sizes)) > 1 else sizes[0]}")
    return f"{p.ndim}-D", " ".join(words)


def _facts(algorithm: Algorithm) -> tuple[str, str, str, str]:
    """What it does, the directions, the element types, and whether it runs here."""
    module = sys.modules[type(algorithm).__module__]
    sentence = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    directions = [SHORT[d] for d in DIRECTIONS if d in registry.facing(algorithm, d).directions]
    return sentence, " ".join(directions), " ".join(algorithm.dtypes), _here(algorithm)


def _here(algorithm: Algorithm) -> str:
    if absent := next(filter(None, map(missing, algorithm.needs)), None):
        return f"no: {absent}"
    if algorithm.device == "gpu":
        from convalgos.gpu import device

        return f"no: {reason}" if (reason := device.why_none()) else "yes"
    reason = algorithm.why_not(PROBE.replace(direction=algorithm.directions[0]))
    return f"no: {reason}" if reason and "not installed" in reason else "yes"  # what `needs` cannot see


def _ids(same: Sequence[Algorithm]) -> str:
    """The first id whole, of the others what differs."""
    first, *others = same
    return " ".join([first.id, *(f".{a.variant}" for a in others)])
