"""What is kept for sizes of arrays, for programs that bring ever new ones: bounded, newest uses stay."""

from __future__ import annotations

from typing import Any, Final

from convalgos.core import workspaces
from convalgos.core.plan_cache import also_forget

ENTRY = 2 << 10  # bytes of a small thing that is kept, and of its key, beside its arrays
SHARE = 1 / 32  # of `workspaces.most` that the things of one cache take, if that is less than it was made for
UNKNOWN: Final = object()  # stands for what is not kept


class SizeCache(dict[Any, Any]):
    """Things by keys: `kept[key]` is one, or UNKNOWN.

    They are kept in two halves. A thing of the older half that is asked for goes to the newer one; when that
    is full, what is left of the older half is let go, and the newer one is the older one from then on.

    Args:
        nbytes: of all things, about.

    Example:
        >>> kept = SizeCache(4 * ENTRY)
        >>> for size in (1, 2, 3):
        ...     kept.keep(size, f"of {size}")
        >>> kept[1], kept[4] is UNKNOWN
        ('of 1', True)
    """

    def __init__(self, nbytes: int):
        super().__init__()
        self._most = nbytes // 2
        also_forget(self.clear)
        self._nbytes = 0  # of the newer half
        self._sizes: dict[Any, int] = {}
        self._older: tuple[dict[Any, Any], dict[Any, int]] = {}, {}

    def __missing__(self, key: Any) -> Any:
        things, sizes = self._older
        thing = things.pop(key, UNKNOWN)
        if thing is not UNKNOWN:
            self.keep(key, thing, sizes.get(key, 0))
        return thing

    def keep(self, key: Any, thing: Any, nbytes: int = 0) -> None:
        """Keep a thing whose arrays take so many bytes."""
        if self._nbytes >= min(self._most, SHARE / 2 * workspaces.most()):
            self._older = dict(self), self._sizes
            super().clear()
            self._sizes, self._nbytes = {}, 0
        self[key] = thing
        self._sizes[key] = nbytes
        self._nbytes += nbytes + ENTRY

    def clear(self) -> None:
        """Let go of all."""
        super().clear()
        self._sizes, self._nbytes, self._older = {}, 0, ({}, {})
