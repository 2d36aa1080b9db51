"""Algorithms and rankers from outside the library: how packages name them, and what may be added.

A package names its own by an entry point. In the group `convalgos.algorithms` that is an algorithm or
several, in the group `convalgos.rankers` a ranker, known by the name of the entry point:

    [project.entry-points."convalgos.algorithms"]
    windows = "convalgos_windows:ALGORITHMS"

They are loaded when the algorithms, or the rankers, are first asked for. One that cannot be loaded is left
out with a warning, so that no package can keep others from working. CONVALGOS_EXTENSIONS=0 leaves all out.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from convalgos.core.algorithm import Algorithm
from convalgos.core.forks import guarded
from convalgos.core.installed_packages import info_folders

VARIABLE = "CONVALGOS_EXTENSIONS"
GROUPS = ("convalgos.algorithms", "convalgos.rankers")
DEVICES = ("cpu", "gpu")
ID = re.compile(r"(cpu|gpu)(\.[a-z0-9_]+)+")

# Held while algorithms are imported, our own too: the child of a fork would wait for ever for a half imported
# module.
importing = guarded(threading.RLock())
_loaded: set[str] = set()  # groups


def load_entry_points(group: str, take: Callable[[str, Any], None]) -> None:
    """Hand what packages name in a group to `take`, with the name of the entry point; once.

    Args:
        take: raises TypeError or ValueError where it is not what it should be.
    """
    with importing:
        if group in _loaded or os.environ.get(VARIABLE) == "0":
            return
        _loaded.add(group)  # first, as a package may ask for the algorithms while it is imported
        if not _may_be_named(group):
            return
        from importlib import metadata  # which importing convalgos does without

        for found in sorted(metadata.entry_points(group=group), key=lambda e: (e.name, e.value)):
            try:
                take(found.name, found.load())
            except Exception as error:  # whatever the package raises
                of = f" of {found.dist.name}" if found.dist else ""
                why = f"{type(error).__name__}: {error}"
                told = f"{group}: {found.name} = {found.value!r}{of} is left out: {why}"
                warnings.warn(told, RuntimeWarning, stacklevel=2)


def _may_be_named(group: str) -> bool:
    """Whether a package that is installed may name something in a group."""
    folders = info_folders()
    for folder in folders or ():
        with suppress(OSError):
            if group in (folder / "entry_points.txt").read_text("utf-8", "replace"):
                return True
    return folders is None


def algorithms_of(found: Any) -> tuple[Algorithm, ...]:
    """The algorithm or algorithms of an entry point."""
    return tuple(found) if isinstance(found, Iterable) else (found,)


def allowed(algorithm: Any, taken: Iterable[str]) -> Algorithm:
    """An algorithm that may be added.

    Args:
        taken: ids that the library has.

    Raises:
        TypeError: it is no instance of `Algorithm`. ValueError: its id is taken, or is no id.
    """
    if not isinstance(algorithm, Algorithm):
        hint = (
            f"{algorithm.__name__}() makes one"
            if isinstance(algorithm, type)
            else "rankers are given by name"
        )
        raise TypeError(f"algorithm={algorithm!r} must be an instance of a subclass of Algorithm ({hint})")
    if not ID.fullmatch(algorithm.id):
        raise ValueError(
            f"the id {algorithm.id!r} must be 'cpu.' or 'gpu.' and words of small letters, digits and _ "
            "with points between them, such as 'cpu.windows'"
        )
    if algorithm.id in taken:
        raise ValueError(f"the id {algorithm.id!r} is that of an algorithm of the library: take another")
    return algorithm
