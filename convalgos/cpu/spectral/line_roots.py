"""The roots of unity of `line_kernels`, in the order in which they are read."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convalgos.cpu.spectral.line_kernels import memory_radices, tile_radices


@lru_cache(16)
def roots_of_lines(n: int, lanes: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The powers of d, where a level parts nodes into R.

    Returns:
        (nodes, R - 1, 2) of all levels over memory behind each other, and those inside vectors, (tiles,
        lanes - 1, 2, lanes).
    """
    half = n // 2
    turns = np.array([0.25])  # (nodes), the angle of r over 2 pi
    levels = []
    for radix in memory_radices(half, lanes):
        levels.append(_powers(turns, radix).reshape(-1))  # (nodes * (R - 1) * 2)
        turns = _children(turns, radix)
    tiles = half // lanes**2
    inside = turns.reshape(tiles, lanes, 1)  # (tiles, lanes, nodes)
    parts = []
    for radix in tile_radices(lanes):
        powers = _powers(inside, radix)  # (tiles, lanes, nodes, R - 1, 2)
        parts.append(np.moveaxis(powers, 1, -1).reshape(tiles, -1, 2, lanes))
        inside = _children(inside, radix)
    memory = np.concatenate([*levels, np.zeros(lanes)])
    return memory.astype(dtype), np.ascontiguousarray(np.concatenate(parts, 1), dtype)


def _powers(turns: np.ndarray, radix: int) -> np.ndarray:
    """(..., R - 1, 2): cosine and sine of d, d^2, ... of each node.

    From angles below an eighth of a turn: the rounding of larger ones would be most of the error.
    """
    parts = turns[..., None] * np.arange(1, radix) / radix  # of a turn: exact, as all are multiples of 2^-k
    quarters = np.rint(4 * parts)
    angles = 2 * np.pi * (parts - quarters / 4)
    roots = (np.cos(angles) + 1j * np.sin(angles)) * np.array([1, 1j, -1, -1j])[quarters.astype(int) % 4]
    return np.stack([roots.real, roots.imag], -1)


def _children(turns: np.ndarray, radix: int) -> np.ndarray:
    """(..., nodes * R): the angles of d i^k."""
    children = (turns[..., None] + np.arange(radix)) / radix
    return children.reshape(*turns.shape[:-1], -1)
