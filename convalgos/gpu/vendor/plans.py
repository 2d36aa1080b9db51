"""What cuDNN offers for a problem: the plans of all its heuristic modes, in order, and how one is opened.

A plan is an engine with settings of its knobs, named by cuDNN as `eng67_k2=7_k13=0`. Plans that round more
than the problem asks for are barred before anything else is looked at.

What an engine does, its numerical notes tell. The front end filters by notes but does not list them, so they
are found by filtering. As that relies on a side effect, it is tried first on an engine that is known to be an
FFT. Where that fails, nothing is taken for granted: no plan is then taken to repeat its bits, and every one
to spread a NaN.

Source: nvidia-cudnn-frontend (pygraph, plans.h); cuDNN's numerical notes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from convalgos.core.cache_files import warn_once
from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import Device
from convalgos.gpu.vendor.graph import PLAIN, Epilogue, describe, with_explicit_padding
from convalgos.gpu.vendor.runner import planner

ENGINE = re.compile(r"eng(\d+)(.*)")  # other plans of a list are the front end's own, compiled when they run
BARRING = {"Deselecting": True, "orkspace": False}  # word of the front end's error -> whether a note barred
BARRED = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")  # less precise than what is asked for
TENSORS = "TENSOR_CORE"  # barred, too, where float32 is strict: their products are TF32
METHODS = {  # note -> the algorithm that it tells of; the first that an engine has
    "FFT": "FFT",
    "WINOGRAD_TILE_4x4": "Winograd, tiles of 4x4",
    "WINOGRAD_TILE_6x6": "Winograd, tiles of 6x6",
    "WINOGRAD_TILE_13x13": "Winograd, tiles of 13x13",
    "WINOGRAD": "Winograd",
    TENSORS: "implicit GEMM on tensor cores",
}
TRANSFORMS = frozenset(note for note in METHODS if note != TENSORS)
UNREAD = "notes not read"  # in the place of notes that could not be told
KNOWN = ConvProblem.parse("n16 c96 h28 w28 k128 r3 s3 p1"), 3, "FFT"  # a problem, an engine, and what it is

_building = threading.RLock()  # graphs may not be changed by two threads at once
_notes: dict[tuple[Any, ...], frozenset[str]] = {}  # kind of problem, engine -> its notes
_readable: dict[int, bool] = {}  # version of cuDNN -> whether its notes can be read


@dataclass(frozen=True)
class Offer:
    """A plan that cuDNN can run a problem by."""

    name: str  # cuDNN's
    workspace_bytes: int
    rank: int  # in the order of the heuristics, from 0
    listing: Listing = field(compare=False, repr=False)

    @property
    def word(self) -> str:
        """The name as the part of an id: letters, digits and underscores."""
        return word(self.name)

    @cached_property
    def notes(self) -> frozenset[str]:
        """cuDNN's numerical notes of the engine; a kind of problem is asked once, in some 50 ms."""
        return self.listing.notes(self.name)

    @property
    def knobs(self) -> str:
        return _parts(self.name)[1]

    @property
    def repeats(self) -> bool:
        """Whether it gives the same bits on every run."""
        return not self.notes & {"NONDETERMINISTIC", UNREAD}

    @property
    def transforms(self) -> bool:
        """Whether a NaN spreads over the tile or plane that it transforms."""
        return bool(self.notes & {*TRANSFORMS, UNREAD})

    @property
    def method(self) -> str:
        if UNREAD in self.notes:
            return "unknown"
        return next(
            (told for note, told in METHODS.items() if note in self.notes), "no transform, on CUDA cores"
        )

    def __str__(self) -> str:
        notes = f" ({', '.join(sorted(self.notes))})" if self.notes else ""
        return f"{self.name}: {self.method}{notes}, {self.workspace_bytes / 1e6:.2f} MB"


def word(name: str) -> str:
    """The name of a plan as the part of an id."""
    return name.replace("=-", "_m").replace("=", "_")


def barred(problem: ConvProblem) -> tuple[str, ...]:
    """Notes of the engines that round more than the problem asks for."""
    if problem.dtype in FLOAT8_DTYPES:  # whose sums are bounded as tensor cores make them
        return BARRED[:1]
    strict = problem.dtype == "float32" and problem.compute_dtype == "float32"
    return (TENSORS, *BARRED) if strict else BARRED


