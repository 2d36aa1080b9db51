"""Plans for sizes that may come once: what is searched for them can wait until runs have paid for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_this = threading.local()  # later: whether plans that this thread makes let their searches wait


@contextmanager
def searching_later() -> Iterator[None]:
    """Within, plans are made whose searches wait."""
    before = searches_later()
    _this.later = True
    try:
        yield
    finally:
        _this.later = before


def searches_later() -> bool:
    return getattr(_this, "later", False)
