"""convalgos.dask on a cluster of processes, of which one is killed."""

import os
import signal
import subprocess
import sys
import time
import warnings
from weakref import WeakValueDictionary

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import run

distributed = pytest.importorskip("distributed", reason="needs Dask (pip install 'convalgos[dask]')")
da = pytest.importorskip("dask.array", reason="needs Dask (pip install 'convalgos[dask]')")

import dask  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.dask as cd  # noqa: E402
from convalgos.core import allocator, interference, setting, workspaces  # noqa: E402
from convalgos.dask import tasks  # noqa: E402
from convalgos.select import devices, wisdom_file  # noqa: E402
from convalgos.tools.bench import cluster_hosts  # noqa: E402
from convalgos.tools.cli import select_commands  # noqa: E402
from convalgos.tools.evaluate.recorded_tables import read_table_file  # noqa: E402


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Two processes of a thread each, which remember what they measure in a folder of their own."""
    known = str(tmp_path_factory.mktemp("workers"))
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            death_timeout=30,
            env={"CONVALGOS_WISDOM": known},
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def arrays():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 4, 40, 30), "f4"), rng.standard_normal((6, 4, 3, 3), "f4")


@pytest.fixture
def both(client, monkeypatch):
    """The client, once a worker that a test killed has come back; all times are believed.

    It is no default, as none is on the command line.
    """
    monkeypatch.setattr(distributed.client, "_global_clients", WeakValueDictionary())
    client.wait_for_workers(2)
    client.run(believe_all_times)
    return client


def believe_all_times():
    interference.Meter.disturbed = lambda meter: False
    interference.AGREE = float("inf")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults")
def test_workers_keep_the_memory_of_small_buffers(client):
    """Dask has them give it back at once: then each transform of an FFT has page faults of its own."""
    assert client.submit(page_faults, pure=False).result() < 2000


def test_workers_keep_a_share_of_their_memory_for_blocks(client):
    """More than a process does by default, or less, as they may take much or little; of scratch, too."""
    kept, scratch, limit = client.submit(bytes_kept, pure=False).result()
    assert kept == int(limit * tasks.KEPT_SHARE)
    assert scratch == int(limit * workspaces.SHARE)


def test_workers_prepare_a_filter_once_for_all_calls(client):
    """Each call brings them other arrays of the same bytes; 147 KB of filter."""
    assert client.submit(is_prepared_once, pure=False).result() == [True, False]


def is_prepared_once():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3), "f4")
    plan = ca.plan(ca.ConvProblem((1, 64, 9, 9), w.shape), algorithm="cpu.winograd.f4x3")
    first = tasks.prepared(plan, w)
    return [tasks.prepared(plan, of) is first for of in (w.copy(), w + 1)]


def test_halos_are_moved_by_a_task_for_each_chunk(client):
    """Whatever the number of its neighbours; results have the bits of the whole."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 1500, 1400), "f4"), rng.standard_normal((1, 1, 5, 5), "f4")
    how = {"padding": 2, "algorithm": "cpu.depthwise.rows"}
    chunks = client.persist(da.from_array(x, chunks=(1, 1, 500, 700)).map_blocks(np.copy, dtype="f4"))
    y = cd.conv(chunks, w, **how)
    (own,) = dask.optimize(y)
    tasks_of_y = set(dict(own.dask)) - set(dict(chunks.dask))
    assert len(tasks_of_y) == 2 * chunks.npartitions + 1  # what is cut of chunks, and results; w
    assert np.array_equal(client.persist(y).compute(), ca.conv(x, w, **how))


def bytes_kept():
    with tasks.threads_of_task(1):
        return allocator.MOST, workspaces.most(), distributed.get_worker().memory_manager.memory_limit


