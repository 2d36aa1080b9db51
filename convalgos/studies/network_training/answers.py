"""The parts of the study's answer, made from what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from convalgos.studies.network_training.layer_efficiency import PASSES, LayerUse
from convalgos.studies.network_training.words import BY_GEMM, CUDNN, OURS, STAGES, StageSeconds
from convalgos.studies.study import Chart, Finding, Part, StudyCell, StudyColumn
from convalgos.tools.bench.suites import Layer

if TYPE_CHECKING:
    from convalgos.studies.network_training.memory import LayerMemory

MEGA = 1e6
UNTOLD = "(the figures of the original are not at hand)"

Steps = Mapping[tuple[str, str], tuple[int, StageSeconds]]  # (network, way) -> batch, its stages
Uses = Mapping[tuple[Layer, int], Sequence[LayerUse]]  # (layer, batch) -> what each library makes of it


def stages_part(steps: Steps) -> Part:
    """Milliseconds of each stage of each network by each way."""
    rows: list[tuple[StudyCell, ...]] = []
    for (network, way), (batch, seconds) in steps.items():
        total = sum(seconds)
        rows.append((network, way, batch, *(1e3 * s for s in seconds), 1e3 * total, batch / total))
    named = [*(StudyColumn(name) for name in ("network", "convolutions by")), StudyColumn("batch")]
    timed = [StudyColumn(name, "ms") for name in (*STAGES, "step")]
    text = (
        "The step in the middle of those timed. On a CPU the input lies where it is computed with: the copy "
        "is an empty call."
    )
    return Part("The six stages of a step", text, (*named, *timed, StudyColumn("images/s")), tuple(rows))


def data_flow_part(steps: Steps) -> Part:
    """The same stages one after the other, each way beginning at zero."""
    rows = []
    for (network, way), (_, seconds) in steps.items():
        at = 0.0
        for name, took in zip(STAGES, seconds, strict=True):
            rows.append((f"{network}: {way}", name, 1e3 * at, 1e3 * (at + took)))
            at += took
    columns = (
        StudyColumn("step"),
        StudyColumn("stage"),
        StudyColumn("begin", "ms"),
        StudyColumn("end", "ms"),
    )
    chart = Chart("timeline", "step", ("begin", "end"), by="stage")
    return Part("The data flow of a step", "When each stage begins and ends.", columns, tuple(rows), chart)


def step_finding(steps: Steps) -> Finding:
    """What share the convolutions' stages have, and what convalgos makes of a step."""
    shares, ratios = [], {}
    for (network, way), (_, seconds) in steps.items():
        named = dict(zip(STAGES, seconds, strict=True))
        shares.append((named["forward"] + named["backward"]) / sum(seconds))
        library, _, layout = way.partition(", ")
        if library == OURS:
            ratios[f"{network} {layout}"] = sum(steps[network, f"torch, {layout}"][1]) / sum(seconds)
    told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return Finding(
        f"A training step has six stages by its data flow, whose latencies say what to mend {UNTOLD}.",
        f"Forward and backward take {min(shares):.0%} to {max(shares):.0%} of a step. Time of torch's own "
        f"step over that with convalgos: {told}.",
        None,
    )


def efficiency_part(uses: Uses, peak: float) -> Part:
    """A line for each layer, batch and pass; of each library its share of the peak and of the cores' time."""
    libraries = libraries_of(uses.values())
    rows: list[tuple[StudyCell, ...]] = []
    for (layer, batch), found in uses.items():
        for name in PASSES:
            by = {use.library: use for use in found if use.pass_ == name}
            percent = [_percent(by[lib].efficiency) if lib in by else None for lib in libraries]
            busy = [_percent(by[lib].busy) if lib in by else None for lib in libraries]
            rows.append((layer.suite, layer.name, batch, name, *percent, *busy))
    columns = (
        *map(StudyColumn, ("network", "layer", "batch", "pass")),
        *(StudyColumn(f"{lib} efficiency", "%") for lib in libraries),
        *(StudyColumn(f"{lib} cores busy", "%") for lib in libraries),
    )
    text = (
        f"Flops of the direct convolution per second, of a peak of {peak / 1e9:.0f} GFLOP/s, and the share "
        "of the cores' time in which they ran. Backward is both gradients."
    )
    return Part("Layer by layer: efficiency and utilisation", text, columns, tuple(rows))


def batches_part(uses: Uses) -> Part:
    """The geometric mean of the efficiency over the layers that were timed at every batch size."""
    libraries, sizes = libraries_of(uses.values()), sorted({batch for _, batch in uses})
    timed = [layer for layer, batch in uses if batch == sizes[0] and all((layer, n) in uses for n in sizes)]
    rows: list[tuple[StudyCell, ...]] = []
    for name in PASSES:
        for batch in sizes:
            found = [use for layer in timed for use in uses[layer, batch] if use.pass_ == name]
            means = [_mean([use.efficiency for use in found if use.library == lib]) for lib in libraries]
            rows.append((name, batch, *map(_percent, means)))
    columns = (StudyColumn("pass"), StudyColumn("batch"), *(StudyColumn(lib, "%") for lib in libraries))
    text = f"Geometric mean over the {len(timed)} layers that were timed at every batch size."
    chart = Chart("lines", "batch", tuple(libraries), by="pass", log_x=True)
    return Part("Efficiency against batch size", text, columns, tuple(rows), chart)


