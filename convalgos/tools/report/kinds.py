"""Our speed relative to the best peer, by kind of layer and over all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.results import LayerResult, LayerResults, geometric_mean
from convalgos.tools.bench.suites.sampling import WEIGHTS, layer_weight
from convalgos.tools.console.text_table import Cell, Column

FEWEST = 10  # layers of several kinds that are summed up
EVEN = 0.95  # of the best peer's speed: what is less is slower, and not for what a run varies by
HEADINGS = {"unique": "every layer alike", "layers": "by layers", "macs": "by products"}


def layer_kind(p: ConvProblem) -> str:
    """What networks call such a layer."""
    if p.groups > 1:
        return "depthwise" if p.groups == p.C else "grouped"
    if p.is_pointwise:
        return "1x1 on one pixel" if math.prod(p.spatial) == 1 else "1x1"
    return "dense"


def best_ratio(result: LayerResult) -> float | None:
    """Time of the fastest peer, in any layout, / time of the pick."""
    ratios = [found for peer in result.peers if (found := result.ratio(peer.name))]
    return min(ratios, default=None)


def kinds_table(results: LayerResults) -> tuple[list[Column], list[tuple[Cell, ...]]] | None:
    """Each kind, and all; None where layers are few, of one kind, or beside no peer."""
    found = [(r, ratio) for r in results.layers if (ratio := best_ratio(r))]
    kinds: dict[str, list[tuple[LayerResult, float]]] = {}
    for r, ratio in found:
        kinds.setdefault(layer_kind(r.problem), []).append((r, ratio))
    if len(found) < FEWEST or len(kinds) < 2:
        return None
    columns = [
        Column("kind", wraps=True),
        *(Column(name, right=True) for name in ("layers", "x best\npeer", "least")),
        *(Column(name, right=True, spare=1) for name in ("faster\n%", f"below\n{EVEN}", "regret")),
    ]
    rows = [_row(name, kinds[name]) for name in sorted(kinds, key=lambda name: -len(kinds[name]))]
    return columns, [*rows, _row("all", found)]


def weighted(results: LayerResults) -> list[str]:
    """The geometric mean beside the best peer, with every layer alike and by what `sampling` weighs by."""
    found = [(r, ratio) for r in results.layers if (ratio := best_ratio(r))]
    means = [f"{HEADINGS[by]} {_mean(found, by):.2f}" for by in WEIGHTS if found]
    return [f"time of the best peer / of the pick: {', '.join(means)}"] if means else []


def _row(name: str, found: Sequence[tuple[LayerResult, float]]) -> tuple[Cell, ...]:
    ratios = [ratio for _, ratio in found]
    faster, slower = sum(r > 1 for r in ratios), sum(r < EVEN for r in ratios)
    regret = geometric_mean(r.regret for r, _ in found)
    return (
        name,
        str(len(found)),
        f"{geometric_mean(ratios):.2f}",
        f"{min(ratios):.2f}",
        f"{100 * faster / len(ratios):.0f}",
        str(slower),
        f"{regret:.2f}" if regret else "n/a",
    )


def _mean(found: Sequence[tuple[LayerResult, float]], by: str) -> float:
    weights = [layer_weight(r.layer, by) for r, _ in found]
    logs = sum(w * math.log(ratio) for w, (_, ratio) in zip(weights, found, strict=True))
    return math.exp(logs / (sum(weights) or 1.0))
