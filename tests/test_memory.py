"""Memory of large arrays is used again, never while anyone can see it, and not without a bound."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import allocator

COUNT = allocator.LARGE // 4


@pytest.fixture(autouse=True)
def nothing_kept():
    allocator.release_arrays()
    yield
    allocator.release_arrays()


def test_arrays_start_on_a_cache_line_and_can_be_written():
    for count, dtype in ((1, np.float32), (3, np.float64), (COUNT, np.float32), (COUNT + 5, np.int64)):
        array = allocator.aligned_empty(count, dtype)
        assert array.shape == (count,) and array.dtype == dtype
        assert array.ctypes.data % allocator.ALIGNMENT == 0
        array.fill(7)
        assert (array == 7).all()
    assert not allocator.aligned_zeros(COUNT, np.float32).any()


def test_memory_is_used_again_once_the_last_view_is_gone():
    array = allocator.aligned_empty(COUNT, np.float32)
    address, view = array.ctypes.data, array.reshape(4, -1)[1:, ::2]
    view[...] = 5
    del array
    other = allocator.aligned_empty(COUNT, np.float32)
    assert other.ctypes.data != address  # the view is still there
    other.fill(0)
    assert (view == 5).all()
    del view
    assert allocator.aligned_empty(COUNT, np.float32).ctypes.data == address


def test_sizes_that_differ_much_do_not_share():
    addresses = {allocator.aligned_empty(COUNT, np.float32).ctypes.data}
    larger = allocator.aligned_empty(2 * COUNT, np.float32)
    half = allocator.aligned_empty(8 * COUNT, np.float32)
    assert larger.ctypes.data not in addresses and half.ctypes.data not in addresses


def test_what_is_kept_has_a_bound():
    held = [allocator.aligned_empty(COUNT, np.float32) for _ in range(2 * allocator.MOST // allocator.LARGE)]
    assert not allocator._kept
    held.clear()
    gc.collect()
    assert 0 < sum(memory.raw.nbytes for memory in allocator._kept) <= allocator.MOST


@pytest.mark.skipif(not allocator.LETS_GO, reason="pages cannot be given back")
def test_results_beyond_that_are_kept_where_the_system_may_take_them(monkeypatch):
    monkeypatch.setattr(allocator, "MOST", allocator.LARGE)
    monkeypatch.setattr(allocator.workspaces, "most", lambda: 2 * allocator.LARGE)
    held = [allocator.aligned_empty(2 * COUNT, np.float32, idles=True) for _ in range(9)]
    addresses = [array.ctypes.data for array in held]
    while held:
        held.pop(0)
    assert not allocator._kept
    assert 0 < sum(memory.raw.nbytes for memory in allocator._idle) <= allocator.IDLE * 2 * allocator.LARGE
    again = allocator.aligned_empty(2 * COUNT, np.float32)
    again.fill(2)
    assert again.ctypes.data == addresses[-1] and (again == 2).all()
    count = len(allocator._idle)
    del again  # which was not to be kept so
    assert len(allocator._idle) == count


@pytest.mark.skipif(not allocator.LETS_GO, reason="pages cannot be given back")
def test_what_calls_prepare_is_used_again_beyond_that(monkeypatch):
    monkeypatch.setattr(allocator, "MOST", 3 * allocator.LARGE)
    with allocator.of_one_call():
        held = [allocator.aligned_empty(2 * COUNT, np.float32) for _ in range(2)]
    held.append(allocator.aligned_empty(2 * COUNT, np.float32))  # of no such call
    addresses = [array.ctypes.data for array in held]
    while held:
        held.pop()
    assert len(allocator._kept) == len(allocator._idle) == 1
    again = [allocator.aligned_empty(2 * COUNT, np.float32) for _ in range(2)]
    for value, array in enumerate(again):
        array.fill(value)
    assert [array.ctypes.data for array in again] == addresses[:2]
    assert all((array == value).all() for value, array in enumerate(again))


def test_results_that_are_held_are_never_written_again():
    x = np.ones((1, 8, 256, 256), np.float32)
    filters = [np.full((8, 8, 1, 1), value, np.float32) for value in range(6)]
    results = [ca.conv(x, w) for w in filters]
    for value, y in enumerate(results):
        assert (y == 8 * value).all()


def test_threads_get_memory_of_their_own():
    def own(value):
        for _ in range(20):
            array = allocator.aligned_empty(COUNT, np.float32)
            array.fill(value)
            assert (array == value).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(own, range(4)))


def test_garbage_may_be_collected_amid_its_own_bookkeeping():
    held = [allocator.aligned_empty(COUNT, np.float32)]

    def collect():
        with allocator._lock:  # as when an allocation there collects a cycle that holds an array
            held.clear()
            allocator.aligned_empty(COUNT, np.float32)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "waits for itself"


@pytest.mark.parametrize(
    ("begin", "nbytes"), [(0, 100), (64, 3 * allocator.PIECE), (4000, allocator.PIECE + 1)]
)
def test_arrays_are_moved_whole_and_what_lies_beside_them_stays(begin, nbytes):
    whole = np.random.default_rng(0).integers(1, 256, begin + nbytes + 5000, np.uint8)
    before, target = whole.copy(), np.zeros(nbytes, np.uint8)
    allocator.move(whole[begin : begin + nbytes], target)
    np.testing.assert_array_equal(target, before[begin : begin + nbytes])
    np.testing.assert_array_equal(whole[:begin], before[:begin])
    np.testing.assert_array_equal(whole[begin + nbytes :], before[begin + nbytes :])
    if allocator.LETS_GO and nbytes > allocator.PIECE:
        assert not whole[begin : begin + nbytes].all(), "its pages are the system's again"
