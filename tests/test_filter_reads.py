"""Prices of filters that come from L3 or from memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from convalgos import ConvProblem
from convalgos.core.machine import Machine
from convalgos.cpu.runtime import filter_reads
from convalgos.cpu.runtime.filter_reads import beyond_l3_seconds, rereading_seconds
from convalgos.cpu.winograd import Winograd

L3 = 32 << 20
MACHINE = Machine("test", 2, 64, 1 << 15, 1 << 20, L3, 5e11, 2.5e11, 2e10, 6e10, 2e-6)


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_reads, "cache_sizes", lambda: (1 << 15, 1 << 20, L3))
    monkeypatch.setattr(filter_reads, "whole_l3", lambda: L3)


def test_filters_of_small_networks_come_from_l3() -> None:
    assert rereading_seconds(1 << 20, L3 / 2, MACHINE) == pytest.approx((1 << 20) / 60e9)


def test_what_no_run_finds_in_the_caches_is_not_charged_again() -> None:
    cached = 2 * MACHINE.l2_bytes
    assert rereading_seconds(5 * cached, L3 / 2, MACHINE) == pytest.approx(cached / 60e9)
    assert rereading_seconds(4 * L3, 5.0 * L3, MACHINE) < 2 * cached / 20e9


def test_filters_of_large_networks_come_from_memory() -> None:
    near, between, far = (rereading_seconds(1 << 20, share * L3, MACHINE) for share in (0.7, 1.1, 2.0))
    assert near < between < far == pytest.approx((1 << 20) / 20e9)


def test_filters_that_l3_cannot_hold_take_longer_in_each_run() -> None:
    assert beyond_l3_seconds(L3 // 2, MACHINE) == 0
    assert beyond_l3_seconds(4 * L3, MACHINE) == pytest.approx(4 * L3 * (1 / 20e9 - 1 / 60e9))


def test_filters_come_as_fast_as_memory_is_only_read() -> None:
    """A copy, which is read and written at once, may be faster."""
    machine = replace(MACHINE, bandwidth=4e10, read_bandwidth=1.5e10)
    assert rereading_seconds(1 << 20, 2.0 * L3, machine) == pytest.approx((1 << 20) / 15e9)


def test_sums_hide_filters_that_outgrow_l2_where_it_gives_whole_lines() -> None:
    problem, winograd = ConvProblem.parse("n1 c64 h14 w14 k64 r3 s3 p1"), Winograd(4)
    reading = 4e-5 / winograd.filter_waits
    small = replace(MACHINE, l2_bytes=1 << 8, clock=4e9)
    whole = 64 * 2 * small.clock  # bytes/s
    machines = [replace(small, l2_bandwidth=share * whole) for share in (0.4, 0.75, 1)]
    sums = [winograd.seconds_between_layers(problem, 3e-5, reading, m) for m in machines]
    assert sums == pytest.approx([7e-5, 6e-5, math.hypot(3e-5, 4e-5)], rel=0.01)
    for keeps in (replace(machines[-1], l2_bytes=1 << 20), replace(small, clock=None)):
        assert winograd.seconds_between_layers(problem, 3e-5, reading, keeps) == pytest.approx(7e-5)
