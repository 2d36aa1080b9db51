"""Which shared libraries had all that is called in them, kept on disk.

Whether an algorithm can serve must be known before it is chosen. To load FFTW and MKL for that takes 8 MB,
which a process saves that computes nothing by them. A record counts for one file as installed, and goes when
it was not used for a month.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from functools import cache
from pathlib import Path

from convalgos.core.cache_files import NOWHERE, cache_folder, read_trusted, why_not_trusted, write_private
from convalgos.core.cache_pruning import mark_used, prune
from convalgos.core.digests import hex_digest

FORM = 1  # of what a record stands for; raise it when more of a library is called
MOST_BYTES = 1 << 20  # of all records, which are empty


@cache
def was_called(library: Path) -> bool:
    """Whether an earlier process called this library."""
    path = _path(library)
    if path is None:
        return False
    try:
        read_trusted(path)
        mark_used(path, path.stat().st_mtime)
    except OSError:
        return False
    return True


def keep_called(library: Path) -> None:
    """Tell later processes that this library can be called, if there is a place."""
    if (path := _path(library)) is not None and not was_called(library):
        with contextlib.suppress(OSError):
            write_private(path, b"")
            prune(path.parent, MOST_BYTES)


def _path(library: Path) -> Path | None:
    """Where the record of a library lies; None where others could write it."""
    with contextlib.suppress(OSError):
        status = library.stat()
        told = [FORM, str(library), status.st_ino, status.st_size, status.st_mtime_ns]
        asked = json.dumps([*told, platform.machine(), platform.release(), os.environ.get("LD_LIBRARY_PATH")])
        folder = cache_folder() / "libraries"
        if NOWHERE not in folder.parents and why_not_trusted(folder) is None:
            return folder / f"{hex_digest(asked.encode())[:32]}.record"
    return None
