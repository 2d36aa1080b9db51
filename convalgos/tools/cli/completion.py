"""What a shell completes: suites, ids of algorithms, peers and devices, beside files.

click does the rest; `_CONVALGOS_COMPLETE=bash_source convalgos` prints what switches it on. Nothing is
measured while a user waits for Tab.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

HOW = """\b
Completion of commands, suites, ids and peers by Tab; for good in ~/.bashrc or ~/.zshrc:
  eval "$(_CONVALGOS_COMPLETE=bash_source convalgos)"      zsh: zsh_source
  _CONVALGOS_COMPLETE=fish_source convalgos | source       fish"""


def complete_target(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of suites, then files."""
    from convalgos.tools.bench.suites import names

    found = _beginning(["all", *names()], begun) if not context.params.get("target") else []
    return found or [CompletionItem(begun, type="file")]


def ids(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Ids of algorithms."""
    from convalgos.select import registry

    return _beginning((a.id for a in registry.algorithms()), begun)


def families(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Families of algorithms, and ids."""
    from convalgos.select import registry

    return _beginning(sorted({n for a in registry.algorithms() for n in (a.family, a.id)}), begun)


def peers(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of peers, the last of a list with commas."""
    from convalgos.tools.bench.peers import peers_on

    there = peers_on(context.params.get("device", "cpu"))
    before, comma, last = begun.rpartition(",")
    names = ["none", *dict.fromkeys(n for p in there for n in (p.package, p.name))]
    return [CompletionItem(before + comma + item.value) for item in _beginning(names, last)]


def devices(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The CPU, and the GPU by its short name."""
    return _beginning(["cpu", "cuda", "cuda:0"], begun)


def study_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of studies."""
    from convalgos.studies.run import studies

    return _beginning(studies(), begun)


def _beginning(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]
