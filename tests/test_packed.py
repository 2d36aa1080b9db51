"""1x1 layers whose pixels are packed: right on awkward sizes, the same bits however cut, and the cut."""

import math

import numpy as np
import pytest
from helpers import check, example
from narrow_vectors import run_on_haswell

from convalgos import ConvProblem
from convalgos.cpu import direct
from convalgos.cpu.gemm import packed_blocking, panel_packing
from convalgos.cpu.gemm.blocking import flat_view
from convalgos.cpu.gemm.packed_plan import PackedPlan
from convalgos.cpu.runtime.threads import on_one_thread
from convalgos.cpu.vectors import simd

AWKWARD = [
    "c700 h3 w5 k65 r1 s1",  # several passes over the channels, and a panel of few filters
    "n3 c33 h1 w7 k70 r1 s1",  # spare rows in the last tile
    "n2 c40 h13 w17 k130 r1 s1 groups2",
    "c17 w1009 k97 s1",  # more blocks than threads, the last one short
    "c20 d2 h3 w4 k80 t1 r1 s1 float64",
    "c5 h9 w1 k3 r1 s1",
]
PACKS = "packed_blocking.LEAST_FILTERS = packed_blocking.LEAST_PIXELS = 1; packed_blocking.IN_PLACE = 1e9"


@pytest.fixture(autouse=True)
def packing(monkeypatch):
    """Packs every layer that can be."""
    monkeypatch.setattr(packed_blocking, "IN_PLACE", 1e9)
    monkeypatch.setattr(packed_blocking, "LEAST_FILTERS", 1)
    monkeypatch.setattr(packed_blocking, "LEAST_PIXELS", 1)
    direct.packing.cache_clear()
    yield
    direct.packing.cache_clear()


@pytest.mark.parametrize("text", AWKWARD)
def test_packed_pixels_are_summed_right(text):
    problem = ConvProblem.parse(text)
    assert isinstance(direct.Direct().plan(problem), PackedPlan)
    check(direct.Direct(), problem)


@pytest.mark.parametrize("text", ["c700 h6 w7 k100 r1 s1", "n3 c40 h5 w5 k70 r1 s1"])
def test_the_cut_does_not_change_a_bit(text):
    """Nor do threads, nor whether pixels are packed at all."""
    problem = ConvProblem.parse(text)
    x, w, bias, _ = example(problem, "reals")
    plans = [direct.Direct().plan(problem), direct.DirectPlan(problem, direct.Direct())]
    with on_one_thread():
        plans.append(direct.Direct().plan(problem))
    first, *others = (
        plan(x, plan.prepare(w), bias=bias, activation="relu", out=np.full(problem.y_shape, np.nan, x.dtype))
        for plan in plans
    )
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("text", ["c1024 h14 w14 k1024 r1 s1", "c512 h7 w7 k2048 r1 s1"])
def test_threads_do_not_store_into_one_line(text):
    """They share the filters where neighbouring pixels of a row of y lie in one line."""
    assert packed_blocking.packed_cut(flat_view(ConvProblem.parse(text)), 2)[1].parts == 2


def test_threads_share_pixels_by_whole_lines():
    cut = packed_blocking.packed_cut(flat_view(ConvProblem.parse("c480 h16 w16 k48 r1 s1")), 2)[1]
    assert cut.parts == 1 and cut.blocks % 2 == 0 and cut.pixels * 4 % 64 == 0


def test_packed_pixels_stay_in_the_second_cache():
    problem = flat_view(ConvProblem.parse("c4944 h15 w15 k824 r1 s1"))
    cut = packed_blocking.packed_cut(problem, 2)[1]
    assert cut.packed_bytes < packed_blocking.cache_sizes()[1] <= 4 * 4944 * math.prod(problem.spatial)


def test_packed_pixels_on_narrow_vectors():
    run_on_haswell(
        "from convalgos.cpu import direct\n"
        "from convalgos.cpu.gemm import packed_blocking\n"
        f"{PACKS}\n"
        f"for text in {AWKWARD[1:2]}:\n"
        "    problem = ConvProblem.parse(text)\n"
        "    assert direct.packing(problem)[1] is not None\n"
        "    check(direct.Direct(), problem)\n"
    )


def test_panels_are_dealt_evenly_to_parts_of_the_filters():
    """352 filters are 22 vectors: no panel has one of padding alone, and the parts have 11 each."""
    for taps in (64, 1024):
        cut = packed_blocking.packed_cut(flat_view(ConvProblem.parse(f"c{taps} h7 w7 k352 r1 s1")), 2)[1]
        ends = cut.vectors_of * np.arange(cut.panels + 1) // cut.panels
        assert cut.parts == 2 and ends[-1] == -(-352 // simd.lanes(4)) and cut.panels % 2 == 0
        assert 2 * ends[cut.panels // 2] == ends[-1] and np.ptp(np.diff(ends)) <= 1


def test_panels_of_several_groups_hold_their_filters():
    w = np.arange(1.0, 1 + 2 * 70 * 3, dtype=np.float32).reshape(2, 70, 3)  # (groups, filters, taps)
    lanes = simd.lanes(4)
    vectors = -(-70 // lanes)
    packed = panel_packing.packed_panels(w, 2)[: 2 * vectors * lanes * 3].reshape(2, -1)
    split = vectors // 2 * lanes
    for group, row in zip(w, packed, strict=True):
        first, last = row[: split * 3].reshape(3, -1), row[split * 3 :].reshape(3, -1)
        found = np.concatenate([first, last], 1).T  # (filters with those of padding, taps)
        assert np.array_equal(found[:70], group) and not found[70:].any()
