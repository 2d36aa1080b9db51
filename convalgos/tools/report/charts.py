"""The charts of a bench, as Plotly figures made from the data of `convalgos.tools.bench.results`.

One colour stands for one family of algorithms in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from convalgos.core.problem import ConvProblem
from convalgos.select import registry
from convalgos.select.measure.table import Row
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench.results import LayerResult, LayerResults, geometric_mean
from convalgos.tools.report.html import NEUTRAL, STRONG, Figure, colors, label, layout
from convalgos.tools.report.terminal import digits, layer_name, short, timed_peers

OURS = "convalgos"
BAR, BAR_GAP, AROUND = 9, 9, 96  # pixels: of a bar, between two layers, and of legend and axis
RING = "rgba(255,255,255,0.8)"  # around a pick
LEAST_DECADES = 0.8  # of a logarithmic axis, which then has two ticks or more
DECADES = 3.5  # that a logarithmic axis covers at most with ticks between the powers of ten
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "pentagon", "star", "hexagon"),
    *("triangle-left", "triangle-right", "hourglass", "bowtie", "star-square", "hexagram", "octagon", "x"),
    *("star-triangle-up", "star-triangle-down", "star-diamond", "diamond-tall", "diamond-wide"),
    *("triangle-ne", "triangle-sw", "hexagon2", "arrow-up", "arrow-down", "triangle-nw"),
)
PEER_COLORS = (NEUTRAL, "#c3a365", "#6fa8a0", "#b58aa5", "#a5a86a")


def family_name(algorithm: str) -> str:
    """cpu.winograd.f4x3 -> winograd; a bench is of one device."""
    return algorithm.split(".")[1]


def family_colors(ids: Iterable[str]) -> dict[str, str]:
    """The families of some algorithms, each with the colour that it has on every page."""
    there = {family_name(i) for i in ids}
    return {name: color for name, color in colors(_families() | there).items() if name in there}


def _families() -> set[str]:
    return {family_name(a.id) for a in registry.algorithms()}


def marks(color: dict[str, str]) -> dict[str, Figure]:
    """The marker of each family: its colour, and a symbol, for those who do not see the colours."""
    symbols = dict(zip(sorted(_families() | color.keys()), _cycle(SYMBOLS), strict=False))
    return {name: {"color": of, "symbol": symbols[name]} for name, of in color.items()}


def ran(results: LayerResults) -> dict[str, str]:
    return family_colors(row.algorithm for r in results.layers for row in r.table.rows)


# --- against the peers -----------------------------------------------------------------------


def bars(results: LayerResults, layers: Sequence[LayerResult]) -> tuple[Figure, int]:
    """Effective GFLOP/s of the pick and of each peer, with the quartiles; and the height in pixels."""
    peers = [name for name in timed_peers(results) if any(r.peer_seconds(name) for r in layers)]
    several = len({r.layer.suite for r in layers}) > 1  # else the title names it
    names = [label(layer_name(results, r) if several else r.layer.name) for r in layers]
    picked = [Timing(r.pick_row.samples_s) if r.pick_row else None for r in layers]
    told = [
        label(f"{short(r.pick_row.algorithm)}: {digits(r.pick_row.median_s * 1e3)} ms", str(r.problem))
        if r.pick_row
        else ""
        for r in layers
    ]
    data = [_bar(OURS, names, layers, picked, told, STRONG)]
    for name, color in zip(peers, _cycle(PEER_COLORS), strict=False):
        timings = [next((p.timing for p in r.peers if p.name == name), None) for r in layers]
        told = [
            label(f"{digits(t.median * 1e3)} ms, {r.ratio(name) or 0:.2f} times the pick") if t else ""
            for t, r in zip(timings, layers, strict=True)
        ]
        data.append(_bar(name, names, layers, timings, told, color))
    height = AROUND + len(layers) * (BAR * (1 + len(peers)) + BAR_GAP)
    look = layout(
        "effective GFLOP/s", "", yaxis={"autorange": "reversed", "title": None}, barmode="group", bargap=0.25
    )
    return {"data": data, "layout": look}, height


def _bar(
    name: str,
    names: list[str],
    layers: Sequence[LayerResult],
    timings: Sequence[Timing | None],
    told: list[str],
    color: str,
) -> Figure:
    rates: list[float | None] = []
    above, below = [], []
    for r, t in zip(layers, timings, strict=True):
        fast, slow = t.quartiles if t else (1.0, 1.0)
        rate = r.problem.flops / t.median / 1e9 if t else None
        rates.append(rate)
        above.append(r.problem.flops / fast / 1e9 - rate if rate else 0)
        below.append(rate - r.problem.flops / slow / 1e9 if rate else 0)
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(name),
        "y": names,
        "x": rates,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1.5,
            "width": 3,
        },
        "marker": {"color": color},
        "customdata": told,
        "hovertemplate": "%{y}<br>%{x:.0f} GFLOP/s<br>%{customdata}",
    }


def by_network(results: LayerResults) -> tuple[Figure, int]:
    """Peer time / pick time: mean and range over the layers of each network; and the height in pixels."""
    peers = timed_peers(results)
    suites = list(dict.fromkeys(r.layer.suite for r in results.layers))
    data, seen = [], []
    for name, color in zip(peers, _cycle((STRONG, *PEER_COLORS[1:])), strict=False):
        ratios = {
            s: [q for r in results.layers if r.layer.suite == s and (q := r.ratio(name))] for s in suites
        }
        found = {suite: sorted(values) for suite, values in ratios.items() if values}
        means = [geometric_mean(values) or 0.0 for values in found.values()]
        seen += [v for values in found.values() for v in (values[0], values[-1])]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(name),
                "y": [label(suite) for suite in found],
                "x": means,
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [v[-1] - mean for v, mean in zip(found.values(), means, strict=True)],
                    "arrayminus": [mean - v[0] for v, mean in zip(found.values(), means, strict=True)],
                    "thickness": 1.5,
                    "width": 3,
                },
                "marker": {"color": color, "size": 9},
                "customdata": [label(f"{len(v)} layers, {v[0]:.2f} to {v[-1]:.2f}") for v in found.values()],
                "hovertemplate": "%{y}<br>%{x:.2f}<br>%{customdata}",
            }
        )
    look = layout(
        "time of the peer / time of the pick",
        "",
        xaxis=log_axis(seen),
        yaxis={
            "type": "category",
            "autorange": "reversed",
            "categoryarray": [label(suite) for suite in suites],
            "title": None,
            "dtick": 1,
        },
        scattermode="group",
        shapes=[_upright(1.0)],
    )
    return {"data": data, "layout": look}, AROUND + 24 * len(suites)


def _upright(x: float) -> Figure:
    """A line at a place of the first axis."""
    line = {"color": NEUTRAL, "width": 1.5, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def log_axis(values: Sequence[float]) -> Figure:
    """A logarithmic axis that reaches beyond all values, with ticks that say their whole number.

    At 1, 2 and 5 of each power of ten where few of these are covered, else at the powers.
    """
    low, high = min(values, default=1.0), max(values, default=1.0)
    span = math.log10(high / low)
    room = max(0.05 * span, (LEAST_DECADES - span) / 2)  # decades on either side
    start, end = math.log10(low) - room, math.log10(high) + room
    steps = (1, 2, 5) if end - start < DECADES else (1,)
    powers = range(math.floor(start), math.ceil(end) + 1)
    ticks = [(e, m) for e in powers for m in steps if start <= e + math.log10(m) <= end]
    return {
        "type": "log",
        "range": [start, end],
        "tickvals": [m * 10.0**e for e, m in ticks],
        "ticktext": [f"{m}e{e}" if e < -3 else f"{m * 10.0**e:.15g}" for e, m in ticks],
    }


# --- roofline --------------------------------------------------------------------------------


def roofline(results: LayerResults) -> Figure:
    """Effective GFLOP/s over operations per byte: every candidate on every layer, picks ringed."""
    machine = results.machine
    points = list(_points(results))
    data = []
    for name, mark in marks(ran(results)).items():
        mine = [(r, row) for r, row in points if family_name(row.algorithm) == name]
        data.append(_dots(results, name, mine, mark))
    intensities = [_intensity(r.problem) for r, _ in points]
    peaks = {r.problem.dtype: machine.peak_of(r.problem) for r in results.layers}
    knee = max(peaks.values()) / machine.bandwidth
    low, high = min(*intensities, knee) / 2, max(*intensities, knee) * 2
    for dtype, peak in sorted(peaks.items()):
        data.append(_line([low, high], [peak, peak], f"peak {dtype}"))
        for name, rate in (
            ("memory", machine.bandwidth),
            ("last cache", getattr(machine, "cache_bandwidth", None)),
        ):
            if rate and low < peak / rate:
                knee = min(peak / rate, high)
                data.append(_line([low, knee], [low * rate, knee * rate], name))
    rates = [r.problem.flops / row.median_s / 1e9 for r, row in points]
    look = layout(
        "operations per byte",
        "effective GFLOP/s",
        xaxis=log_axis([low, high]),
        yaxis=log_axis([*rates, *(v / 1e9 for v in peaks.values())]),
    )
    return {"data": data, "layout": look}


def _points(results: LayerResults) -> Iterator[tuple[LayerResult, Row]]:
    for r in results.layers:
        for row in r.table.rows:
            yield r, row


def _dots(results: LayerResults, name: str, points: list[tuple[LayerResult, Row]], mark: Figure) -> Figure:
    picked = [row.algorithm == r.pick for r, row in points]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": [_intensity(r.problem) for r, _ in points],
        "y": [r.problem.flops / row.median_s / 1e9 for r, row in points],
        "marker": {
            **mark,
            "size": [11 if p else 6 for p in picked],
            "opacity": [1.0 if p else 0.6 for p in picked],
            "line": {"color": RING, "width": [1 if p else 0 for p in picked]},
        },
        "customdata": [_told(results, r, row) for r, row in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _line(x: list[float], y: list[float], name: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [v / 1e9 for v in y],
        "name": label(name),
        "line": {"color": NEUTRAL, "width": 1.5, "dash": "dash" if "peak" not in name else "solid"},
        "showlegend": False,
        "hovertemplate": f"{label(name)}: %{{y:.0f}} GFLOP/s<extra></extra>",
    }


def _intensity(p: ConvProblem) -> float:
    """Operations per byte of x, w and y, each moved once."""
    return p.flops / max(1, p.x_bytes + p.w_bytes + p.y_bytes)


# --- regret and error ------------------------------------------------------------------------


def regrets(results: LayerResults) -> Figure:
    """Share of the layers whose regret is at most so large, with a point for each layer."""
    found = sorted((r.regret, layer_name(results, r), r) for r in results.layers if r.regret)
    shares = [100 * (i + 1) / len(found) for i in range(len(found))]
    data = {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": STRONG, "width": 1.5},
        "marker": {"color": STRONG, "size": 7},
        "x": [regret for regret, _, _ in found],
        "y": shares,
        "customdata": [
            label(
                name, f"{short(r.pick or '')}, the fastest is {short(r.oracle.algorithm) if r.oracle else ''}"
            )
            for _, name, r in found
        ],
        "hovertemplate": "%{customdata}<br>regret %{x:.2f}<extra></extra>",
    }
    top = max((regret for regret, _, _ in found), default=1.0)
    look = layout(
        "time of the pick / time of the fastest",
        "% of the layers",
        xaxis={"range": [0.99, max(1.1, top * 1.03)]},
        yaxis={"range": [0, 104]},
    )
    return {"data": [data], "layout": look}


def errors(results: LayerResults) -> Figure:
    """Speed relative to the fastest over the error, of every right candidate on every layer."""
    data = []
    seen: list[float] = []
    for name, mark in marks(ran(results)).items():
        mine = [
            (r, row)
            for r, row in _points(results)
            if family_name(row.algorithm) == name and r.oracle and 0 < row.error < math.inf
        ]
        dots = _dots(results, name, mine, mark)
        seen += [row.error for _, row in mine]
        dots["x"] = [row.error for _, row in mine]
        dots["y"] = [100 * r.oracle.median_s / row.median_s for r, row in mine if r.oracle]
        data.append(dots)
    look = layout(
        "largest error / largest output, against float64",
        "% of the fastest's speed",
        xaxis=log_axis(seen),
        yaxis={"range": [-3, 106]},
    )
    return {"data": data, "layout": look}


def _told(results: LayerResults, r: LayerResult, row: Row) -> str:
    wrong = ", over its bound" if row in r.wrong else ""
    return label(
        f"{short(row.algorithm)}{' (the pick)' if row.algorithm == r.pick else ''}",
        layer_name(results, r),
        str(r.problem),
        f"{digits(row.median_s * 1e3)} ms, {digits(r.problem.flops / row.median_s / 1e9)} GFLOP/s",
        f"error {row.error:.1e}{wrong}",
    )


def _cycle(values: Sequence[str]) -> Iterator[str]:
    while True:
        yield from values
