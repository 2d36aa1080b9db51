"""Records that kernels are given: their fields set by name, copies of them, and tables that they point to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit

WORD = np.dtype(np.int64)


@cache
def _structure(record: np.dtype) -> type[ctypes.Structure]:
    """A record for ctypes."""
    kinds = {name: record[name] for name in record.names or ()}
    members = [(n, _structure(kind) if kind.names else ctypes.c_int64) for n, kind in kinds.items()]
    return type("Structure", (ctypes.Structure,), {"_fields_": members, "__slots__": ()})


def by_name(record: np.ndarray) -> Any:
    """The fields of a record as attributes of an object, set in a third of the time that NumPy takes.

    Args:
        record: (1,), of int64 fields and of records of these; it must outlive the object.
    """
    return _structure(record.dtype).from_address(jit.data_address()(record))


def record_of_fields(record: np.dtype, values: dict[str, int]) -> tuple[ctypes.Structure, int]:
    """(a record with these fields, the others 0; where it begins); one call, however many fields it has.

    Args:
        record: of int64 fields.
    """
    made = _structure(record)(**values)
    return made, ctypes.addressof(made)


@cache
def field_offset(record: np.dtype, name: str) -> int:
    """Bytes from the begin of a record to a field of it."""
    fields = record.fields
    assert fields is not None, "a record has fields"
    return fields[name][1]


def address_of_table(name: str, table: np.ndarray) -> int:
    """Where a table of a record begins, or a filter: kernels read its elements one after the other.

    Raises:
        ValueError: they do not lie so, as of a transposed array.
    """
    if not table.flags.c_contiguous:
        raise ValueError(
            f"{name}: an array of shape {table.shape} and strides {table.strides} must be C-contiguous"
        )
    return jit.data_address()(table)


def record_words(record: np.ndarray) -> np.ndarray:
    """The words of a record: mostly it was made of them, which is told sooner than NumPy views them."""
    words = record.base
    if type(words) is np.ndarray and words.dtype is WORD and words.nbytes == record.nbytes:
        return words
    return record.view(WORD)


def copy_of_record(record: np.ndarray) -> np.ndarray:
    """A copy of a record of int64 fields, which takes NumPy thirty times as long, field by field."""
    return np.ndarray(1, record.dtype, record_words(record).copy())


def copy_of_fields(record: np.ndarray) -> tuple[np.ndarray, Any, int]:
    """(the words of a copy of a record, which keep its memory; its fields by name; where it begins).

    What is kept is an array: the collector need not look at it.
    """
    words = record_words(record).copy()
    begin = jit.data_address()(words)
    return words, _structure(record.dtype).from_address(begin), begin


def record_of_words(fields: np.dtype, values: Sequence[Any]) -> np.ndarray:
    """(1,) a record of int64 fields with these values, in a quarter of the time that NumPy takes.

    Args:
        values: of a record within it a tuple.
    """
    if len(values) * WORD.itemsize != fields.itemsize:
        values = _words(values)
    assert len(values) * WORD.itemsize == fields.itemsize, "a value for each field"
    return np.ndarray(1, fields, np.array(values, WORD))


def _words(values: Sequence[Any]) -> list[int]:
    """The values of a record, those of records within it in their places."""
    found: list[int] = []
    for value in values:
        found.extend(_words(value) if type(value) is tuple else (value,))
    return found


def records_of_rows(fields: np.dtype, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """(rows,) records of int64 fields with these values, in a third of the time that NumPy takes."""
    return np.array(rows, WORD).reshape(-1).view(fields)


def empty_record(fields: np.dtype) -> np.ndarray:
    """(1,) a record of int64 fields, all zero, in a fifth of the time that NumPy takes."""
    return np.ndarray(1, fields, np.zeros(fields.itemsize // WORD.itemsize, WORD))
