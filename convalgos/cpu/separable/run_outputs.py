"""What follows the sums of the convolutions of a separable block, as the records of its runs have it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.core.epilogue import RELU, Activation
from convalgos.cpu.dwconv.block_activations import BlockKernel, kind_of_block
from convalgos.cpu.dwconv.channel_records import CHANNEL_KERNEL_FIELDS
from convalgos.cpu.gemm.blocked_plan import BLOCKED_ARGUMENTS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.finish import activation_numbers, finish_address
from convalgos.cpu.runtime.records import WORD, field_offset
from convalgos.cpu.separable.band_kernels import SEPARABLE_FIELDS
from convalgos.cpu.separable.block import SeparableBlock
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import CLIP

FLOAT = np.dtype(np.float32)
# The record of the driver, and those of all convolutions that a block may have.
BLOCK_RECORDS = np.dtype(
    [
        ("run", SEPARABLE_FIELDS),
        ("expansion", BLOCKED_ARGUMENTS),
        ("depthwise", CHANNEL_KERNEL_FIELDS),
        ("projection", BLOCKED_ARGUMENTS),
    ]
)
PART_OFFSETS = tuple([field_offset(BLOCK_RECORDS, part) for part in SeparableBlock._fields])
LIMITS = np.array([-np.inf, np.inf, 0, np.inf], FLOAT)  # of none, and of ReLU


class BiasedActivation(NamedTuple):
    """What follows the sums of a convolution."""

    bias: np.ndarray | None = None  # (K,)
    activation: Activation | None = None


class CommonWords(NamedTuple):
    """Words of a record that are the same in all runs of the same filters, and the places of others."""

    places: np.ndarray
    values: np.ndarray
    kind: int  # the activation that the depthwise kernel applies
    told: np.ndarray  # x, y, tasks, scratch and its bytes of a task, the parts, the depthwise kernel;
    added: np.ndarray  # what is added to y, and whether, if anything is
    kept: tuple[Any, ...]  # what the values point to


def common_words(
    layers: SeparableBlock, kernel: BlockKernel, filters: Sequence[np.ndarray],
    outputs: Sequence[BiasedActivation],
) -> CommonWords:  # fmt: skip
    """What runs of the same filters and outputs have in common, whatever the sizes of the maps.

    Args:
        kernel: the depthwise one, of some map.
        filters: prepared, of each part.
    """
    address, found, kind, kept = jit.data_address(), dict[int, int](), CLIP, list[Any]()
    for part, w, output in zip(layers.parts, filters, outputs, strict=True):
        bias = _padded_bias(getattr(layers, part).K, output.bias)
        numbers = activation_numbers(FLOAT, output.activation)
        limits, finish = _output_step(output.activation, numbers)
        values = {"w": w, "bias": bias, "finish_numbers": numbers, "limits": limits}
        kept += values.values()
        if part == "depthwise":
            values["bounds"] = values.pop("limits")
            if (kind := kind_of_block(kernel, output.activation)) != CLIP:
                finish, values["bounds"] = 0, numbers
        found |= {place_of_field(part, name): address(array) for name, array in values.items()}
        found[place_of_field(part, "finish")] = finish
    begin, end = layers.parts[0], layers.parts[-1]
    told = [(begin, "x"), (end, "y")]
    told += [("run", name) for name in ("tasks", "scratch", "scratch_bytes", *SeparableBlock._fields)]
    told.append(("depthwise", "filter_block"))
    added = [] if end == "depthwise" else [(end, "residual"), (end, "adds")]
    of_told, of_added = (
        np.array([place_of_field(*place) for place in names], np.intp) for names in (told, added)
    )
    words = np.array([*found], np.intp), np.array([*found.values()], WORD)
    return CommonWords(*words, kind, of_told, of_added, tuple(kept))


def _padded_bias(filters: int, bias: np.ndarray | None) -> np.ndarray:
    """With a vector of zeros behind."""
    lanes = simd.lanes(FLOAT.itemsize)
    padded = aligned_zeros((-(-filters // lanes) + 1) * lanes, FLOAT)
    if bias is not None:
        padded[:filters] = bias
    return padded


def _output_step(activation: Activation | None, numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """(the two limits that the kernels keep sums within, what else there is to do, if anything)."""
    if activation is None or activation == RELU:
        return LIMITS[0 if activation is None else 2 :], 0
    if activation.name == "clip":
        return numbers, 0
    return LIMITS, finish_address(FLOAT, activation)


@cache
def place_of_field(part: str, name: str) -> int:
    """Which word of the record of a block a field of a part is."""
    of_part = field_offset(BLOCK_RECORDS, part)
    return (of_part + field_offset(BLOCK_RECORDS[part], name)) // WORD.itemsize
