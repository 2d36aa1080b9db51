"""Records of compiled calls for small arrays, made in a few microseconds, and the scratch that they share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from convalgos.core.allocator import aligned_zeros
from convalgos.cpu.runtime import jit


def filled_record(fields: np.dtype, values: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """A record of int64 fields and its address, from numbers and arrays by name, of which it holds addresses.

    Others are 0. Whoever asks keeps the arrays.
    """
    address_of, names = jit.data_address(), fields.names or ()
    given = [values.get(name, 0) for name in names]
    numbers = [address_of(v) if type(v) is np.ndarray else v for v in given]
    record = np.array(numbers, np.int64).view(fields)
    return record, address_of(record)


def scratch(nbytes: int) -> np.ndarray:
    """So many bytes at least, which all calls share, as none runs beside another."""
    return _power(max(12, (nbytes - 1).bit_length()))


@cache
def _power(bits: int) -> np.ndarray:
    return aligned_zeros(1 << bits, np.dtype(np.uint8))
