"""Seconds in which filters come from L3 and from memory: those that the caches keep come from nearer by."""

from __future__ import annotations

from convalgos.core.machine import Machine, cache_sizes, whole_l3
from convalgos.core.problem import ConvProblem

# Shares of a cache up to which filters stay in it from one run to the next, and from which on nothing does.
# Xeon (Granite Rapids): dense and grouped 3x3 layers on 7x7 and 14x14, by direct sums and by Winograd.
L2_KEEPS, L2_LOSES = 0.8, 1.3
L3_KEEPS, L3_LOSES = 0.75, 1.5
FAR = 0.35  # of the speed of L3, at most, at which filters come from memory


def reading_seconds(read: float, of_thread: float, of_all: float, machine: Machine) -> float:
    """To read some bytes of filters in a run that is like the last one.

    Args:
        read: by all threads.
        of_thread: that a thread reads, beside what else it uses again and again.
        of_all: of all filters.
    """
    missing = _on_the_way(of_thread / cache_sizes()[1], L2_KEEPS, L2_LOSES)
    return missing * read * _seconds_of_byte(of_all, machine) if missing else 0.0


def rereading_seconds(nbytes: int, of_all: float, machine: Machine) -> float:
    """That are added to a run whose filters are read again, as those of other layers were read since.

    Args:
        nbytes: of the filters that it reads.
        of_all: bytes of those of all layers, which run in turn.
    """
    kept = min(nbytes, machine.threads * machine.l2_bytes)
    known = (nbytes - kept) * _seconds_of_byte(nbytes, machine)  # in any run
    return max(0.0, nbytes * _seconds_of_byte(of_all, machine) - known)


def beyond_l3_seconds(nbytes: int, machine: Machine) -> float:
    """That filters of so many bytes take longer in each run than from L3, as L3 cannot hold them."""
    return nbytes * max(0.0, _seconds_of_byte(nbytes, machine) - 1 / machine.cache_bandwidth)


def _seconds_of_byte(of_all: float, machine: Machine) -> float:
    """Of filters of so many bytes, that are not in L2."""
    # virtual machines of 2 cores were told of 480 MiB of L3, and twice their share of it held filters
    l3 = min(whole_l3(), 2 * cache_sizes()[2])
    from_memory = _on_the_way(of_all / l3, L3_KEEPS, L3_LOSES)
    far = min(machine.filter_bandwidth, machine.cache_bandwidth * FAR)
    return (1 - from_memory) / machine.cache_bandwidth + from_memory / far


def block_filter_seconds(problem: ConvProblem, blocks: int, parts: int, machine: Machine) -> float:
    """The same where each block of outputs of a group reads its filters, or in parts that threads share."""
    p, threads = problem, machine.threads
    shared = p.groups < threads and parts == 1  # every thread reads all filters
    if p.w_bytes / p.groups / parts < cache_sizes()[1]:  # the next block finds them in L2
        blocks = min(blocks, threads if shared else 1)
    return reading_seconds(blocks * p.w_bytes, p.w_bytes / (1 if shared else threads), p.w_bytes, machine)


def _on_the_way(value: float, low: float, high: float) -> float:
    """How far a value has come from low to high, from 0 to 1."""
    return min(1.0, max(0.0, (value - low) / (high - low)))
