"""Predicted time of a product of words, from the cycles of its parts.

Found by least squares of the logarithm on 204 layers of `convbench` (seeds 100 to 105) in uint8 and bfloat16
and both layouts.
"""

from __future__ import annotations

import math

from convalgos.core.machine import Machine, cache_sizes, vector_bytes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.word_blocking import TILE_BASE, TILE_LEAST, TILE_ROW, WordBlocking
from convalgos.cpu.gemm.word_tiles import PAIRS, Engine
from convalgos.cpu.runtime.integer_record_plan import INTEGER_CALL
from convalgos.cpu.runtime.threads import worth_sharing
from convalgos.cpu.vectors import matrix_tiles

# Seconds, and cycles in which float32 has its peak, on a Xeon (Granite Rapids)
BRAIN_CALL = 4.0e-6  # around a run in bfloat16
TILES_BEGUN = 0.4e-6  # to configure matrix tiles, and to release them
TILE_CALL, VECTOR_CALL = 57, 86  # of a tile of sums: to call, to begin and to end
OUTPUT, TURNED = 3.1, {1: 4.9, 2: 3.8}  # of a vector of sums that is finished; transposed, by bytes of x
L3_VECTOR = 6.6  # of a vector of the filter that comes from the third cache
LOADED = 1.67  # times the products of matrix tiles, as they wait for loads,
ISSUED, ISSUED_PAIRS = 1.13, 1.35  # and those of vectors
SHORT_CHUNKS = 0.4  # of their time where chunks have few words
FEW_FILTERS = 1.2  # times those of tiles where each tile of pixels is read for one product
COPIED, CONVERTED = 2.3, 11.5  # of a vector of words: copied, brought to words channels last,
SQUARED = {1: 12.0, 2: 7.9}  # and transposed, by bytes of an element,
WOVEN = 4.0  # or woven, where a pixel is 1, 2 or 4 words
FEW_WORDS, FEW_POWER = 4, 0.8  # of groups of fewer words, vectors of pixels are the emptier
ROW = 35  # of a row of words
SHOWN = 0.15  # of the time in which x, w and y are moved, which the sums do not hide
NEAR = 1.6  # a measured peak within this factor of an engine's usual one is its own


def word_peak(engine: Engine, dtype: str, machine: Machine) -> float:
    """Operations in a second of all threads, of an engine. What was measured is that of the best engine."""
    usual, measured = engine.rate * machine.peak_float32, machine.peak(dtype)
    return measured if usual / NEAR < measured < usual * NEAR else usual


def least_seconds(problem: ConvProblem, engine: Engine, machine: Machine) -> float:
    """A lower bound of `word_seconds`."""
    return (INTEGER_CALL if problem.sums_integers else BRAIN_CALL) + problem.flops / word_peak(
        engine, problem.dtype, machine
    )


def word_seconds(problem: ConvProblem, cut: WordBlocking, machine: Machine) -> float:
    """Seconds of a run, in which the threads read x, sum and write y. `problem` is as it was given."""
    shared, integers = worth_sharing(problem), problem.sums_integers
    begun = INTEGER_CALL if integers else BRAIN_CALL
    begun += machine.launch * shared + TILES_BEGUN * cut.engine.matrix
    moved = SHOWN * machine.stream(problem.x_bytes + problem.y_bytes + problem.w_bytes)
    rate = machine.peak_float32 / machine.threads / (vector_bytes() // 4 * 4)  # cycles in a second
    threads = machine.threads if shared else 1
    units = _blocks(cut) * cut.parts
    balance = math.ceil(units / threads) * threads / units
    cycles = _summing(cut, machine, threads) + _reading(cut)
    return begun + moved + balance * cycles / threads / rate


def _blocks(cut: WordBlocking) -> int:
    p = cut.problem
    return p.N * p.spatial_out[0] * cut.blocks[0] * cut.blocks[1] * p.groups


def _summing(cut: WordBlocking, machine: Machine, threads: int) -> float:
    """Cycles of the sums of all blocks, with the filters they read and the outputs they finish."""
    p, engine = cut.problem, cut.engine
    tiles = _blocks(cut) * cut.tiles
    vectors = (cut.panels - 1) * cut.vectors + cut.last_vectors
    words = tiles * vectors * cut.words_of_filter
    filter_bytes = 4 * cut.words_of_filter * vectors * cut.lanes  # of a group
    sharing = threads if cut.parts > 1 or p.groups > 1 else 1
    far = filter_bytes * p.groups / sharing > cache_sizes()[1]
    read = far * _blocks(cut) * filter_bytes / vector_bytes() * L3_VECTOR
    # of a vector of words: float32 has two in a cycle, of one product for each lane
    product = 2 / engine.item_bytes * machine.peak_float32 / word_peak(engine, p.dtype, machine)
    if engine.matrix:
        rows = 16 * max(TILE_LEAST, TILE_BASE + TILE_ROW * cut.tile)
        chunks = tiles * vectors * len(cut.offsets) * 16  # words that are multiplied, some in vain
        rows *= SHORT_CHUNKS + (1 - SHORT_CHUNKS) * cut.words / matrix_tiles.WORDS
        sums = chunks * rows * product * LOADED * (FEW_FILTERS if cut.vectors == 1 else 1)
        busy = sums + tiles * cut.panels * TILE_CALL + read
    else:
        sums = words * cut.tile * product * (ISSUED_PAIRS if engine.kind == PAIRS else ISSUED)
        busy = max(sums + tiles * cut.panels * VECTOR_CALL, read)
    finished = OUTPUT if p.layout == "channels_last" else TURNED[p.itemsize]
    return busy + tiles * vectors * cut.tile * finished


def _reading(cut: WordBlocking) -> float:
    """Cycles in which x is brought to words."""
    if cut.in_place:
        return 0.0
    p = cut.problem
    last = p.layout == "channels_last"
    if last and p.groups == 1:
        each = COPIED
    elif last:
        each = CONVERTED * max(1.0, FEW_WORDS / cut.pixel_words) ** FEW_POWER
    elif cut.pixel_words in (1, 2, 4):
        each = WOVEN
    else:
        each = SQUARED[p.itemsize] * -(-cut.span // cut.lanes) * cut.lanes / cut.span  # whole squares
    if cut.flat:
        each = each * p.stride[2] / p.kernel[2] + COPIED
    vectors = cut.parts * cut.input_bytes / vector_bytes()
    return _blocks(cut) * (vectors * each + ROW * cut.slots_of_phase * cut.phases)
