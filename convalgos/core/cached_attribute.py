"""`cached_attribute`: an attribute that is computed when it is first asked for, and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_attribute
else:

    class cached_attribute:
        """`functools.cached_property` without its lock, which before Python 3.12 takes a microsecond, and
        stays held in the child of a fork while another thread computes such a value.

        Two threads may compute the same value, of which one is kept.

        Example:
            >>> class Square:
            ...     side = 3
            ...
            ...     @cached_attribute
            ...     def area(self):
            ...         return self.side**2
            >>> Square().area
            9
        """

        def __init__(self, compute: Callable[[Any], Any]):
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value


__all__ = ["cached_attribute"]
