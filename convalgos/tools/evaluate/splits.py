"""What a ranker that learns must not have seen: the parts into which recorded layers are split."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from convalgos.tools.bench.suites import CONVBENCH
from convalgos.tools.evaluate.recorded_tables import RecordedLayer
from convalgos.tools.report.kinds import layer_kind

HELD_OUT = ("network", "kind", "random", "machine")
DEFAULT = HELD_OUT[:3]
FOLDS = 10  # parts at random, and of networks that are many
MANY = 40  # networks up to which each is a part of its own


class Placed(Protocol):
    """What a split looks at."""

    @property
    def layer(self) -> RecordedLayer: ...
    @property
    def machine(self) -> Any: ...


def network_of(layer: RecordedLayer) -> str:
    """The network of a layer; of convbench the kin of its networks, by the word with which their names begin.

    Those of one kin, such as `resnet18` and `resnet50`, have much the same layers.
    """
    if layer.suite == CONVBENCH and (word := re.match("[a-z]+", layer.name, re.IGNORECASE)):
        return word[0].lower()
    return layer.suite or layer.name


def parts_of(cases: Sequence[Placed], held_out: str, seed: int = 0) -> list[Hashable]:
    """The part of each case. No two parts have a network, a kind or a machine in common.

    Args:
        held_out: one of HELD_OUT. Networks that are many are dealt to FOLDS parts of about one size.
        seed: of those at random.

    Raises:
        ValueError: there is only one part, and nothing to learn from.
    """
    if held_out not in HELD_OUT:
        raise ValueError(f"held_out={held_out!r} must be one of {', '.join(map(repr, HELD_OUT))}")
    if held_out == "machine":
        parts: list[Hashable] = [case.machine for case in cases]
        if len(set(parts)) < 2:
            raise ValueError("held_out='machine' needs the tables of two machines")
    elif held_out == "kind":
        parts = [layer_kind(case.layer.problem) for case in cases]
    elif held_out == "network":
        parts = _dealt([network_of(case.layer) for case in cases])
    else:
        parts = [i % FOLDS for i in range(len(cases))]
        random.Random(seed).shuffle(parts)
    return parts


def _dealt(networks: Sequence[str]) -> list[Hashable]:
    """Networks as they are where they are few; else the largest first, each to the fold that has least."""
    counts = Counter(networks)
    if len(counts) <= MANY:
        return list(networks)
    sizes = [0] * FOLDS
    fold: dict[str, int] = {}
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        fold[name] = min(range(FOLDS), key=lambda i: sizes[i])
        sizes[fold[name]] += count
    return [fold[name] for name in networks]