class Listing:
    """The plans for one problem. Looking at one builds it, which takes cuDNN a fraction of a millisecond."""

    def __init__(self, problem: ConvProblem, epilogue: Epilogue, where: dict[str, Any]):
        import cudnn

        self._front, self._problem, self._epilogue, self._where = cudnn, problem, epilogue, where
        self._offers: dict[str, Offer | None] = {}
        with _building:
            self._graph = self._planned(barred(problem))
            count = self._graph.get_execution_plan_count()
            names = [self._graph.get_plan_name_at_index(i) for i in range(count)]
        # Modes repeat each other's plans; the first place counts.
        self._index = {name: names.index(name) for name in names if ENGINE.fullmatch(name)}

    def offers(self, matches: Callable[[str], bool] = lambda name: True) -> Iterator[Offer]:
        """What is offered, in the order of the heuristics; those whose name does not match are not built."""
        for rank, name in enumerate(self._index):
            if not matches(name):
                continue
            if name not in self._offers:
                self._offers[name] = self._offer(name, rank)
            if (offer := self._offers[name]) is not None:
                yield offer

    def opened(self, name: str) -> Any:
        """A graph of its own whose only plan that is built, and so the one that it runs, is the named one."""
        with _building:
            graph = self._planned(())
            for i in range(graph.get_execution_plan_count()):
                if graph.get_plan_name_at_index(i) == name:
                    graph.build_plan_at_index(i)
                    return graph
        raise KeyError(name)

    def notes(self, name: str) -> frozenset[str]:
        """The notes of the engine of a plan, which all problems of a kind share."""
        p, version, engine = self._problem, self._front.backend_version(), _parts(name)[0]
        kind = version, p.direction, p.dtype, p.ndim, p.layout, p.groups > 1, self._epilogue
        if (kind, engine) not in _notes:
            found: dict[int, set[str]] = {_parts(n)[0]: set() for n in self._index}
            with _building:
                if not self._can_read():
                    return frozenset({UNREAD})
                for note in self._front.numerical_note.__members__:
                    for other, has in self._engines_with(note).items():
                        if has is not False:
                            found.setdefault(other, set()).add(note if has else UNREAD)
            _notes.update({(kind, e): frozenset(notes) for e, notes in found.items()})
        return _notes[(kind, engine)]

    # --- inside ------------------------------------------------------------------------------

    def _planned(self, notes: tuple[str, ...]) -> Any:
        """A graph with the plans of all heuristic modes, of which those with these notes are barred."""
        graph = describe(self._front, self._problem, self._epilogue, **self._where)
        graph.build_operation_graph()
        modes = self._front.heur_mode
        graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        if notes:
            graph.deselect_numeric_notes([getattr(self._front.numerical_note, note) for note in notes])
        return graph

    def _offer(self, name: str, rank: int) -> Offer | None:
        with _building:
            try:
                self._graph.build_plan_at_index(self._index[name])
            except Exception:  # barred, or not for this device; of several kinds
                return None
            return Offer(name, int(self._graph.get_workspace_size()), rank, self)

    def _can_read(self) -> bool:
        """Whether notes come out as they are for an engine that is known, and not for all."""
        version = self._front.backend_version()
        if version not in _readable:
            problem, engine, note = KNOWN
            told: dict[int, bool | None] = {}
            with suppress(Exception):  # cuDNN's own kinds
                told = Listing(problem, PLAIN, self._where)._engines_with(note)
            _readable[version] = told.get(engine) is True and False in told.values()
            if not _readable[version]:
                warn_once(
                    f"the notes of the engines of cuDNN {version} cannot be read, as engine {engine} is not "
                    f"told as {note}; no plan of it serves where deterministic or strict_nan is asked for"
                )
        return _readable[version]

    def _engines_with(self, note: str) -> dict[int, bool | None]:
        """Engine -> whether it is barred where this note is; None where that was not told.

        Building a plan of a graph that also bars any workspace fails at once, and the error says by which.
        """
        graph = self._planned((note,))
        graph.deselect_workspace_greater_than(-1)
        told: dict[int, set[bool]] = {}
        for i in range(graph.get_execution_plan_count()):
            match = ENGINE.fullmatch(graph.get_plan_name_at_index(i))
            if match is None:
                continue
            of_engine = told.setdefault(int(match[1]), set())
            try:
                graph.build_plan_at_index(i)
                of_engine.add(False)
            except Exception as error:
                of_engine |= {barred for word, barred in BARRING.items() if word in str(error)}
        return {engine: answers.pop() if len(answers) == 1 else None for engine, answers in told.items()}


def _parts(name: str) -> tuple[int, str]:
    """(engine, knobs) of the name of a plan."""
    match = ENGINE.fullmatch(name)
    assert match is not None, name
    return int(match[1]), match[2]


def twin(plain: Offer, listing: Listing) -> Offer | None:
    """The offer of a listing with an epilogue that runs the kernel of one without.

    Graphs with an epilogue number their engines anew, but the same settings of the same knobs and the same
    notes name the same kernel. Without knobs the number must be the same, too.
    """
    for offer in listing.offers(lambda name: _parts(name)[1] == plain.knobs):
        if (
            offer.notes == plain.notes
            and UNREAD not in plain.notes
            and (plain.knobs or offer.name == plain.name)
        ):
            return offer
    return None


@lru_cache(64)
def listing(problem: ConvProblem, device: Device, epilogue: Epilogue = PLAIN) -> Listing:
    """What cuDNN offers on a device; any exception of the front end where that is nothing."""
    with device.active():
        return Listing(with_explicit_padding(problem), epilogue, {"handle": planner(device)})