def page_faults():
    """Of a hundred arrays of 300 KB, in a task."""
    import resource  # which is not on every system

    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    with tasks.threads_of_task(1):
        for _ in range(100):
            np.empty(300_000, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_a_killed_worker_loses_nothing(client):
    """While half of the blocks are done; every task computes on the one thread of its worker."""
    x, w = arrays()
    cx = da.from_array(x, chunks=(1, 4, 20, 30))
    want = ca.conv(x, w, padding=1, algorithm="cpu.direct")
    y = cd.conv(cx, w, padding=1, algorithm="cpu.direct").map_blocks(slowly, meta=np.empty((0,) * 4, "f4"))
    assert not cd.conv(cx, w)._is_written({})  # into memory of this process
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


def test_tuning_on_a_cluster_keeps_what_every_kind_of_machine_found(both, wisdom):
    """One worker of a host times, into a folder of its own; a machine of another kind gets its own file."""
    problem = "n1 c4 h9 w9 k4 r3 s3 p1"
    how = ["--scheduler", both.scheduler.address, "--effort", "measure", "--budget", "20"]
    told = CliRunner().invoke(select_commands.tune_command, [problem, *how], catch_exceptions=False)
    here = devices.store()
    assert f"{here.fingerprint}: 1 problems tuned on 1 of its kind" in told.output
    assert "no times are kept" not in told.output
    ((_, found),) = cluster_hosts.hosts_by_kind(both).items()
    assert len(found) == 1  # of two workers, on one host
    assert here.lookup(ca.ConvProblem.parse(problem))
    text = wisdom_file.dump("another_machine-2t-v64-linux", here.entries())
    assert ca.wisdom.merge_text(text).machine == "another_machine-2t-v64-linux"
    assert sorted(path.stem for path in wisdom.iterdir() if path.suffix == ".json") == sorted(
        [here.fingerprint, "another_machine-2t-v64-linux"]
    )


def test_hosts_share_the_work_and_a_worker_that_dies_is_replaced(both, monkeypatch):
    """One task at a time on a host; what one had that lost its workers goes to the others of its kind."""
    monkeypatch.setattr(cluster_hosts, "LOOK", 0.05)
    monkeypatch.setattr(cluster_hosts, "PATIENCE", 0.3)
    items = {"one": list(range(6)), "other": [7]}
    hosts = {"one": ["203.0.113.1", "127.0.0.1"], "other": ["127.0.0.1"]}
    found = []
    for kind, item, (pid, value) in cluster_hosts.run_on_hosts(both, hosts, items, with_pid, 10):
        assert value == item + 10
        found.append((kind, item))
        if len(found) == 2:
            os.kill(pid, signal.SIGKILL)
    assert sorted(found) == [*(("one", item) for item in range(6)), ("other", 7)]
    with pytest.raises(
        ca.Unsupported, match=r"203\.0\.113\.1 has lost its workers, and no other host is one"
    ):
        list(cluster_hosts.run_on_hosts(both, {"one": ["203.0.113.1"]}, items, with_pid, 10))
    assert not list(cluster_hosts.run_on_hosts(both, hosts, items, with_pid, 10, go_on=lambda: False))


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (("here", "kind"), "has convalgos an older version, but here is "),
        (("here", "kind", "9.9"), r"has convalgos 9\.9, but here is "),
        (
            ModuleNotFoundError("No module named 'convalgos'"),
            ".* must be installed there, too: ModuleNotFound",
        ),
    ],
)
def test_workers_of_another_version_or_of_none_are_refused(told, reason):
    """Their figures would be kept as those of this one."""

    class Cluster:
        def run(self, function, on_error):
            return {"tcp://127.0.0.1:9": told}

    with pytest.raises(ca.Unsupported, match=rf"127\.0\.0\.1:9 {reason}"):
        cluster_hosts.hosts_by_kind(Cluster())


