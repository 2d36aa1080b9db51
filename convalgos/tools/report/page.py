"""The page of a bench: one HTML file, made from the data of `convalgos.tools.bench.results`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from convalgos.select.measure.table import Row
from convalgos.tools.bench.results import LayerResult, LayerResults, geometric_mean
from convalgos.tools.report import charts
from convalgos.tools.report.html import (
    Html,
    chart,
    code,
    definitions,
    details,
    figure_tiles,
    grid,
    html_table,
    markup,
    page,
    section,
    warning,
)
from convalgos.tools.report.pick_map import picks
from convalgos.tools.report.terminal import NOTABLE_REGRET, digits, figures_of, layer_name, short, timed_peers

LAYERS_PER_CHART = 24

Cell = str | tuple[float, str] | None


def results_page(results: LayerResults) -> str:
    """The text of an HTML file: layers of networks by every algorithm and peer.

    Raises:
        Unsupported: Plotly is not installed.
    """
    groups: dict[str, list[LayerResult]] = {}
    for r in results.layers:
        if r.table.rows:
            groups.setdefault(r.layer.suite, []).append(r)
    parts = [figure_tiles(_tiles(results))]
    if results.complaints():
        parts.append(warning(results.complaints()))
    if groups:
        several = len(groups) > 1
        by_layer = _by_layer(results, groups)
        parts += [_by_network(results)] if several and timed_peers(results) else []
        parts += [*([] if several else [by_layer]), *_overviews(results), *([by_layer] if several else [])]
    if results.layers:
        parts.append(_tables(results))
    parts.append(_how(results))
    return page(_title(results), f"{results.machine.name}, {results.started}", parts)


# --- parts -----------------------------------------------------------------------------------


def _overviews(results: LayerResults) -> list[Html]:
    """Charts of all layers at once."""
    return [
        section(
            "Roofline",
            "Every algorithm on every layer; large points are picks. The lines are the peak and the "
            "bandwidths of this machine. Rates count the operations of the direct convolution: a transform "
            "that needs fewer may be above them.",
            chart(charts.roofline(results), "roofline of every algorithm on every layer", height=520),
        ),
        section(
            "What was picked",
            "The pick by channels and by size of the map. A point is a layer; point at it for its figures.",
            grid(
                chart(figure, f"picks of {title}", height=height, title=title)
                for title, figure, height in picks(results)
            ),
        ),
        section(
            "Regret",
            "How many of the picks cost at most so many times the fastest candidate.",
            chart(charts.regrets(results), "distribution of the regret", height=320),
        ),
        section(
            "Error against speed",
            "The largest error of an output against the float64 answer, and the speed relative to that of "
            "the fastest on the same layer.",
            chart(charts.errors(results), "error against speed of every algorithm", height=420),
        ),
    ]


def _title(results: LayerResults) -> str:
    suites = list(dict.fromkeys(r.layer.suite for r in results.layers if r.layer.suite))
    if len(suites) > 3:
        return f"convalgos bench: {len(results.layers)} layers of {len(suites)} networks"
    return f"convalgos bench: {', '.join(suites) or 'a problem' if results.layers else 'nothing'}"


def _tiles(results: LayerResults) -> list[tuple[str, str, str]]:
    found = [
        ("layers", str(len(results.layers)), f"{sum(len(r.table.rows) for r in results.layers)} timings")
    ]
    regrets = {layer_name(results, r): r.regret for r in results.layers if r.regret}
    if regrets:
        worst = max(regrets, key=regrets.__getitem__)
        mean = geometric_mean(regrets.values())
        found.append(("mean regret", f"{mean:.3f}", f"worst {regrets[worst]:.2f}, {worst}"))
    for name in timed_peers(results):
        ratios = {layer_name(results, r): q for r in results.layers if (q := r.ratio(name))}
        least = min(ratios, key=ratios.__getitem__)
        mean = geometric_mean(ratios.values())
        found.append((f"faster than {name}", f"{mean:.2f}x", f"least {ratios[least]:.2f}, {least}"))
    return found


def _by_network(results: LayerResults) -> Html:
    figure, height = charts.by_network(results)
    return section(
        "Speed by network",
        "Time of each peer over that of the pick: the geometric mean over the layers of a network, the "
        "whiskers from the least to the largest. Right of 1 the pick is faster.",
        chart(figure, "speed of the picks against the peers by network", height=height),
    )


def _by_layer(results: LayerResults, groups: dict[str, list[LayerResult]]) -> Html:
    """A chart for each network, or for every so many layers of one."""
    parts = []
    for suite, found in groups.items():
        for i in range(0, len(found), LAYERS_PER_CHART):
            figure, height = charts.bars(results, found[i : i + LAYERS_PER_CHART])
            title = suite if len(groups) > 1 else ""
            parts.append(
                chart(figure, f"speed of the picks and of the peers {suite}", height=height, title=title)
            )
    beside = ", ".join(timed_peers(results)) or "no other library"
    return section(
        "Speed by layer",
        f"Effective GFLOP/s of the pick beside {beside}, timed in turns. Whiskers span the middle half of "
        "the samples.",
        grid(parts) if len(parts) > 1 else parts[0],
    )


def _tables(results: LayerResults) -> Html:
    peers = timed_peers(results)
    hosts = any(row.host_s is not None for r in results.layers for row in r.table.rows)
    timing = ("ms", "±%", *(("host us",) if hosts else ()), "GFLOP/s")
    last = ("error", "error bound", "MB")
    layers = ("layer", "problem", "pick", "ms", *peers, "regret", "fastest", *timing[1:], "% of peak", *last)
    candidates = ("layer", "algorithm", *timing, "times the fastest", *last)
    words = ("layer", "problem", "pick", "fastest", "algorithm")
    return section(
        "All figures",
        "Press a heading to sort. Peers are their time over that of the pick: above 1 the pick is faster.",
        html_table(
            layers,
            [_row(results, r, peers, hosts) for r in results.layers],
            label="layers",
            numeric=set(layers).difference(words),
            wide=("problem",),
        ),
        details(
            "every algorithm on every layer",
            html_table(
                candidates,
                [row for r in results.layers for row in _candidates(results, r, hosts)],
                label="algorithms",
                numeric=set(candidates).difference(words),
            ),
        ),
    )


def _row(results: LayerResults, r: LayerResult, peers: Sequence[str], hosts: bool) -> list[Cell]:
    """A layer: what was picked, and how it did."""
    row, oracle = r.pick_row, r.oracle
    share = 100 * r.problem.flops / row.median_s / results.machine.peak_of(r.problem) if row else 0.0
    ratios = [r.ratio(name) for name in peers]
    seconds, *rest = _timing(r, row.median_s if row else None, row.spread if row else 0.0, row, hosts)
    return [
        layer_name(results, r),
        str(r.problem),
        _mark(short(row.algorithm), bad=row in r.wrong)
        if row
        else _mark("failed" if r.pick else "none", bad=True),
        seconds,
        *((q, _mark(f"{q:.2f}", bad=q < 1, good=q >= 1)) if q else None for q in ratios),
        (r.regret, _mark(f"{r.regret:.2f}", bad=r.regret > NOTABLE_REGRET)) if r.regret else None,
        short(oracle.algorithm) if oracle else None,
        *rest,
        (share, f"{share:.0f}") if row else None,
        *_last(row),
    ]


def _candidates(results: LayerResults, r: LayerResult, hosts: bool) -> Iterator[list[Cell]]:
    """What was timed on a layer, the peers among it, and what failed."""
    name = layer_name(results, r)
    least = r.oracle.median_s if r.oracle else math.nan

    def times(seconds: float) -> Cell:
        return (seconds / least, f"{seconds / least:.2f}") if r.oracle else None

    for row in r.table.rows:
        told = _mark(short(row.algorithm), bad=row in r.wrong)
        timing = _timing(r, row.median_s, row.spread, row, hosts)
        yield [name, told, *timing, times(row.median_s), *_last(row)]
    for p in r.peers:
        if p.timing:
            timing = _timing(r, p.timing.median, p.timing.spread, None, hosts)
            yield [name, p.name, *timing, times(p.timing.median), _error(p.error), None, None]
    for failure in r.table.failed:
        told = _mark(f"{short(failure.id)} failed: {failure.why_not}", bad=True)
        yield [name, told, *_timing(r, None, 0.0, None, hosts), None, None, None, None]


def _how(results: LayerResults) -> Html:
    """What it takes to do it again."""
    parts = [code(results.command), definitions(figures_of(results.machine) | results.versions)]
    if results.skipped:
        skipped = definitions(results.skipped)
        parts.append(details(f"{len(results.skipped)} nodes of the model were skipped", skipped))
    return section("Machine, versions, and how to do it again", "The command that made this page:", *parts)


# --- cells -----------------------------------------------------------------------------------


def _mark(words: str, *, bad: bool = False, good: bool = False) -> Html:
    kind = "bad" if bad else "good" if good else ""
    return Html(f'<span class="{kind}">{markup(words)}</span>') if kind else markup(words)


def _timing(r: LayerResult, seconds: float | None, spread: float, row: Row | None, hosts: bool) -> list[Cell]:
    """Milliseconds, half the spread, where it is known of others the host's time, and the effective rate."""
    host = row.host_s if row else None
    between: list[Cell] = [(host, digits(host * 1e6)) if host is not None else None] if hosts else []
    if seconds is None:
        return [None, None, *between, None]
    rate = r.problem.flops / seconds
    return [
        (seconds, digits(seconds * 1e3)),
        (spread, f"{50 * spread:.0f}"),
        *between,
        (rate, digits(rate / 1e9)),
    ]


def _last(row: Row | None) -> list[Cell]:
    """Error, its bound, and the workspace."""
    if row is None:
        return [None, None, None]
    return [
        _error(row.error),
        _error(row.error_bound),
        (row.workspace_bytes, digits(row.workspace_bytes / 1e6)),
    ]


def _error(error: float | None) -> Cell:
    return None if error is None else (error, f"{error:.1e}")
