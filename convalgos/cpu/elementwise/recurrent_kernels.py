"""The driver of recurrent layers: the state of each image, time by time, from the one before.

What the inputs add to the gates is computed before, for all times at once. Here the state is multiplied by
the recurrent weights, which stay in the caches: the gates of a vector of units are summed in registers, for
some images together, and become the new state there. Where there are fewer images and directions than
threads, a team of them shares the vectors of each time. The states of a time are all read by the next one,
so that its members wait for each other there. Each has vectors of its own, whose weights stay in its caches;
it claims them one by one, and those of the others behind them: a member for which no thread has come yet is
done without, and whoever comes late finds that all is claimed. A thread waits only for what another began.

Words of a team: for each member and time how many of its vectors are left, for each time how many are done,
and how many members have left. The last one that leaves makes them anew for the next launch.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import KINDS
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import activate
from convalgos.cpu.vectors.atomics import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_take,
    give_way,
    nanoseconds,
    pause,
)
from convalgos.cpu.vectors.simd import Value, Vec, carray, pointer

# Gates, which tell the kinds of layers apart. Rows of four gates have addresses that are computed one by one:
# as displacements of one pointer, 2 KiB apart, they came from L2 at half the pace (Zen 5, 32 of 64 bytes a
# cycle; perhaps as hardware does not fetch so far ahead). In L1 that costs up to a tenth.
LSTM, GRU, PLAIN = 4, 3, 1
CHAINS = 2  # of sums of a gate where one image has too few of them to keep the multipliers busy
WORD, LINE = 8, 8  # bytes of a word, and words of a cache line
PATIENT = 20_000  # nanoseconds that a member waits before it lets other threads have its core
LOOKS = 64  # between two looks at the clock

# z (times, images, directions * gates * hidden), whose steps between times and images are given in elements;
# h, c (directions, images, hidden): the first states; y (times, directions, images, hidden). `weights`
# (directions, padded / LANES, hidden, gates, LANES), `bias` (directions, padded); a unit of work is ROWS
# images of one direction, with `cells` (ROWS, padded) of its own. Direction 1 - turned runs backwards.
# `members` tasks share each unit, by the words at `turns` (see `new_turns`); `groups` are tasks / members.
# `last` (directions, images, hidden) are the cells behind the last time, 0 where nobody asks for them.
# `rectified` is 1 for a plain layer whose states are rectified sums, and not their hyperbolic tangents; and
# `reset_first` for a GRU whose share is taken of the state, and not of the sum: that is then in `cells`.
RECURRENT_FIELDS = fields(
    "z h c y weights bias cells times images directions hidden padded units z_t z_n turned last rectified "
    "reset_first groups members turns"
)


@jit.specialise
def recur_share(SIZE: int, LANES: int, GATES: int, ROWS: int) -> jit.Kernel:
    """The units of a group of tasks, each through all times."""

    def recur_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, RECURRENT_FIELDS)[0]
        group, member = task // a.members, task % a.members
        total, row, blocks = a.directions * a.units, a.hidden * SIZE, a.padded // LANES
        for unit in range(total * group // a.groups, total * (group + 1) // a.groups):
            d, first = unit // a.units, unit % a.units * ROWS
            rows, cells = min(ROWS, a.images - first), a.cells + unit * ROWS * a.padded * SIZE
            image = d * a.images + first
            weights, bias = a.weights + d * a.padded * GATES * row, a.bias + d * a.padded * SIZE
            h = a.h + image * row
            if GATES == LSTM and a.last and a.times == 0:
                simd.copy_bytes(a.last + image * row, a.c + image * row, rows * row)
            for step in range(a.times):
                t = step
                if d + a.turned == 1:
                    t = a.times - 1 - step
                z = a.z + (t * a.z_t + first * a.z_n + d * GATES * a.hidden) * SIZE
                y = a.y + ((t * a.directions + d) * a.images + first) * row
                if GATES == GRU and a.reset_first:
                    for block in range(blocks):
                        reset_gates(
                            SIZE, LANES, ROWS, h, z, a.z_n, weights, cells, y, block * LANES, rows, a.hidden
                        )
                    for block in range(blocks):
                        reset_states(
                            SIZE, LANES, ROWS, h, z, a.z_n, weights, cells, y, block * LANES, rows, a.hidden
                        )
                    h = y
                    continue
                block, done = claimed_vector(a.turns, unit, step, -1, member, a.members, blocks, a.times), 0
                while block < blocks:
                    at = block * LANES * SIZE
                    part = min(LANES * SIZE, row - at)
                    if GATES == LSTM and step == 0:
                        for i in range(ROWS):
                            before = a.c + (image + min(i, rows - 1)) * row + at
                            simd.copy_bytes(cells + i * a.padded * SIZE + at, before, part)
                    recur_block(
                        SIZE, LANES, GATES, ROWS, h, z, a.z_n, weights, cells, bias, y, block * LANES, rows,
                        a.hidden, a.rectified,
                    )  # fmt: skip
                    if GATES == LSTM and a.last and step == a.times - 1:
                        for i in range(rows):
                            after = a.last + (image + i) * row + at
                            simd.copy_bytes(after, cells + i * a.padded * SIZE + at, part)
                    done += 1
                    block = claimed_vector(a.turns, unit, step, block, member, a.members, blocks, a.times)
                if a.members > 1 and step < a.times - 1:
                    await_others(a.turns, unit, step, done, a.members, blocks, a.times)
                h = y
            if a.members > 1:
                leave(a.turns, unit, a.members, blocks, a.times)

    return recur_share


@jit.helper
def row_words(times: int) -> int:
    """Words of a row: one for each time, and whole cache lines."""
    return (times + LINE - 1) // LINE * LINE


@jit.helper
def team_words(members: int, times: int) -> int:
    """Words of a team: a row of each member, one of what is done, and a line of who has left."""
    return (members + 1) * row_words(times) + LINE


@jit.helper
def first_of(member: int, members: int, blocks: int) -> int:
    """The first vector of a member."""
    return blocks * member // members


@jit.helper
def claimed_vector(
    turns: int, unit: int, step: int, last: int, member: int, members: int, blocks: int, times: int
) -> int:
    """The vector that a member computes next at a time, after the `last` one; `blocks` where none is left."""
    if members == 1:
        return last + 1
    team = turns + unit * team_words(members, times) * WORD
    for i in range(members):
        own = (member + i) % members
        left = atomic_take(team + (own * row_words(times) + step) * WORD)
        if left > 0:
            return int(first_of(own + 1, members, blocks) - left)
    return blocks


@jit.helper
def await_others(turns: int, unit: int, step: int, done: int, members: int, blocks: int, times: int) -> None:
    """Tell how many vectors of a time this member has done, and wait for the others of it."""
    all_done = turns + (unit * team_words(members, times) + members * row_words(times) + step) * WORD
    if done > 0:
        atomic_add(all_done, done)
    looks, until = 0, 0
    while atomic_load(all_done) < blocks:
        pause()
        looks += 1
        if looks % LOOKS == 0:
            now = nanoseconds()
            until = until if until > 0 else now + PATIENT
            if now > until:
                give_way()


@jit.helper
def leave(turns: int, unit: int, members: int, blocks: int, times: int) -> None:
    """A member has no more to do; the last one makes the words anew."""
    team = turns + unit * team_words(members, times) * WORD
    gone = team + (members + 1) * row_words(times) * WORD
    if atomic_add(gone, 1) == members - 1:
        for member in range(members + 1):
            own = 0
            if member < members:
                own = first_of(member + 1, members, blocks) - first_of(member, members, blocks)
            for step in range(times):
                atomic_store(team + (member * row_words(times) + step) * WORD, own)
        atomic_store(gone, 0)


def new_turns(units: int, members: int, times: int, blocks: int) -> np.ndarray:
    """The words of all teams, before a launch."""
    words = aligned_empty(units * team_words(members, times), np.dtype(np.int64))
    words.fill(0)
    rows = words.reshape(units, -1)[:, : members * row_words(times)].reshape(units, members, -1)
    for member in range(members):
        rows[:, member, :times] = first_of(member + 1, members, blocks) - first_of(member, members, blocks)
    return words


@simd.emitter
def recur_block(
    v: Vec, GATES: int, ROWS: int, h: Value, z: Value, z_row: Value, weights: Value, cells: Value,
    bias: Value, y: Value, first: Value, rows: Value, hidden: Value, rectified: Value,
) -> None:  # fmt: skip
    """The units of one vector, of ROWS images: their next state; the last image stands for those beyond."""
    images = [v.imin(i, v.isub(rows, 1)) for i in range(ROWS)]
    before = [v.at(v.pointer(h), v.imul(image, hidden)) for image in images]
    mask, padded = v.mask(v.isub(hidden, first)), _padded(v, hidden)
    shift = v.load(v.pointer(bias), first)
    gates = []  # of each image
    for image in images:
        own = v.at(v.pointer(z), v.iadd(v.imul(image, z_row), first))
        gates.append([v.load_masked(own, v.imul(gate, hidden), mask) for gate in range(GATES)])
    inputs = [own[-1] for own in gates]
    if GATES == GRU:  # whose candidate takes the sum with a share of it
        gates = [[*own[:-1], shift] for own in gates]
    block = v.at(v.pointer(weights), v.imul(first, v.imul(hidden, GATES)))
    sums = _sums(v, gates, before, block, hidden)
    for i, (own, image) in enumerate(zip(sums, images, strict=True)):
        to = v.at(v.pointer(y), v.iadd(v.imul(image, hidden), first))
        if GATES == LSTM:
            state = _of_cells(v, own, v.at(v.pointer(cells), v.iadd(v.imul(i, padded), first)))
        elif GATES == GRU:
            state = _mixed(v, own, inputs[i], v.load_masked(before[i], first, mask))
        else:
            state = _plain(v, own[0], rectified)
        v.store_masked(state, to, 0, mask)


@simd.emitter
def reset_gates(
    v: Vec, ROWS: int, h: Value, z: Value, z_row: Value, weights: Value, cells: Value, y: Value,
    first: Value, rows: Value, hidden: Value,
) -> None:  # fmt: skip
    """The share of the states that the units of one vector reset, and in y what they keep of theirs."""
    images = [v.imin(i, v.isub(rows, 1)) for i in range(ROWS)]
    mask, padded = v.mask(v.isub(hidden, first)), _padded(v, hidden)
    before = [v.at(v.pointer(h), v.imul(image, hidden)) for image in images]
    own = [v.at(v.pointer(z), v.iadd(v.imul(image, z_row), first)) for image in images]
    gates = [[v.load_masked(source, v.imul(gate, hidden), mask) for gate in range(2)] for source in own]
    block = v.at(v.pointer(weights), v.imul(first, v.imul(hidden, GRU)))
    sums = _sums(v, gates, before, block, hidden, GRU)
    for i, (image, (kept, reset)) in enumerate(zip(images, sums, strict=True)):
        share = v.fmul(_sigmoid(v, reset), v.load_masked(before[i], first, mask))
        v.store(share, v.pointer(cells), v.iadd(v.imul(i, padded), first))
        v.store_masked(_sigmoid(v, kept), v.pointer(y), v.iadd(v.imul(image, hidden), first), mask)


@simd.emitter
def reset_states(
    v: Vec, ROWS: int, h: Value, z: Value, z_row: Value, weights: Value, cells: Value, y: Value,
    first: Value, rows: Value, hidden: Value,
) -> None:  # fmt: skip
    """The next state of the units of one vector, from what `reset_gates` left of all."""
    images = [v.imin(i, v.isub(rows, 1)) for i in range(ROWS)]
    mask, padded = v.mask(v.isub(hidden, first)), _padded(v, hidden)
    shares = [v.at(v.pointer(cells), v.imul(i, padded)) for i in range(ROWS)]
    at = v.iadd(first, v.imul(2, hidden))
    own = [v.at(v.pointer(z), v.imul(image, z_row)) for image in images]
    block = v.at(v.pointer(weights), v.iadd(v.imul(first, v.imul(hidden, GRU)), 2 * v.lanes))
    sums = _sums(v, [[v.load_masked(source, at, mask)] for source in own], shares, block, hidden, GRU)
    states = []
    for image, (total,) in zip(images, sums, strict=True):
        place = v.iadd(v.imul(image, hidden), first)
        kept, before = (v.load_masked(v.pointer(source), place, mask) for source in (y, h))
        new = _tanh(v, total)
        states.append((place, v.fma(kept, v.fsub(before, new), new)))
    for place, state in states:  # behind all loads: the last image stands for those beyond
        v.store_masked(state, v.pointer(y), place, mask)


def _padded(v: Vec, hidden: Value) -> Value:
    """Units of whole vectors."""
    return v.imul(v.idiv(v.iadd(hidden, v.lanes - 1), v.lanes), v.lanes)


def _sums(
    v: Vec, gates: list[list[Value]], before: list[Value], weights: Value, hidden: Value, step: int = 0
) -> list[list[Value]]:
    """The gates of each image, plus the weights (hidden, gates, lanes) times its state.

    Args:
        step: gates from one unit to the next, where some are left out.
    """
    count, chains = len(gates[0]), CHAINS if len(gates) == 1 else 1
    sums = [[v.register(gate) for gate in own] for own in gates]
    others = [[v.register(v.zero()) for _ in own] for own in gates] if chains > 1 else sums

    def add(k: Value, into: list[list[simd.Register]]) -> None:
        row = v.at(weights, v.imul(k, (step or count) * v.lanes))
        read = [v.load(row, gate * v.lanes) for gate in range(count)]
        for own, state in zip(into, before, strict=True):
            unit = v.broadcast(state, k)
            for total, weight in zip(own, read, strict=True):
                total.set(v.fma(unit, weight, total.value))

    whole = v.imul(v.idiv(hidden, chains), chains)
    with v.loop(v.idiv(hidden, chains)) as i:
        for chain, into in enumerate((sums, others)[:chains]):
            k = v.iadd(v.imul(i, chains), chain)
            add(v.after(k) if count == LSTM else k, into)  # see LSTM
    if chains > 1:
        with v.loop(v.isub(hidden, whole)):
            add(whole, sums)
        for own, more in zip(sums, others, strict=True):
            for total, other in zip(own, more, strict=True):
                total.set(v.fadd(total.value, other.value))
    return [[total.value for total in own] for own in sums]


def _of_cells(v: Vec, gates: list[Value], cell: Value) -> Value:
    """The state of an LSTM from its gates: input, output, forget, candidate; the cell is changed."""
    entry, out, kept = (_sigmoid(v, gate) for gate in gates[:3])
    new = v.fma(kept, v.load(cell), v.fmul(entry, _tanh(v, gates[3])))
    v.store(new, cell)
    return v.fmul(out, _tanh(v, new))


def _mixed(v: Vec, gates: list[Value], candidate: Value, before: Value) -> Value:
    """The state of a GRU from its gates: update, reset, and what the state adds to the candidate."""
    kept, reset = (_sigmoid(v, gate) for gate in gates[:2])
    new = _tanh(v, v.fma(reset, gates[2], candidate))
    return v.fma(kept, v.fsub(before, new), new)


def _plain(v: Vec, total: Value, rectified: Value) -> Value:
    """The state of a plain layer from the sum of its gate."""
    state = v.register(v.fmax(total, v.zero()))
    with v.unless_negative(v.isub(0, rectified)):
        state.set(_tanh(v, total))
    return state.value


def _sigmoid(v: Vec, x: Value) -> Value:
    return activate(v, KINDS["sigmoid"].code, x, None, None)


def _tanh(v: Vec, x: Value) -> Value:
    return activate(v, KINDS["tanh"].code, x, None, None)
