"""A mapping that is found when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Later(Mapping[Key, Value]):
    """What `find` gives, from when anything of it is asked for.

    Example:
        >>> squares = Later(lambda: {n: n * n for n in range(4)})
        >>> squares[3]
        9
    """

    def __init__(self, find: Callable[[], Mapping[Key, Value]]):
        self._find: Callable[[], Mapping[Key, Value]] | None = find
        self._found: Mapping[Key, Value] = {}

    def _all(self) -> Mapping[Key, Value]:
        if self._find is not None:
            self._found, self._find = self._find(), None
        return self._found

    def __getitem__(self, key: Key) -> Value:
        return self._all()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
