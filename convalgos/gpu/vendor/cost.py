"""Cost model of cuDNN: an implicit GEMM in tiles, as its engines for dense layers compute it.

On an H200, a layer that was timed there costs what it took (`vendor.recorded`): no model of a library whose
heuristics choose among hundreds of kernels comes as close. All else is a product in tiles. Multiprocessors
take the tiles in turns. Each is bound by its products, or by loading what they multiply. Products with few
tiles are split along their sums (split-K). Which kernel runs, cuDNN decides; the model takes the tile that
would be the fastest. Tensor cores want channels last and vectors of channels: other layouts are transposed
before and after, and so is the filter.

Calibrated on an H200 with cuDNN 9.19, by least squares on the dense layers of over 5 GFLOP that were timed
there (shorter times hold the host's). Channels last on tensor cores, each network predicted by the others,
model / measured is 0.96 in TF32 and 1.01 in float16 in the geometric mean, off by a factor of 1.13 as a rule,
1.31 at most; channels first by 1.09. In strict float32 it is 1.4: there cuDNN may use transforms, which the
model lacks.
"""

from __future__ import annotations

import math

from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device.machine import GpuMachine
from convalgos.gpu.vendor.recorded import HOST, is_recorded, recorded_seconds

CUDNN_TILES = {  # pixels x filters of a block, on CUDA cores and on tensor cores
    False: ((128, 128), (128, 64), (128, 32), (64, 64), (64, 32)),
    True: (
        *((256, 128), (128, 256), (128, 192), (256, 64), (128, 128)),
        *((128, 64), (64, 128), (64, 64), (128, 32), (64, 32)),
    ),
}
CUDNN_SPLITS = (1, 2, 3, 4, 6, 8, 16, 32, 128)
LEAST_SUM = 128  # products that a part of a split sum has at least
STEP = 32  # products of a step of a tile
# Fitted, H200.
REACHED = {"float32": 0.73, "tf32": 0.90, "float16": 0.93}  # of the peak, by a tile that waits for no loads
REACHED |= dict.fromkeys(("int8", *FLOAT8_DTYPES), REACHED["float16"])  # as of 16 bits; not measured
LOADS = 66.5  # products of tensor cores in whose time an element is loaded
FILL = 930.0  # bytes of their sum in whose time a tile begins and ends
PLAIN_LOADS, PLAIN_FILL = 20.5, 224.0  # the same of CUDA cores
LARGE, SLOWER = 32, 1.9  # taps of a kernel beyond which tensor cores take so much longer
SCARCE = 1.5  # the same, where channels fill no vector
VECTOR = {
    "float32": 1,
    "tf32": 4,
    "float16": 8,
    **dict.fromkeys(("int8", *FLOAT8_DTYPES), 16),
}  # channels that are loaded at once; others are filled up
TURNED = {"tf32": 0.77, "float16": 0.47}  # of a copy's bandwidth that transposing x and y reaches
TURNED_FILTER = {"tf32": 0.31, "float16": 0.17}
TURNED |= dict.fromkeys(("int8", *FLOAT8_DTYPES), TURNED["float16"])  # as of 16 bits; not measured
TURNED_FILTER |= dict.fromkeys(("int8", *FLOAT8_DTYPES), TURNED_FILTER["float16"])
DEPTHWISE = {False: 0.055, True: 0.125}  # of the peak of CUDA cores, by whether elements have 16 bits
WIDE, OF_WIDE = 100, {"channels_first": 0.078, "channels_last": 0.025}  # beyond so many taps, by layout


def predicted_seconds(problem: ConvProblem, machine: GpuMachine) -> float:
    """Of one run, about."""
    model = model_seconds(problem, machine)
    known = recorded_seconds(problem) if is_recorded(machine) and not problem.is_depthwise else None
    if known is None:
        return model
    return known if known > HOST else min(known, model)


def model_seconds(problem: ConvProblem, machine: GpuMachine) -> float:
    """The same, whatever was recorded."""
    half = problem.itemsize == 2
    named = "float16" if half else "int8" if problem.sums_integers else problem.dtype
    kind = (problem.compute_dtype or "float32") if named == "float32" else named
    if problem.is_depthwise:
        wide = math.prod(problem.kernel) > WIDE
        share = OF_WIDE[problem.layout] if wide else DEPTHWISE[half]
        computed = problem.flops / (machine.peak("float32") * share)
        return max(computed, machine.stream(problem.bytes)) + machine.launch
    tensor = kind != "float32"
    products = min(_product(problem, machine, kind, tile) for tile in CUDNN_TILES[tensor])
    if tensor and math.prod(problem.kernel) > LARGE:
        products *= SLOWER
    if tensor and problem.w_shape[1] < VECTOR[kind]:
        products *= SCARCE
    total = max(products, machine.stream(problem.bytes)) + machine.launch
    if tensor and problem.layout == "channels_first" and not problem.is_pointwise:
        maps = 2 * (problem.x_bytes + problem.y_bytes) / TURNED[kind]
        total += (maps + 2 * problem.w_bytes / TURNED_FILTER[kind]) / machine.bandwidth + machine.launch
    return total


def _product(problem: ConvProblem, machine: GpuMachine, kind: str, tile: tuple[int, int]) -> float:
    """Of the products, in tiles of this size."""
    tensor, (m, n) = kind != "float32", tile
    peak = (machine.tensor_peak(kind) if tensor else machine.peak("float32")) / machine.multiprocessors
    loads = machine.constant("vendor/cost.LOADS", LOADS) if tensor else PLAIN_LOADS
    fill = machine.constant("vendor/cost.FILL", FILL) if tensor else PLAIN_FILL
    computed, loaded = m * n / REACHED[kind], loads * (m + n)
    step = max(computed, loaded) if tensor else computed + loaded  # products, at the peak, for one per output
    rows, columns, sums = _matrices(problem, VECTOR[kind])
    tiles = -(-rows // m) * -(-columns // n) * problem.groups

    def split(parts: int) -> float:
        turns = -(-tiles * parts // machine.multiprocessors)
        joined = machine.stream(4 * parts * rows * columns * problem.groups) + machine.launch
        multiplied = turns * 2 * step * (sums / parts + fill / problem.itemsize) / peak
        return multiplied + (joined if parts > 1 else 0.0)

    return min(split(parts) for parts in CUDNN_SPLITS if parts == 1 or sums >= parts * LEAST_SUM)


def _matrices(problem: ConvProblem, vector: int) -> tuple[int, int, float]:
    """(rows, columns) of the result of a group's product, and products per element."""
    p = problem
    if p.direction == "backward_weights":
        return p.gemm_k, p.gemm_n, p.gemm_m
    rows = p.gemm_m if p.direction == "forward" else p.N * math.prod(p.spatial)
    columns, channels = p.gemm_n, p.w_shape[1]
    if p.direction == "backward_data":
        columns, channels = channels, columns
    sums = p.flops / (2 * p.groups * rows * columns)  # of which a stride leaves out some, backward
    filled = -(-channels // vector) * vector / channels
    return rows, columns, -(-sums * filled // STEP) * STEP
