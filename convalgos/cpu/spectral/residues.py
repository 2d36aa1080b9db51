"""Integers modulo primes: which primes, their roots of unity, and integers from their residues.

A number of less than half the product of some primes is known by its residues. The primes lie between 2^29
and 2^30, so that four times a residue is a word of 32 bits, and have roots of unity of order 2^22. A product
with a constant c takes two products of words, without a division: with c' = floor(2^32 c / p),
x c - floor(x c' / 2^32) p is below 2 p.

Source: Harvey 2014, "Faster arithmetic for number-theoretic transforms", arXiv:1205.2926 (his Algorithms 3
and 4, after Shoup); Garner 1959, "The residue number system".
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

LOG_ORDER = 22
PRIMES = (998244353, 985661441, 943718401, 935329793, 918552577)
GENERATORS = (3, 3, 7, 3, 5)  # of all that is not 0
PRIMES_OF_BYTES = (1, 2)  # how many tell sums of products of bytes apart: with 2, of up to 3e12 of them
WORD = 1 << 32
SHORT = 1 << 16  # elements of a transform, whose tables of at most a megabyte are kept for good


class Prime(NamedTuple):
    """What kernels read of a prime, for transforms of one length."""

    p: int
    roots: np.ndarray  # uint32 (nodes, 2), each with its c'; see `transform_roots`
    inverse_roots: np.ndarray
    tile_roots: np.ndarray  # uint32 (tiles, lanes - 1, 2, lanes), in the order in which a tile reads them
    inverse_tile_roots: np.ndarray


def primes_for(largest: int) -> int:
    """How many primes tell numbers of up to this absolute value apart.

    Raises:
        ValueError: all of them are too few.
    """
    for count in range(1, len(PRIMES) + 1):
        if 4 * largest < math.prod(PRIMES[:count]):
            return count
    raise ValueError(f"numbers up to {largest} have more than {len(PRIMES)} residues")


def shoup(constants: np.ndarray, p: int) -> np.ndarray:
    """uint32 (..., 2): constants below p, each with its c'."""
    wide = constants.astype(np.uint64)
    return np.stack([wide, (wide << np.uint64(32)) // np.uint64(p)], -1).astype(np.uint32)


def transform_roots(p: int, generator: int, nodes: int, inverse: bool) -> np.ndarray:
    """uint64 (nodes,): c of each node of x^2h - c^2 = (x^h - c)(x^h + c), from the root x^n - 1 on.

    The children of node i are 2 i and 2 i + 1; c depends on i alone, and not on the level.
    """
    c = np.ones(nodes, np.uint64)
    done = 1
    while done < nodes:
        root = pow(generator, (p - 1) // (4 * done), p)
        root = pow(root, p - 2, p) if inverse else root
        c[done : 2 * done] = c[:done] * np.uint64(root) % np.uint64(p)
        done *= 2
    return c


def prime_for(index: int, n: int, lanes: int) -> Prime:
    """A prime, ready for transforms of n elements in vectors of so many lanes."""
    return (_short_prime if n <= SHORT else _long_prime)(index, n, lanes)


def _made_prime(index: int, n: int, lanes: int) -> Prime:
    p, generator = PRIMES[index], GENERATORS[index]
    tables = []
    for inverse in (False, True):
        roots = transform_roots(p, generator, n // 2, inverse)  # (n / 2)
        tables.append((shoup(roots[: n // lanes], p), _tile_roots(roots, n, lanes, p)))
    return Prime(p, tables[0][0], tables[1][0], tables[0][1], tables[1][1])


_short_prime = cache(_made_prime)
_long_prime = lru_cache(len(PRIMES))(_made_prime)


def _tile_roots(roots: np.ndarray, n: int, lanes: int, p: int) -> np.ndarray:
    """uint32 (tiles, lanes - 1, 2, lanes): those of the last levels, of which a lane has a node each."""
    tiles = n // lanes**2
    levels, parts = [], 1
    while parts < lanes:
        nodes = roots[: tiles * lanes * parts].reshape(tiles, lanes, parts)
        levels.append(nodes.transpose(0, 2, 1))  # (tiles, parts, lanes)
        parts *= 2
    whole = shoup(np.concatenate(levels, 1), p)  # (tiles, lanes - 1, lanes, 2)
    return np.ascontiguousarray(whole.transpose(0, 1, 3, 2))


@cache
def reduction_constants(index: int, scale: int = 1) -> np.ndarray:
    """uint32 (6,): constants that reduce integers of 64 bits, times a scale, modulo a prime.

    The prime p, 2^32 and 1 with their c', and -2^63: the last three times the scale.
    """
    p = PRIMES[index]
    power, one = WORD * scale % p, scale % p
    return np.array([p, power, (power << 32) // p, one, (one << 32) // p, -(2**63) * scale % p], np.uint32)


@cache
def garner(count: int) -> np.ndarray:
    """uint64 (count, 3 + 2 * count): a row for each prime.

    The prime, the product of those before it, the product of all (both modulo 2^64), then the inverse of each
    prime before it, with its c'.
    """
    table = np.zeros((count, 3 + 2 * count), np.uint64)
    whole = math.prod(PRIMES[:count])
    for i, p in enumerate(PRIMES[:count]):
        row = [p, math.prod(PRIMES[:i]) % 2**64, whole % 2**64]
        for before in PRIMES[:i]:
            inverse = pow(before, p - 2, p)
            row += [inverse, (inverse << 32) // p]
        table[i, : len(row)] = row
    return table
