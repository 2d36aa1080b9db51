"""Vectors in memory of which there are all lanes, or those that a mask tells."""

from __future__ import annotations

from convalgos.cpu.vectors.simd import Value, Vec


def load_lanes(v: Vec, source: Value, at: Value, mask: Value) -> Value:
    """A vector, of which a mask or None tells the lanes that there are; the others are 0."""
    return v.load(source, at) if mask is None else v.load_masked(source, at, mask)


def store_lanes(v: Vec, value: Value, to: Value, at: Value, mask: Value) -> None:
    """Write what `load_lanes` reads."""
    if mask is None:
        v.store(value, to, at)
    else:
        v.store_masked(value, to, at, mask)


def lane_masks(v: Vec, count: Value, vectors: int) -> list[Value]:
    """Of vectors behind each other, the lanes below a count of them all."""
    return [v.mask(v.isub(count, m * v.lanes)) for m in range(vectors)]
