"""Pooling on a GPU: kernels executed on the CPU, on a stand-in for CuPy."""

import time

import numpy as np
import pytest
from cuda_shim import cupy_stand_in as stand_in
from cuda_shim import device as shim
from cupy_devices import on, two_devices
from test_pooling import check, random_problem

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.core.pool_problem import DTYPES, PoolProblem
from convalgos.gpu.device import use
from convalgos.gpu.pooling.plan import GpuPoolPlan
from convalgos.tools.gpu_check import pooling

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with two_devices(monkeypatch):
        yield


def check_on_a_device(p):
    check(p, place=lambda array: on(0, array)[0], fetch=lambda array: array.array)


@pytest.mark.parametrize("seed", range(12))
def test_random_problems(seed):
    check_on_a_device(random_problem(seed))


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8"])
def test_other_types(dtype, reduction):
    layout = "channels_last" if dtype in ("float16", "uint8") else "channels_first"
    if dtype in DTYPES[reduction]:
        check_on_a_device(PoolProblem.of(
            (2, 5, 9, 14), (3, 2), stride=2, padding=1, reduction=reduction, layout=layout, dtype=dtype
        ))  # fmt: skip


def test_arrays_are_read_in_the_order_of_their_memory():
    x = np.random.default_rng(0).standard_normal((2, 6, 9, 8)).astype("f4")
    with stand_in.Device(1):
        last = stand_in.asarray(np.ascontiguousarray(np.moveaxis(x, 1, -1)))
        turned = stand_in.asarray(x)
        turned.array = np.moveaxis(last.array, -1, 1)
        y = ca.max_pool(turned, 3, stride=2)
    assert y.device.id == 1
    assert np.array_equal(y.array, ca.max_pool(x, 3, stride=2))
    assert not y.flags.c_contiguous, "y does not lie as x does"


def test_what_is_wrong_is_told():
    x, dy = on(0, np.zeros((1, 2, 6, 6), "f4"), np.zeros((1, 2, 3, 3), "f4"))
    with pytest.raises(ValueError, match="out has shape"):
        ca.avg_pool(x, 2, out=on(0, np.zeros((1, 2, 2, 2), "f4"))[0])
    with pytest.raises(TypeError, match="out has dtype float64"):
        ca.avg_pool(x, 2, out=on(0, np.zeros((1, 2, 3, 3)))[0])
    with pytest.raises(ValueError, match="dy has shape"):
        ca.max_pool_backward(dy, x, 3)
    with pytest.raises(ValueError, match="dy has"):
        ca.avg_pool_backward(dy, x.shape, 3)
    with pytest.raises(TypeError, match="dy has dtype"):
        ca.max_pool_backward(on(0, np.zeros((1, 2, 3, 3)))[0], x, 2)
    with pytest.raises(TypeError, match="no gradient"):
        ca.max_pool_backward(dy, on(0, np.zeros((1, 2, 6, 6), "i1"))[0], 2)
    with pytest.raises(ValueError, match="3, 4 or 5 dimensions"):
        ca.max_pool(on(0, np.zeros((3, 3), "f4"))[0], 2)


def test_empty_maps_and_maps_too_large():
    x = np.zeros((0, 3, 5, 5), "f4")
    assert ca.max_pool(on(0, x)[0], 2).shape == (0, 3, 2, 2)
    assert ca.avg_pool_backward(on(0, np.zeros((0, 3, 2, 2), "f4"))[0], x.shape, 2).shape == x.shape
    with use(shim.ShimDevice()), pytest.raises(Unsupported, match="kernels number"):
        GpuPoolPlan(PoolProblem.of((1, 2, 1 << 15, 1 << 15), 2))


def test_the_check_of_a_gpu_finds_it_right_and_tells_what_is_wrong(monkeypatch):
    problems = [(name, (2, 3, *shape[2:]), how) for name, shape, how in pooling.WINDOWS[1:]]
    monkeypatch.setattr(pooling, "WINDOWS", problems)
    device = shim.ShimDevice()
    with use(device):
        found = list(pooling.check_pooling(device, time.monotonic() + 60))
        assert len(found) == 8 * len(problems) and not any(result.wrong for result in found)
        monkeypatch.setattr(GpuPoolPlan, "mean_gradient", lambda self, dy, dx: dx.fill(1))
        monkeypatch.setattr(GpuPoolPlan, "run", lambda self, x, y, places=None: y.fill(1))
        found = list(pooling.check_pooling(device, time.monotonic() + 60))
        assert all(result.wrong for result in found if result.what != "dx")
        assert sum(result.wrong for result in found if result.what == "dx") >= 2 * len(problems)
