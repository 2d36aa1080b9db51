"""How threads share the vectors of units of each time of a recurrent layer.

The states of a time are all read by the next one, so that the threads of a team, its members, wait for each
other there. Each has vectors of its own, whose weights stay in its caches; it claims them one by one, and
those of the others behind them: a member for which no thread has come yet is done without, and whoever comes
late finds that all is claimed. A thread waits only for vectors that another one has begun.

Words of a team: for each member and time how many of its vectors are left, for each time how many are done,
and how many members have left. The last one that leaves makes them anew for the next launch.
"""

from __future__ import annotations

import numpy as np

from convalgos.core.allocator import aligned_empty
from convalgos.cpu.compile.lowering import helper
from convalgos.cpu.vectors.atomics import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_take,
    give_way,
    nanoseconds,
    pause,
)

WORD, LINE = 8, 8  # bytes of a word, and words of a cache line
PATIENT = 20_000  # nanoseconds that a member waits before it lets other threads have its core
LOOKS = 64  # between two looks at the clock


@helper
def row_words(times: int) -> int:
    """Words of a row: one for each time, and whole cache lines."""
    return (times + LINE - 1) // LINE * LINE


@helper
def team_words(members: int, times: int) -> int:
    """Words of a team: a row of each member, one of what is done, and a line of who has left."""
    return (members + 1) * row_words(times) + LINE


@helper
def first_of(member: int, members: int, blocks: int) -> int:
    """The first vector of a member."""
    return blocks * member // members


@helper
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
            return first_of(own + 1, members, blocks) - left
    return blocks


@helper
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


@helper
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
