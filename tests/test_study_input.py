"""The study of input: every way loads the same batch, none hangs, and time lines are what happened."""

import os
from itertools import pairwise
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs Pillow")

from convalgos.select.measure import backends
from convalgos.studies.image_input import answers, loaders
from convalgos.studies.image_input.decoding import SHAPE, STEPS, ImageTask, load_image, random_box
from convalgos.studies.image_input.jpeg_files import read_files, write_images
from convalgos.studies.image_input.loaders import ProcessLoader, SerialLoader, ThreadLoader
from convalgos.studies.image_input.pipeline import Span, run_batches, waited
from convalgos.studies.input import InputStudy, MeasuredInput, tasks_of
from convalgos.studies.study import Finding, Part, StudySetting


@pytest.fixture
def files(tmp_path):
    return write_images(tmp_path, 48, 36, 4)


def test_an_image_is_cropped_and_normalised(files):
    batch = np.full((2, *SHAPE), np.nan, np.float32)
    times = load_image(ImageTask(files[0], 3, 1), batch)
    assert len(times) == len(STEPS) + 1 and list(times) == sorted(times)
    assert np.isnan(batch[0]).all() and -2.2 < batch[1].min() < batch[1].max() < 2.7
    again = np.empty_like(batch)
    load_image(ImageTask(files[0], 3, 0), again)
    np.testing.assert_array_equal(again[0], batch[1])
    load_image(ImageTask(files[0], 4, 1), again)
    assert not np.array_equal(again[0], again[1]), "another seed is another crop"


def test_crops_lie_in_the_picture():
    random = np.random.default_rng(0)
    boxes = [random_box(40, 30, random) for _ in range(200)]
    assert all(0 <= left < right <= 40 and 0 <= upper < lower <= 30 for left, upper, right, lower in boxes)
    shares = [(right - left) * (lower - upper) / 1200 for left, upper, right, lower in boxes]
    assert min(shares) < 0.2 and max(shares) > 0.6
    assert random_box(1, 1000, random) == (0, 0, 1, 1000), "no crop of that shape fits"


def test_files_are_read_whole(files):
    size = sum(path.stat().st_size for path in files)
    assert read_files(files, cached=True) == read_files(files, cached=False) == size


def test_processes_load_what_one_thread_does_and_never_hang(files, tmp_path):
    tasks = tasks_of(files)
    with SerialLoader(4) as serial, ThreadLoader(2, 4) as threads, ProcessLoader(2, 4) as processes:
        for loader in (serial, threads, processes):
            loader.load(tasks)
        np.testing.assert_array_equal(threads.batch, serial.batch)
        np.testing.assert_array_equal(processes.batch, serial.batch)
        broken = tmp_path / "broken.jpg"
        broken.write_bytes(b"no image")
        with pytest.raises(ValueError, match=r"broken\.jpg"):
            processes.load([ImageTask(broken, 0, 0)])
        os.mkfifo(tmp_path / "endless.jpg")  # nobody will ever write it
        processes._patience = 0.2
        with pytest.raises(RuntimeError, match="did not answer within"):
            processes.load([ImageTask(tmp_path / "endless.jpg", 0, 0)])
        name = processes._memory.name
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_memory_is_given_back_where_processes_do_not_start(monkeypatch):
    made = []

    class Broken:
        def Pool(self, *_):
            raise OSError("no more processes")

    monkeypatch.setattr(loaders.multiprocessing, "get_context", lambda _: Broken())
    monkeypatch.setattr(loaders, "SharedMemory", lambda **how: made.append(SharedMemory(**how)) or made[-1])
    with pytest.raises(OSError, match="no more"):
        ProcessLoader(1, 1)
    with pytest.raises(FileNotFoundError):
        SharedMemory(made[0].name)


def test_spans_follow_one_another(files):
    seen = []
    with SerialLoader(2) as loader:
        spans = run_batches(
            loader, [tasks_of(files[:2]), tasks_of(files[2:])], lambda x: seen.append(x.copy())
        )
    assert [(s.what, s.batch) for s in spans] == [("input", 0), ("compute", 0), ("input", 1), ("compute", 1)]
    assert all(a.begin <= a.end <= b.begin for a, b in pairwise(spans))
    assert len(seen) == 2 and not np.array_equal(*seen)


def test_waiting_is_told_of_what_lies_between_the_steps():
    spans = [Span("input", 0, 0, 1), Span("compute", 0, 1, 2), Span("compute", 1, 5, 6)]
    assert waited(spans) == pytest.approx(3 / 4)


def test_the_study_tells_when_computation_is_the_limit(monkeypatch):
    monkeypatch.setattr(backends.CPU, "idle", 0.0)
    monkeypatch.setattr(backends.CPU, "warm_up", 0.0)
    sizes = {"resolutions": ((40, 30), (64, 48)), "images": 4, "batch": 2, "batches": 2}
    for name, value in {**sizes, "quick_processes": (), "threads": (2,)}.items():
        monkeypatch.setattr(InputStudy, name, value)
    monkeypatch.setattr(InputStudy, "training_step", lambda *_: lambda x: x.sum())
    monkeypatch.setattr("convalgos.studies.input.missing", lambda _: None)  # torch need not be there
    given = list(InputStudy().parts(StudySetting(quick=True, threads=2)))
    steps, bandwidth, rates, limits, lines = (part for part in given if isinstance(part, Part))
    assert [row[0] for row in bandwidth.rows] == ["40x30", "64x48"]
    for row in steps.rows:
        assert row[-1] == pytest.approx(sum(row[2:-1]))
    ways = [(r, way) for r in ("40x30", "64x48") for way in ("serial", "2 threads")]
    assert [row[:2] for row in rates.rows] == ways
    for row in limits.rows:
        fast = [r[1] for r in rates.rows if r[0] == row[0] and r[2] >= row[4]]
        assert row[5] == (fast[0] if fast else "none") and row[6] == pytest.approx(row[4] / row[1])
    assert {row[0] for row in lines.rows} == {"serial: input", "serial: compute"} and len(lines.rows) == 4
    assert any("Computation is the limit" in f.here for f in given if isinstance(f, Finding))


def test_the_first_way_that_keeps_up():
    found = MeasuredInput({"a": [Path()] * 32}, step=0.5, batch=8)
    found.seconds = {("a", "serial"): 3.0, ("a", "1 process"): 2.0, ("a", "2 processes"): 1.0}
    assert answers.first_that_keeps_up(found, "a") == "1 process", "16 images a second"
