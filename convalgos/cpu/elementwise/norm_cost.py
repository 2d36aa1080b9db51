"""The predicted time of norms, and of softmax, of float32 maps in any layout."""

from __future__ import annotations

import math

from convalgos.core.arguments import Shape
from convalgos.core.machine import Machine
from convalgos.cpu.elementwise.bound_steps import FLOAT

# Each vector is read for its mean, for its deviation and to be written; Zen 4, 54 maps.
PASSES = 6.0  # cycles for all of that, of two products of vectors in a cycle,
PLANES = 3.0  # times as long where channels are planes, of each of which a run of pixels is read thrice; Xeon
PIXEL = 30.0  # and of a core for each pixel where its channels lie together
# Softmax reads and writes each vector for the largest, the exponentials and the shares; Zen 5, 1 to 400 rows
SHARES = 10.0  # cycles for all of that, of two products of vectors in a cycle,
APART = 2.0  # times as long where vectors of a pixel do not lie side by side; and of a core
SHARED_PIXEL = 50.0  # for each pixel


def layer_norm_seconds(shape: Shape, layout: str, machine: Machine) -> float:
    """Predicted time to normalise each pixel of a map of a logical shape, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-6 < layer_norm_seconds((1, 96, 56, 56), "channels_last", nominal(2)) < 1e-3
        True
    """
    images, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    lanes = machine.vector_bytes // FLOAT.itemsize
    if layout == "channels_first":
        vectors, begun = channels * -(-pixels // lanes) * PLANES, 0.0
    else:
        vectors, begun = pixels * -(-channels // lanes), pixels * PIXEL
    computed = images * (vectors * PASSES / machine.paced_cycles + begun / machine.cycles)
    memory = machine.stream_near(2 * math.prod(shape) * FLOAT.itemsize)
    return machine.launch + max(computed, memory)


def group_norm_seconds(shape: Shape, layout: str, machine: Machine) -> float:
    """Predicted time to normalise groups of channels of maps of a logical shape, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-6 < group_norm_seconds((1, 96, 56, 56), "channels_first", nominal(2)) < 1e-3
        True
    """
    nbytes = math.prod(shape) * FLOAT.itemsize
    lanes = machine.vector_bytes // FLOAT.itemsize
    rows = shape[0] * (shape[1] if layout == "channels_first" else -(-shape[1] // lanes))
    alone = machine.threads / max(1, min(machine.threads, rows))  # times as long where a thread has no row
    vectors = math.prod(shape) / lanes
    computed = alone * vectors * PASSES / machine.paced_cycles
    return 3 * machine.launch + max(computed, machine.stream_near(nbytes) + machine.stream_near(2 * nbytes))


def softmax_seconds(shape: Shape, layout: str, machine: Machine) -> float:
    """Predicted time of the softmax over the channels of a map of a logical shape, on all threads.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-5 < softmax_seconds((1, 6625, 40), "channels_last", nominal(2)) < 1e-4
        True
    """
    images, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    lanes = machine.vector_bytes // FLOAT.itemsize
    if layout == "channels_first" and pixels > 1:
        vectors, begun = images * channels * -(-pixels // lanes), 0
    else:
        vectors, begun = images * pixels * -(-channels // lanes), images * pixels
    cycles = vectors * SHARES * (1.0 if layout == "channels_last" or pixels == 1 else APART)
    alone = machine.threads / max(1, min(machine.threads, images * pixels))  # where a thread has no pixel
    computed = alone * (cycles / machine.paced_cycles + begun * SHARED_PIXEL / machine.cycles)
    memory = machine.stream_near(2 * math.prod(shape) * FLOAT.itemsize)
    return machine.launch + max(computed, memory)
