"""Huge pages for large arrays that nobody has written yet: each page of 4 KiB costs time when it is.

NumPy asks for them for its own arrays; what other libraries allocate, such as the results of XLA's programs,
lies in small pages unless somebody asks.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

LEAST = 1 << 22  # bytes of an array that is worth it, as NumPy has it
PAGE, ADVICE = 4096, 14  # bytes; MADV_HUGEPAGE of Linux


@cache
def advising_function() -> int:
    """The address of `madvise(begin, bytes, advice)`, or 0 where the system has no such advice."""
    if sys.platform != "linux":
        return 0
    return ctypes.cast(ctypes.CDLL(None).madvise, ctypes.c_void_p).value or 0


def ask_for_huge_pages(address: int, nbytes: int) -> None:
    """Ask for those of an array, if it is large; what is there already stays as it is."""
    if nbytes >= LEAST and (function := advising_function()):
        begin = -(-address // PAGE) * PAGE
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
        kind(function)(begin, address + nbytes - begin, ADVICE)
