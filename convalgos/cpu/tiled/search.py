"""The search for a problem's boxes of tiles: of a few ways to cut it, the one of least effort."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar, cast

from convalgos.core import profiles
from convalgos.core.layouts import BLOCKS
from convalgos.core.machine import Machine, cache_sizes
from convalgos.core.problem import ConvProblem
from convalgos.cpu.runtime import jit
from convalgos.cpu.tiled.blocking import ONE_BOX, Cuts
from convalgos.cpu.tiled.cost import WAIT, BoxSchedule
from convalgos.cpu.tiled.geometry import plane, transformed_by

UNCUT = 4  # targets' worth of tiles up to which a row of a plain layout is not cut: its pieces are slow
LONG = 4096  # tiles of one column in a row, from which on a box is WIDE of them where L2 holds these twice:
WIDE = 256  # short pieces of rows that lie far apart come slowly from memory; Xeon (Granite Rapids)
ALIKE = 2.0  # times as many outputs, up to which maps are cut into boxes of the same size
BOXES = (6, 12, 24, 48, 96)  # tiles of a box that an exhaustive search tries

# Attributes that are the same for all kinds of tiles of a problem, and for maps of all sizes.
OF_ALL_KINDS = (
    *("depth", "lanes", "channel_blocks", "filter_blocks", "depth_taps", "phases", "row_tiles", "stacks"),
)
OF_LAYER = (
    *("lanes", "channel_blocks", "filter_blocks", "phases", "row_tiles", "slice_taps", "taps", "points"),
    *("u_bytes", "v_row"),
)
OF_PHASES = "phase_places", "point_taps"

A = TypeVar("A")
S = TypeVar("S", bound=BoxSchedule)


def uncut(kind: type[S], problem: ConvProblem, threads: int) -> S:
    """All tiles of a problem, of one output each, in one box: tiles of all sizes are made from these."""
    found: S = _uncut(cast(Any, kind), problem, threads)
    return found


@lru_cache(512)
def _uncut(kind: Any, problem: ConvProblem, threads: int) -> Any:
    same = kind is not BoxSchedule and kind.lanes is BoxSchedule.lanes  # of the same elements
    known = _of_all_kinds(problem, threads) if same else {}
    return kind(problem.as_3d, *plane(problem), ONE_BOX, True, threads, known)


def _of_all_kinds(problem: ConvProblem, threads: int) -> dict[str, Any]:
    base = uncut(BoxSchedule, problem, threads)
    return {name: getattr(base, name) for name in OF_ALL_KINDS}


def in_one_box(kind: type[S], problem: ConvProblem, m: int, r: int, threads: int) -> S:
    """All tiles of F(m, r) of a problem that `transformed_by` accepts, in one box."""
    transformed = transformed_by(problem, r)
    assert not isinstance(transformed, str)
    return uncut(kind, problem, threads).tiled((m if transformed[0] else 1, m if transformed[1] else 1))


def best(whole: S, box: int = 0) -> S:
    """Of the ways to cut a whole problem into boxes the one of least effort, and of equals the smallest.

    Boxes of single threads and of the team are compared by their times on a usual machine of this kind: what
    they wait for, filters or each other, takes other times than tiles.

    Args:
        box: tiles of a box, about; 0 for any number.
    """
    ways = box_ways(whole, box)
    own, shared = ([way for way in ways if way[1] is team] for team in (False, True))
    found = [_least_effort(whole, some) for some in (own, shared) if some]
    return found[0] if len(found) == 1 else min(found, key=lambda s: s.seconds(_usual_machine(s.threads)))


def is_alike(known: BoxSchedule, problem: ConvProblem) -> bool:
    """Whether a problem is to be cut into boxes of the size of those for other sizes of its maps."""
    grown = problem.gemm_m / max(1, known.problem.gemm_m)
    return 1 / ALIKE <= grown <= ALIKE and known.threads == jit.thread_count()


def boxed_like(known: S, problem: ConvProblem) -> S:
    """The cut of a problem in the tiles and about the boxes of one for other sizes of its maps."""
    rows, columns = plane(problem)
    axes = rows._replace(outputs=known.rows.outputs), columns._replace(outputs=known.columns.outputs)
    of_layer = {name: getattr(known, name) for name in OF_LAYER}
    whole = type(known)(problem.as_3d, *axes, ONE_BOX, True, known.threads, of_layer)
    sizes, uncut = _cutting(whole)
    cut = whole.cut_into(cuts_of(sizes, math.prod(known.box), uncut), known.team)
    cut.__dict__.update({name: getattr(known, name) for name in OF_PHASES})
    return cut


@lru_cache(16)
def _usual_machine(threads: int) -> Machine:
    return profiles.nominal(threads)


def _least_effort(whole: S, ways: Iterable[tuple[Cuts, bool]]) -> S:
    ways = tuple(ways)
    if len(ways) == 1:
        return whole.cut_into(*ways[0])
    least = math.inf
    found: list[S] = []
    for bound, cuts, team in _bounds(whole, ways):
        if bound > least:
            break
        tried = whole.cut_into(cuts, team)
        effort = tried.effort
        if effort <= least:
            found = [tried] if effort < least else [*found, tried]
            least = effort
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda s: (s.scratch_bytes, s.cuts[::-1]))


def different(known: A, others: Iterable[A], schedule_of: Callable[[A], BoxSchedule]) -> Iterator[A]:
    """The algorithms whose boxes differ from the known one's, and from one another's."""
    seen = {(schedule_of(known).cuts, schedule_of(known).team)}
    for other in others:
        boxes = schedule_of(other).cuts, schedule_of(other).team
        if boxes not in seen:
            seen.add(boxes)
            yield other


def box_ways(whole: BoxSchedule, box: int = 0) -> set[tuple[Cuts, bool]]:
    """Boxes worth a thought, as (cuts, team): of about each target, for single threads and for the team."""
    problem, threads, tile_bytes = whole.problem, whole.threads, whole.tile_bytes
    fitting = max(1, cache_sizes()[2] // 2 // tile_bytes)  # in half of L3
    wide = whole.columns.outputs == 1 and whole.grid[3] >= LONG
    wide = wide and 2 * WIDE * tile_bytes <= cache_sizes()[1]
    tried = (box,) if box else (WIDE,) if wide else whole.targets
    most = math.prod(whole.grid) * whole.row_tiles  # of a box: larger targets are the same to it
    sizes, uncut = _cutting(whole)
    rooms: list[tuple[bool, Iterable[int], int]] = [(False, tried, fitting // threads)]
    if threads > problem.groups:  # else threads have groups of their own: no filter is shared
        rooms.append((True, (box,) if box else (*whole.team_targets, fitting), fitting))
    return {
        (cuts_of(sizes, target / whole.row_tiles, uncut), team)
        for team, targets, room in rooms
        for target in {min(target, room, most) for target in targets}
    }


def _cutting(whole: BoxSchedule) -> tuple[list[tuple[int, int]], int]:
    """`sizes` and `uncut` of `cuts_of`."""
    order = (3, 1, 2, 0) if whole.depth.taps > 1 else (3, 2, 1, 0)  # slices first, where they share inputs
    p, grid = whole.problem, whole.grid
    uncut = 1 if p.layout in BLOCKS and p.y_layout in BLOCKS else UNCUT
    return [(d, grid[d]) for d in order if grid[d] > 1], uncut


def cuts_of(sizes: list[tuple[int, int]], room: float, uncut: int = UNCUT) -> Cuts:
    """Cuts into boxes of about so many tiles: whole rows, then the rest.

    Args:
        sizes: (dimension, tiles) of those that can be cut, in their order.
        uncut: rooms' worth of tiles up to which a row is not cut.
    """
    cuts = [1, 1, 1, 1]
    room = max(1.0, room)
    for d, size in sizes:
        if size > (uncut * room if d == 3 else room):
            cuts[d] = -(-size // max(1, round(room)))
            size = -(-size // cuts[d])
        room /= size
    return cuts[0], cuts[1], cuts[2], cuts[3]


def _bounds(whole: BoxSchedule, tried: Iterable[tuple[Cuts, bool]]) -> list[tuple[float, Cuts, bool]]:
    """(a lower bound of the effort, cuts, team) of each way, in this order: as if all tiles were whole."""
    threads, groups, work = whole.threads, whole.problem.groups, whole.tile_count / whole.threads
    group_bytes = whole.tile_bytes * whole.tile_count / groups
    found = []
    for cuts, team in tried:
        boxes = cuts[0] * cuts[1] * cuts[2] * cuts[3]  # of a group
        effort = work * whole.slowed(group_bytes / boxes, team) + WAIT * groups * boxes / threads
        found.append((effort, cuts, team))
    return sorted(found)
