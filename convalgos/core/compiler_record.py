"""What LLVM told of itself and of this processor, kept on disk.

Keys of compiled kernels and the choice of instructions need it. To ask LLVM costs 45 MB, so a process whose
kernels are all kept reads it here. A record counts for one llvmlite as installed, on one processor, and goes
when it was not used for a month.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from convalgos.core.cache_files import (
    NOWHERE,
    cache_folder,
    read_trusted,
    sealed,
    unsealed,
    why_not_trusted,
    write_private,
)
from convalgos.core.cache_pruning import mark_used, prune
from convalgos.core.digests import hex_digest
from convalgos.core.processor import cpuinfo

MOST_BYTES = 1 << 20  # of all records, of which one takes 2 KiB
FORM = 1  # of what a record holds; raise it when that changes
VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")  # for which processor code is made
OF_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags")


def known_compiler() -> dict[str, Any] | None:
    """What LLVM would tell, or None where it has to be asked."""
    return _read(tuple(map(os.environ.get, VARIABLES)))


def keep_compiler(told: dict[str, Any]) -> None:
    """Keep what LLVM told for later processes, if there is a place: without one they ask again."""
    if (path := _path()) is not None:
        with contextlib.suppress(OSError):
            write_private(path, sealed(json.dumps(told).encode()))
            prune(path.parent, MOST_BYTES)


# --- inside ----------------------------------------------------------------------------------


@cache
def _read(variables: tuple[str | None, ...]) -> dict[str, Any] | None:
    path = _path()
    if path is None:
        return None
    try:
        told = json.loads(unsealed(read_trusted(path)))
        mark_used(path, path.stat().st_mtime)
    except (OSError, ValueError):  # as if there were none; the next one takes its place
        return None
    return told if isinstance(told, dict) else None


def _path() -> Path | None:
    """Where the record lies; None where the system does not tell processors apart, or others could write."""
    library = _library()
    if library is None or not cpuinfo("flags"):
        return None
    asked = [str(FORM), str(library), platform.machine(), platform.release()]
    with contextlib.suppress(OSError):
        status = library.stat()
        asked += [str(n) for n in (status.st_ino, status.st_size, status.st_mtime_ns)]
        asked += [os.environ.get(name, "-") for name in VARIABLES]
        asked += map(cpuinfo, OF_PROCESSOR)
        folder = cache_folder() / "compiler"
        if NOWHERE not in folder.parents and why_not_trusted(folder) is None:
            return folder / f"{hex_digest(json.dumps(asked).encode())[:32]}.record"
    return None


def _library() -> Path | None:
    """The shared library of llvmlite."""
    try:
        found = importlib.util.find_spec("llvmlite")
    except (ImportError, ValueError):
        return None
    places = (found and found.submodule_search_locations) or ()
    files = (Path(place, "binding", "libllvmlite.so") for place in places)
    return next((file for file in files if file.is_file()), None)
