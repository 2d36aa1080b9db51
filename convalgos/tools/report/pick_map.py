"""Maps of picks: which algorithm is picked, by channels and by size of the map, for each kind of layer."""

from __future__ import annotations

import math

from convalgos.core.problem import ConvProblem
from convalgos.tools.bench.results import LayerResult, LayerResults
from convalgos.tools.report.charts import family_name, log_axis, marks, ran
from convalgos.tools.report.html import Figure, label, layout
from convalgos.tools.report.terminal import digits, layer_name, short

FEW = 3  # layers that fill a map of their own; kinds of fewer share one
OTHERS = "others"
HEIGHT = 320  # pixels of a map
FIRST = 4  # channels of a first layer, at most
APART = 1.07  # a layer beside one of the same sizes, on the axis of sizes


def map_kind(p: ConvProblem) -> str:
    """What layers are shown beside each other in one map."""
    if p.ndim != 2:
        return f"{p.ndim}-D"
    if p.groups > 1:
        return "depthwise" if p.groups == p.C else "grouped"
    if p.C <= FIRST:
        return "first layers"
    if max(p.stride) > 1:
        return "strided"
    taps = max(p.kernel)
    return "1x1" if taps == 1 else "up to 3x3" if taps <= 3 else "larger than 3x3"


def picks(results: LayerResults) -> list[tuple[str, Figure, int]]:
    """(title, figure, height in pixels): for each kind of layer, the pick over channels and sizes of maps."""
    color = ran(results)
    kinds: dict[str, list[LayerResult]] = {}
    for r in results.layers:
        if r.pick is not None:
            kinds.setdefault(map_kind(r.problem), []).append(r)
    by_count = sorted(kinds, key=lambda name: len(kinds[name])) if len(kinds) > 1 else []
    others: list[LayerResult] = []
    while by_count and (len(kinds[by_count[0]]) < FEW or 0 < len(others) < FEW):
        others += kinds.pop(by_count.pop(0))
    if others:
        kinds[OTHERS] = others
    ordered = sorted(kinds.items(), key=lambda item: (item[0] == OTHERS, item[0]))
    return [(name, _map(results, found, color), HEIGHT) for name, found in ordered]


def _map(results: LayerResults, layers: list[LayerResult], color: dict[str, str]) -> Figure:
    """A point for each layer; those of the same sizes stand side by side."""
    together: dict[tuple[float, float], list[LayerResult]] = {}
    for r in layers:
        together.setdefault((_size(r.problem), _channels(r.problem)), []).append(r)
    at: dict[int, float] = {}
    for (size, _), found in together.items():
        for i, r in enumerate(found):
            at[id(r)] = size * APART ** (i - (len(found) - 1) / 2)
    data: list[Figure] = []
    for name, mark in marks(color).items():
        mine = [r for r in layers if family_name(r.pick or "") == name]
        if not mine:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(name),
                "x": [at[id(r)] for r in mine],
                "y": [_channels(r.problem) for r in mine],
                "marker": {**mark, "size": 12, "opacity": 0.9},
                "customdata": [_pick_told(results, r) for r in mine],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    look = layout(
        "side of the map (geometric mean)",
        "channels (mean of in and out)",
        xaxis=log_axis(list(at.values())),
        yaxis=log_axis([_channels(r.problem) for r in layers]),
        showlegend=True,
    )
    return {"data": data, "layout": look}


def _channels(p: ConvProblem) -> float:
    """Geometric mean of those that a layer reads and of those that it writes; at least 1."""
    return max(1.0, math.sqrt(p.C * p.K))


def _size(p: ConvProblem) -> float:
    """Geometric mean of the sizes of the map that a layer reads; at least 1."""
    return max(1.0, float(math.prod(p.spatial) ** (1 / p.ndim)))


def _pick_told(results: LayerResults, r: LayerResult) -> str:
    row = r.pick_row
    speed = f"{digits(row.median_s * 1e3)} ms" if row else "failed"
    regret = f", regret {r.regret:.2f}" if r.regret else ""
    return label(layer_name(results, r), str(r.problem), f"{short(r.pick or '')}: {speed}{regret}")