def test_a_scheduler_that_dies_is_told_and_what_was_found_is_kept():
    """Neither a hang nor a traceback, though work is left."""
    found = []
    with subprocess.Popen([sys.executable, "-c", CLUSTER], stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        with (
            pytest.raises(OSError, match=f"{address}: the connection is lost"),
            cluster_hosts.connected(address) as client,
        ):
            items = {"one": [-1, -2]}
            for _, _, value in cluster_hosts.run_on_hosts(client, {"one": ["127.0.0.1"]}, items, abs):
                found.append(value)
                process.kill()
    assert found == [1]


CLUSTER = """
import time
from distributed import LocalCluster

with LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=None) as cluster:
    print(cluster.scheduler_address, flush=True)
    time.sleep(60)
"""


def with_pid(item, more):
    return os.getpid(), item + more


@pytest.mark.parametrize("address", ["nonsense", "tcp://host", "foo://host:1"])
def test_what_is_no_address_of_a_scheduler_is_told_at_once(address):
    problem = "n1 c4 h9 w9 k4 r3 s3 p1"
    told = run("tune", problem, "--scheduler", address, status=2).stderr
    assert f"--scheduler={address}: " in told and "such as tcp://host:8786" in told


def test_recording_on_a_cluster_keeps_a_table_for_each_kind_of_machine(both, tmp_path):
    """One worker of a host times, and what was recorded before is not timed again."""
    (tmp_path / "layers.txt").write_text("n1 c4 h9 w9 k4 r3 s3 p1\nn1 c2 h5 w5 k4 r1 s1\n")
    how = ["record", tmp_path / "layers.txt", "--out", tmp_path / "tables"]
    cluster = ["--scheduler", both.scheduler.address]
    assert "0 of 2 layers" in run(*how, *cluster, "--time-limit", 0).stdout
    assert "2 of 2 layers" in run(*how, *cluster).stdout
    folder = tmp_path / "tables" / devices.store().fingerprint
    written = (folder / "journal.jsonl").read_text()
    table = read_table_file(folder / "table.json")
    assert len(table.layers) == 2 and all(layer.times for layer in table.layers)
    assert "2 of 2 layers" in run(*how, *cluster).stdout
    assert (folder / "journal.jsonl").read_text() == written


class HeldBytes(distributed.SchedulerPlugin):
    """The most that workers held of results at a time."""

    def __init__(self, scheduler):
        self.scheduler, self.held, self.most = scheduler, {}, 0

    def __enter__(self):
        self.scheduler.add_plugin(self, name="held")
        return self

    def __exit__(self, *error):
        self.scheduler.remove_plugin("held")

    def transition(self, key, start, finish, *args, **kwargs):
        self.held.pop(key, None)
        if finish == "memory":
            self.held[key] = self.scheduler.tasks[key].nbytes
            self.most = max(self.most, sum(self.held.values()))


@pytest.mark.parametrize(
    ("chunk", "kernel", "algorithm", "there"),
    [
        (400, 5, "cpu.direct.pixels", False),
        (402, 3, "cpu.winograd.f4x3", False),
        (402, 3, "cpu.winograd.f4x3", True),
    ],
)
def test_workers_hold_few_rows_of_an_image_that_they_store(chunk, kernel, algorithm, there, both, tmp_path):
    """2.2 rows of 16 where Dask's own way holds 4.1; where chunks are cut anew to store them, 2.4 and 6.9.

    Into an array that is there Dask's own way holds all of them.
    """
    zarr = pytest.importorskip("zarr", reason="needs zarr (pip install 'convalgos[dask]')")
    rows, columns, name = 16, 6, str(tmp_path / "image.zarr")
    size = {"shape": (1, 1, rows * chunk, columns * chunk), "chunks": (1, 1, chunk, chunk)}
    image = zarr.create_array(name, fill_value=1, dtype="f4", **size)
    image[0, 0, chunk - 1 : chunk + 2, :5] = 7
    w = np.ones((1, 1, kernel, kernel), "f4")
    how = {"padding": kernel // 2, "algorithm": algorithm}
    y = cd.conv(da.from_zarr(name), w, **how)

    def most_held(result):
        with (
            HeldBytes(both.cluster.scheduler) as held,
            dask.config.set(scheduler=both),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("error", message=".*irregular chunk sizes")  # than a file may have
            y.to_zarr(zarr.create_array(result, dtype="f4", **size) if there else result)
        return held.most

    # Where the system stops one worker for a while, the other goes on and more is held: the least of several.
    results = [str(tmp_path / f"result{i}.zarr") for i in range(4)]
    limit = 3.8 * columns * chunk * chunk * 4
    assert any(most_held(result) < limit for result in results)
    at = slice(chunk - 20, chunk + 20)
    want = ca.conv(image[:, :, chunk - 30 : chunk + 30, :50], w, **how)[:, :, 10:50, :40]
    found = zarr.open_array(results[0])
    assert found.chunks == image.chunks
    np.testing.assert_allclose(found[:, :, at, :40], want, rtol=1e-5)


def test_what_fails_while_workers_store_is_told(both):
    y = cd.conv(da.ones((1, 1, 40, 40), dtype="f4", chunks=(1, 1, 20, 20)), np.ones((1, 1, 3, 3), "f4"))
    with dask.config.set(scheduler=both), pytest.raises(NotADirectoryError, match="not to be written"):
        y.store(Refusing(), lock=False)


class Refusing:
    """Takes no block."""

    shape, dtype = (1, 1, 38, 38), np.dtype("f4")

    def __setitem__(self, where, block):
        raise NotADirectoryError("not to be written")


def test_an_image_larger_than_the_memory_it_may_take(tmp_path):
    """92 MB are read, convolved and written by a process that takes less than a third of them."""
    zarr = pytest.importorskip("zarr", reason="needs zarr (pip install 'convalgos[dask]')")
    size, chunk = 4800, 800
    image = zarr.create_array(
        tmp_path / "image.zarr",
        shape=(1, 1, size, size),
        chunks=(1, 1, chunk, chunk),
        dtype="f4",
        fill_value=1,
    )
    image[0, 0, :3, :5] = 7
    done = subprocess.run([sys.executable, "-c", CONVOLVE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < size * size * 4 / 3
    corner = np.ones((1, 1, 20, 20), "f4")
    corner[0, 0, :3, :5] = 7
    result = zarr.open_array(tmp_path / "result.zarr")
    want = ca.conv(corner, np.ones((1, 1, 5, 5), "f4"), padding=2)[..., :17, :17]
    assert np.array_equal(result[:, :, :17, :17], want)
    assert (result[:, :, chunk - 4 : chunk + 4, chunk - 4 : chunk + 4] == 25).all()


CONVOLVE = """
import resource, sys
import dask, dask.array as da, numpy as np
import convalgos.dask as cd

folder = sys.argv[1]
w = np.ones((1, 1, 5, 5), "f4")
warm = da.ones((1, 1, 1600, 1600), dtype="f4", chunks=(1, 1, 800, 800))
dask.config.set(scheduler="threads", num_workers=2)
cd.conv(warm, w, padding=2, algorithm="cpu.direct.pixels").sum().compute()  # code, and memory of its own
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = cd.conv(da.from_zarr(folder + "/image.zarr"), w, padding=2, algorithm="cpu.direct.pixels")
y.to_zarr(folder + "/result.zarr")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
