"""What nobody uses any more leaves a folder of the cache: once a day, with other processes in it or not."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

UNUSED = 30 * 86400  # seconds after which a file goes
DAY = 86400  # seconds between two marks of use, and between two looks for old files
ABANDONED = 3600  # seconds after which what is written aside belongs to no process any more


def mark_used(path: Path, last_use: float) -> None:
    """Note that a file is in use, at most once a day.

    Args:
        last_use: time of its last change, as `Path.stat` tells it.
    """
    if time.time() - last_use > DAY:
        with contextlib.suppress(OSError):
            os.utime(path)


def prune(folder: Path, most_bytes: int, now: float | None = None) -> None:
    """Remove files that nobody has used for a month, and the oldest beyond the bound, once a day.

    Other processes may do the same at once, or read what goes: what they have read stays with them.
    """
    now = time.time() if now is None else now
    stamp = folder / "pruned"
    try:
        if abs(now - stamp.stat().st_mtime) < DAY:
            return
    except OSError:
        pass
    with contextlib.suppress(OSError):
        stamp.touch(0o600)
        os.utime(stamp, (now, now))
        _remove_old(folder, stamp, most_bytes, now)


# --- inside ----------------------------------------------------------------------------------


def _remove_old(folder: Path, stamp: Path, most_bytes: int, now: float) -> None:
    found = []  # (last use, bytes, path), of folders of earlier versions, too
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            if path == stamp:
                continue
            with contextlib.suppress(OSError):
                status = path.lstat()
                age = now - status.st_mtime
                if age > (ABANDONED if name.endswith(".part") else UNUSED):
                    path.unlink()
                else:
                    found.append((status.st_mtime, status.st_size, path))
        for name in folders:
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(Path(place, name))
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size