def efficiency_finding(uses: Uses, device: str) -> Finding:
    """cuDNN beside im2col with cuBLAS on a GPU; on a CPU what stands in their places."""
    claim = "cuDNN's convolution has twice the efficiency of im2col with cuBLAS."
    if device == "gpu":
        ratio = mean_ratio(uses.values(), BY_GEMM, CUDNN)
        if ratio is None:
            return Finding(claim, "cuDNN served no layer.", None)
        ours = mean_ratio(uses.values(), CUDNN, OURS)
        here = f"{ratio:.2f} times im2col's efficiency in the mean; convalgos {ours:.2f} times cuDNN's."
        return Finding(claim, here, ratio >= 2)
    told = []
    for library in libraries_of(uses.values()):
        ratio = mean_ratio(uses.values(), BY_GEMM, library)
        if ratio is not None and library != BY_GEMM:
            told.append(f"{library} {ratio:.2f}")
    named = ", ".join(told) or "no other library was timed"
    return Finding(claim, f"No GPU. On this CPU, times the efficiency of im2col with MKL: {named}.", None)


def layers_memory_part(
    network: str, batch: int, algorithms: Mapping[str, str], layers: Iterable[LayerMemory]
) -> Part:
    """A line for each kind of layer of a network."""
    rows: list[tuple[StudyCell, ...]] = []
    for layer in layers:
        scratch = [layer.workspaces.get(a) for a in algorithms.values()]
        each = layer.weights / MEGA, layer.maps / MEGA
        rows.append((layer.name, layer.count, *each, *each, *(s if s is None else s / MEGA for s in scratch)))
    text = (
        "Sums over layers that are alike. The gradients of the maps live until the layer before has read "
        "them; workspaces are the largest of the three passes, one at a time. Layers that compute in place "
        "have no maps of their own."
    )
    columns = (
        *(StudyColumn("layer"), StudyColumn("count")),
        *(StudyColumn(name, "MB") for name in ("weights", "maps", "weight gradients", "map gradients")),
        *_workspace_columns(algorithms),
    )
    chart = Chart("bars", "layer", ("weights", "maps"))
    return Part(f"Memory of {network}, batch {batch}", text, columns, tuple(rows), chart)


def networks_memory_part(
    algorithms: Mapping[str, str], networks: Mapping[str, tuple[int, Sequence[LayerMemory]]]
) -> Part:
    """A line for each network: what a step holds."""
    rows: list[tuple[StudyCell, ...]] = []
    for name, (batch, layers) in networks.items():
        weights, maps = sum(l.weights for l in layers) / MEGA, sum(l.maps for l in layers) / MEGA
        largest = max(layer.maps / layer.count for layer in layers) / MEGA
        scratch = [max(layer.workspaces.get(a, 0) for layer in layers) / MEGA for a in algorithms.values()]
        rows.append((name, batch, weights, weights, weights, maps, largest, *scratch))
    columns = (
        *(StudyColumn("network"), StudyColumn("batch")),
        *(StudyColumn(name, "MB") for name in ("weights", "gradients", "momentum", "maps", "largest map")),
        *_workspace_columns(algorithms),
    )
    text = "Float32; the largest workspace of a network serves all its layers."
    chart = Chart("bars", "network", ("weights", "gradients", "momentum", "maps"))
    return Part("Memory of a training step", text, columns, tuple(rows), chart)


def memory_finding(networks: Mapping[str, tuple[int, Sequence[LayerMemory]]]) -> Finding:
    """What fills the memory of each network."""
    told = []
    for name, (batch, layers) in networks.items():
        weights, maps = sum(l.weights for l in layers), sum(l.maps for l in layers)
        told.append(f"{name} (batch {batch}): maps are {maps / (maps + 3 * weights):.0%}")
    return Finding(
        f"Each layer's memory was told by weights, maps, gradients and workspaces {UNTOLD}.",
        "Of weights, gradients, momentum and maps together, " + "; ".join(told) + ".",
        None,
    )


def mean_ratio(uses: Iterable[Sequence[LayerUse]], slow: str, fast: str) -> float | None:
    """Geometric mean of the seconds of one library over those of another, on all that both served."""
    ratios = []
    for layer in uses:
        seconds = {(use.library, use.pass_): use.seconds for use in layer}
        for name in PASSES:
            if (slow, name) in seconds and (fast, name) in seconds:
                ratios.append(seconds[slow, name] / seconds[fast, name])
    return _mean(ratios)


def libraries_of(uses: Iterable[Sequence[LayerUse]]) -> list[str]:
    """Those that served something, in their order."""
    return list(dict.fromkeys(use.library for found in uses for use in found))


def _workspace_columns(algorithms: Iterable[str]) -> list[StudyColumn]:
    return [StudyColumn(f"workspace of {library}", "MB") for library in algorithms]


def _mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
