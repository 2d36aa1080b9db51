"""convalgos.dask on a cluster of processes, of which one is killed."""

import os
import signal
import time

import numpy as np
import pytest

distributed = pytest.importorskip("distributed", reason="needs Dask (pip install 'convalgos[dask]')")
da = pytest.importorskip("dask.array", reason="needs Dask (pip install 'convalgos[dask]')")

import convalgos as ca  # noqa: E402
import convalgos.dask as cd  # noqa: E402
from convalgos.core import setting  # noqa: E402
from convalgos.dask import tasks  # noqa: E402


@pytest.fixture(scope="module")
def client():
    """Two processes of a thread each."""
    with (
        distributed.LocalCluster(
            2, threads_per_worker=1, dashboard_address=None, death_timeout=30
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def arrays():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 4, 40, 30), "f4"), rng.standard_normal((6, 4, 3, 3), "f4")


def test_a_killed_worker_loses_nothing(client):
    """While half of the blocks are done; every task computes on the one thread of its worker."""
    x, w = arrays()
    cx = da.from_array(x, chunks=(1, 4, 20, 30))
    want = ca.conv(x, w, padding=1, algorithm="cpu.direct")
    y = cd.conv(cx, w, padding=1, algorithm="cpu.direct").map_blocks(slowly, meta=np.empty((0,) * 4, "f4"))
    lazy = client.persist(y)
    done = distributed.futures_of(lazy)
    while sum(f.done() for f in done) < len(done) // 2:
        time.sleep(0.005)
    victim = next(iter(client.run(os.getpid).values()))
    os.kill(victim, signal.SIGKILL)
    assert np.array_equal(lazy.compute(), want)


def slowly(block):
    """So that there is time to kill a worker amid its blocks."""
    time.sleep(0.03)
    with tasks.threads_of_task(100):
        assert setting.thread_count() == 1
    return block
