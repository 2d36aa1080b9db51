"""Pooling calls that come again go straight to their kernels: only calls of the very same meaning do."""

import threading

import numpy as np
import pytest

import convalgos as ca
from convalgos.api import pooling, recent_pools
from convalgos.core import plan_cache

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def nothing_kept():
    plan_cache.forget_all_plans()


@pytest.fixture
def told(monkeypatch):
    """The calls that went the long way."""
    calls, tell = [], recent_pools.tell_made
    monkeypatch.setattr(pooling, "tell_made", lambda *given: (calls.append(given), tell(*given)))
    return calls


def drawn(*shape, dtype="f4"):
    return RNG.integers(-9, 10, shape).astype(dtype)


def calls_of(dtype, layout):
    """(call of arrays, draws new ones) of each function."""
    shape = (2, 6, 7, 3) if layout == "channels_last" else (2, 3, 6, 7)
    y_shape = ca.max_pool(np.zeros(shape, dtype), 3, stride=2, layout=layout).shape
    how = {"stride": 2, "layout": layout}

    def with_places():
        x = drawn(*shape, dtype=dtype)
        return drawn(*y_shape, dtype=dtype), x, ca.max_pool(x.copy(), (3, 3), return_indices=True, **how)[1]

    yield lambda x: ca.max_pool(x, 3, **how), lambda: (drawn(*shape, dtype=dtype),)
    yield lambda x: ca.avg_pool(x, 3, **how), lambda: (drawn(*shape, dtype=dtype),)
    yield lambda dy, x: ca.max_pool_backward(dy, x, 3, **how), lambda: with_places()[:2]
    yield lambda dy, x, i: ca.max_pool_backward(dy, x, 3, indices=i, **how), with_places
    yield lambda dy: ca.avg_pool_backward(dy, tuple(shape), 3, **how), lambda: with_places()[:1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_call_that_comes_again_reads_its_own_arrays(dtype, layout, told):
    for call, draw in calls_of(dtype, layout):
        call(*draw())
        before = len(told)
        for _ in range(3):
            arrays = draw()
            before = len(told)
            found = call(*arrays)
            assert len(told) == before, "it went the long way"
            strided = [
                np.stack([a, a])[0] if a.dtype == np.int64 else np.repeat(a, 2, 0)[::2] for a in arrays
            ]
            assert found.dtype == np.dtype(dtype) and np.array_equal(found, call(*strided))


def test_what_differs_is_told_apart():
    x = drawn(1, 2, 9, 9)
    for _ in range(2):  # the second time all of them are known
        assert ca.max_pool(x, 3).shape == (1, 2, 3, 3)
        assert ca.max_pool(x, 3, stride=2).shape == (1, 2, 4, 4)
        assert ca.max_pool(x, (3, 3), stride=(2, 1)).shape == (1, 2, 4, 7)
        assert ca.max_pool(x, (3, 3), stride=(1, 2)).shape == (1, 2, 7, 4)
        assert ca.max_pool(x, 2, stride=2, ceil_mode=True).shape == (1, 2, 5, 5)
        assert ca.max_pool(x, 2, stride=2, ceil_mode=False).shape == (1, 2, 4, 4)
        assert ca.max_pool(x.astype("f8"), 3).dtype == np.float64
        assert ca.max_pool(x.view("u4").astype(np.uint8), 3).dtype == np.uint8


def test_arguments_that_are_refused_stay_so():
    x, dy = drawn(1, 2, 9, 9), drawn(1, 2, 3, 3)
    ca.max_pool(x, (3, 3)), ca.max_pool(x, 1), ca.max_pool_backward(dy, x, (3, 3))
    for kernel in ((3.5, 3), (3, 3, 3), -1, (3, None)):
        with pytest.raises((TypeError, ValueError)):
            ca.max_pool(x, kernel)
    with pytest.raises(ValueError, match="dy has shape"):
        ca.max_pool_backward(dy[:, :, :2].copy(), x, (3, 3))
    with pytest.raises(TypeError, match="dy has dtype"):
        ca.max_pool_backward(dy.astype("f8"), x, (3, 3))
    with pytest.raises(ValueError, match="indices has shape"):
        places = ca.max_pool(x, (3, 3), return_indices=True)[1]
        ca.max_pool_backward(dy, x, (3, 3), indices=places)
        ca.max_pool_backward(dy, x, (3, 3), indices=places[:, :, :1].copy())


def test_changed_arguments_and_outputs_are_not_kept():
    x = drawn(1, 2, 8, 8)
    kernel = [2, 2]
    assert ca.max_pool(x, kernel).shape == (1, 2, 4, 4)
    kernel[0] = 4
    assert ca.max_pool(x, kernel).shape == (1, 2, 2, 4)
    out = np.full((1, 2, 4, 4), np.nan, "f4")
    for _ in range(2):
        assert ca.max_pool(x, 2, out=out) is out and np.array_equal(out, ca.max_pool(x, 2))
        out.fill(np.nan)
    assert ca.max_pool(x, 2) is not ca.max_pool(x, 2)
    turned, swapped = np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1), x.astype(">f4")
    for other in (turned, swapped, x.tolist()):
        assert np.array_equal(ca.max_pool(np.asarray(other, x.dtype), 2), ca.max_pool(other, 2))


def test_more_calls_than_are_kept_and_several_threads():
    shapes = [(1, c, 4 + c, 5) for c in range(1, 21)]
    expected = {s: (x := drawn(*s), ca.max_pool(np.asfortranarray(x), 2)) for s in shapes}
    wrong = []

    def work(number):
        for i in range(60):
            x, y = expected[shapes[(i * (number + 1)) % len(shapes)]]
            if not np.array_equal(ca.max_pool(x, 2), y):
                wrong.append(x.shape)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
