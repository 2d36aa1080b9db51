"""Recurrent layers of float32, from what their inputs add to the gates: run, or bound to arrays."""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.arguments import Shape
from convalgos.core.bound_run import BoundRun, Launch, check_bound
from convalgos.core.machine import Machine, vector_bytes
from convalgos.cpu.elementwise.bound_steps import FLOAT, BoundStep, bound, launched
from convalgos.cpu.elementwise.recurrent_kernels import GRU, RECURRENT_FIELDS, new_turns, recur_share
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.records import record_of_fields
from convalgos.cpu.runtime.threads import are_worth_sharing, is_short
from convalgos.cpu.vectors import simd

ROWS = {16: 2, 32: 2, 64: 4}  # images at once at most, by the bytes of a vector, whose sums are in registers
LOADED = 2.0  # cycles to multiply by a vector of weights, which come from L2; Sapphire Rapids
GATED = 60.0  # cycles of the gates of a vector of units
# Bytes of weights that a thread of a team reads at each time, as it takes a microsecond to wait for the
# others there (Zen 5), and threads of a team at most: more are in several parts of a processor
MEMBER_BYTES, MOST_MEMBERS = 3 << 16, 4


def recurrent_seconds(
    times: int, images: int, directions: int, gates: int, hidden: int, machine: Machine
) -> float:
    """Predicted time of a recurrent layer, on as many threads as it has directions and images for.

    Example:
        >>> from convalgos.core.profiles import nominal
        >>> 1e-6 < recurrent_seconds(40, 1, 2, 4, 128, nominal(2)) < 1e-2
        True
    """
    lanes = machine.vector_bytes // FLOAT.itemsize
    blocks = -(-hidden // lanes)
    cycles = times * blocks * gates * (hidden * LOADED + images * GATED)
    threads = max(1, min(machine.threads, directions * images))
    return machine.launch + directions * cycles * machine.threads / (threads * machine.cycles)


class RecurrentPlan(BoundStep):
    """The states of a recurrent layer for all times: LSTM, GRU, or plain, by ONNX's definitions.

    y (times, directions, images, hidden) from z (times, images, directions * gates * hidden), what the inputs
    and the biases add to the gates, which stand in ONNX's order: input, output, forget, candidate of an LSTM,
    update, reset, candidate of a GRU, whose reset share is taken of the sum (linear_before_reset) or of the
    state.

    Args:
        shape: of z.
        weights: (directions, gates * hidden, hidden), by which the state is multiplied.
        gates: 4 of an LSTM, 3 of a GRU, 1 of a plain layer.
        bias: (directions, hidden), of a GRU: added to the sums of its candidate before the share is taken.
        turned: whether the one direction runs from the last time to the first; of two, the second does.
        with_cells: whether the last cells of an LSTM stand behind the last states, as those of one time more.
        rectified: whether the states of a plain layer are max(sum, 0), and not tanh(sum).
        reset_first: whether a GRU multiplies the share of the state, and not the state, by the weights.
        given: whether a first state, and first cells, are given as inputs behind z; they are 0 else.

    Source: Hochreiter and Schmidhuber 1997, Long short-term memory; Cho et al. 2014, arXiv:1406.1078.

    Example:
        >>> z, weights = np.zeros((3, 1, 2), "f4"), np.zeros((1, 2, 2), "f4")
        >>> plan = RecurrentPlan(z.shape, weights, 1)
        >>> plan.run((z,), y := np.empty(plan.y_shape, "f4"))
        >>> y.shape, y.any()
        ((3, 1, 1, 2), np.False_)
    """

    def __init__(
        self,
        shape: Shape,
        weights: np.ndarray,
        gates: int,
        bias: np.ndarray | None = None,
        turned: bool = False,
        given: tuple[bool, bool] = (False, False),
        with_cells: bool = False,
        rectified: bool = False,
        reset_first: bool = False,
    ):
        (times, images, width), (directions, _, hidden) = shape, weights.shape
        if width != directions * gates * hidden:
            raise ValueError(f"z {shape} and weights {weights.shape} do not go together")
        self._shape, self._given = tuple(shape), given
        self._state = directions, images, hidden
        self.y_shape = times + with_cells, *self._state
        self._times = times if with_cells else None  # behind which the cells stand
        lanes = simd.lanes(FLOAT.itemsize)
        padded = -(-hidden // lanes) * lanes
        rows, units = _division(images, directions)
        flops = 2 * times * images * directions * gates * padded * hidden
        nbytes = 0 if reset_first else gates * padded * hidden * FLOAT.itemsize  # none wait in between
        self._members = _members(directions * units, nbytes, flops)
        self._short = is_short(flops, 0)
        self._teams = directions * units, self._members, times, padded // lanes
        self._kernel = recur_share(FLOAT.itemsize, lanes, gates, rows)
        self._weights = packed_weights(weights, gates, lanes)
        self._bias = np.zeros((directions, padded), FLOAT)
        if gates == GRU and bias is not None:
            self._bias[:, :hidden] = bias
        self._zeros = np.zeros(self._state, FLOAT)
        self._cells = directions * units * rows * padded
        self._work = times * images * width * max(1, hidden // lanes)
        self._values = {
            "weights": self._weights.ctypes.data, "bias": self._bias.ctypes.data, "times": times,
            "images": images, "directions": directions, "hidden": hidden, "padded": padded, "units": units,
            "z_t": images * width, "z_n": width, "turned": int(turned),
            "rectified": int(rectified), "reset_first": int(reset_first), "members": self._members,
        }  # fmt: skip

    def bind(self, *arrays: np.ndarray) -> BoundRun:
        z, *states, y = arrays
        check_bound("z", z, self._shape, FLOAT, strided=False)
        check_bound("y", y, self.y_shape, FLOAT, strided=False, written=True)
        rest = iter(states)
        h, c = (next(rest) if given else self._zeros for given in self._given)
        for name, state in (("h", h), ("c", c)):
            check_bound(name, state, self._state, FLOAT, strided=False)
        cells = aligned_empty(self._cells, FLOAT)
        cells.fill(0)  # also of units beyond the last, which stay so
        values = self._values | {
            "z": z.ctypes.data, "h": h.ctypes.data, "c": c.ctypes.data, "y": y.ctypes.data,
            "cells": cells.ctypes.data,
            "last": 0 if self._times is None else y[self._times].ctypes.data,
        }  # fmt: skip
        turns = new_turns(*self._teams) if self._members > 1 else None
        kept = *arrays, cells, turns, self
        if turns is None:
            return launched(self._kernel, RECURRENT_FIELDS, values, self._work, *kept, tasks_field="groups")
        values |= {"turns": turns.ctypes.data, "groups": self._teams[0]}
        record, begin = record_of_fields(RECURRENT_FIELDS, values)
        tasks = self._teams[0] * self._members
        return bound([Launch(self._kernel, begin, -tasks if self._short else tasks)], record, *kept)


def packed_weights(weights: np.ndarray, gates: int, lanes: int) -> np.ndarray:
    """(directions, blocks, hidden, gates, lanes) of (directions, gates * hidden, hidden), zeros beyond."""
    directions, _, hidden = weights.shape
    blocks = -(-hidden // lanes)
    whole = np.zeros((directions, gates, blocks * lanes, hidden), FLOAT)
    whole[:, :, :hidden] = weights.reshape(directions, gates, hidden, hidden)
    parts = whole.reshape(directions, gates, blocks, lanes, hidden).transpose(0, 2, 4, 1, 3)
    found = aligned_empty(parts.size, FLOAT).reshape(parts.shape)
    found[...] = parts
    return found


def _division(images: int, directions: int) -> tuple[int, int]:
    """(images of a unit of work, units of a direction): as few as keep all threads busy."""
    most = ROWS[vector_bytes()]
    least = min(images, -(-jit.thread_count() // directions))
    units = max(-(-images // most), least, 1)
    rows = 1
    while rows < -(-images // units):
        rows *= 2
    return rows, -(-images // rows)


def _members(units: int, nbytes: int, flops: int) -> int:
    """Threads of a team that shares a unit.

    Args:
        nbytes: of the weights that are read at each time.
        flops: of all units and times.
    """
    most = min(MOST_MEMBERS, jit.thread_count() // max(1, units), nbytes // MEMBER_BYTES)
    return max(1, most) if is_short(flops, 0) or are_worth_sharing(flops, 0) else 1
