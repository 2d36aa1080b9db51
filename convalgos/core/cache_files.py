"""Whose files we use: what is loaded as code must have been written by this user, or by root.

Compiled kernels run in the process that loads them, and FFTW's wisdom is read by code that trusts it. So
their folder is used under the rule by which ssh uses keys: it and what is in it belong to this user or to
root, and nobody else can write there, or rename what lies on the way to it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from convalgos.core.digests import hex_digest

NOWHERE = Path(os.devnull) / "convalgos"  # a folder that nobody can make
MOST_LINKS = 40  # followed on the way to a folder, as the kernel does

_told: dict[str, object] = {}  # by message, the call that gave it


def warn_once(message: str) -> None:
    """A `RuntimeWarning` that comes once in a process, whatever the filters, and not with every kernel."""
    call = object()
    if _told.setdefault(message, call) is call:
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def cache_folder() -> Path:
    """Where convalgos keeps what it measured and compiled; CONVALGOS_CACHE_DIR overrides it.

    Where a user has no home folder, as some services do, it is one that cannot be made: nothing is kept.
    """
    if chosen := os.environ.get("CONVALGOS_CACHE_DIR"):
        return Path(chosen)
    try:
        folder = _user_cache()
    except RuntimeError:  # neither HOME nor an entry in the list of users
        folder = NOWHERE
    if not folder.is_absolute():  # "~/.cache", as it stands
        folder = NOWHERE
    if folder == NOWHERE:
        warn_once(
            "this user has no home folder: kernels and figures are not kept, and come anew in every process "
            "(set CONVALGOS_CACHE_DIR)"
        )
    return folder


def private_folder(folder: Path) -> bool:
    """Make a folder that only this user can read, and say whether code in it can be trusted.

    A folder that others can write to is passed over with a warning, once in a process; one that cannot be
    made is the trouble of whoever writes there.
    """
    with contextlib.suppress(OSError):
        _make_private(folder)
    if (reason := why_not_trusted(folder)) is None:
        return True
    warn_once(
        f"{folder} is not used, as others could put code there: {reason} (make it yours alone, with chmod "
        "go-w, or set CONVALGOS_CACHE_DIR to a folder that is)"
    )
    return False


def why_not_trusted(folder: Path) -> str | None:
    """Who else could change what lies in a folder, in words, or None. It need not exist."""
    if not hasattr(os, "getuid"):
        return None
    try:
        steps = _steps(Path(os.path.abspath(folder)))
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    end = steps[-1][0] if folder.exists() else None
    for path, status in steps:
        if (reason := _whose(status)) is not None:
            return f"{path} {reason}"
        shared = stat.S_ISDIR(status.st_mode) and _writable_by_others(status)
        # In a sticky folder such as /tmp nobody renames what is not theirs: what follows is looked at itself.
        if shared and (path == end or not status.st_mode & stat.S_ISVTX):
            return f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def read_trusted(path: Path) -> bytes:
    """The bytes of a file that nobody else can have written.

    Raises:
        OSError: there is none, or it is not to be trusted; says why.
    """
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, os.O_RDONLY | flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a file")
        if (reason := _whose(status)) is not None:
            raise PermissionError(f"{path} {reason}")
        if _writable_by_others(status):
            raise PermissionError(f"{path} can be written by others")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Write a file for this user alone, aside and renamed: readers see the old one or the new one whole.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    _make_private(path.parent)
    aside = path.with_name(f"{path.name}-{os.urandom(8).hex()}.part")
    try:
        with open(
            os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb"
        ) as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def sealed(content: bytes) -> bytes:
    """Content behind a line with its checksum."""
    return hex_digest(content).encode() + b"\n" + content


def unsealed(file: bytes) -> bytes:
    """The content of a file that was `sealed`.

    Raises:
        ValueError: it is not what was written.
    """
    checksum, _, content = file.partition(b"\n")
    if checksum != hex_digest(content).encode():
        raise ValueError("its checksum is another one")
    return content


def keep(path: Path, text: str, what: str) -> None:
    """Write a file of what this process found out; a folder that cannot be written costs only one warning."""
    if NOWHERE in path.parents:
        return  # `cache_folder` has said so
    try:
        write_atomic(path, text)
    except OSError as error:
        warn_once(f"{what} could not be kept: {error}")


def write_atomic(path: Path, content: str | Sequence[bytes | memoryview]) -> None:
    """Write aside and rename, so that readers see the old file or the new one, never half of it.

    Args:
        content: text, or pieces of bytes in their order.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}-{os.urandom(8).hex()}.part")
    try:
        with open(aside, "xb") as file:
            pieces = [content.encode()] if isinstance(content, str) else content
            file.writelines(pieces)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file out of the way, and say so."""
    kept = path.with_name(path.name + ".damaged")
    try:
        os.replace(path, kept)
    except OSError:
        kept = path
    warnings.warn(f"{path} was damaged ({reason}); kept as {kept.name}", RuntimeWarning, stacklevel=3)


# --- inside ----------------------------------------------------------------------------------


def _user_cache() -> Path:
    try:
        import platformdirs
    except ImportError:  # a machine with NumPy and CuPy alone
        return Path.home() / ".cache" / "convalgos"
    return Path(platformdirs.user_cache_dir("convalgos", appauthor=False))


def _make_private(folder: Path) -> None:
    """mkdir -p, for this user alone, whatever the umask."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def _steps(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Every folder and link on the way from the root to a folder, as far as it exists, and its status."""
    here, found, links = Path(folder.anchor), [], 0
    found.append((here, os.lstat(here)))
    todo = list(reversed(folder.parts[1:]))
    while todo:
        if (name := todo.pop()) == "..":
            here = here.parent
            continue
        here /= name
        try:
            status = os.lstat(here)
        except (FileNotFoundError, NotADirectoryError):
            break
        found.append((here, status))
        if stat.S_ISLNK(status.st_mode):
            if (links := links + 1) > MOST_LINKS:
                raise OSError(f"{folder} goes through too many links")
            target = Path(os.readlink(here))
            here = Path(target.anchor) if target.is_absolute() else here.parent
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return found


def _whose(status: os.stat_result) -> str | None:
    if hasattr(os, "getuid") and status.st_uid not in (0, os.getuid()):
        return f"belongs to user {status.st_uid}, not to {os.getuid()}"
    return None


def _writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


@cache
def _is_own_group(gid: int) -> bool:
    """Whether this user is alone in a group, as in the one that many systems give each user."""
    try:
        import grp
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
        members = {
            *grp.getgrgid(gid).gr_mem,
            *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid),
        }
    except (ImportError, KeyError, OSError):
        return gid == 0  # root's own group, on systems that do not say who is in it
    return members <= {name, "root"}
