"""How far a convolution scales over workers: what 1 and 2 processes measure, and 1,024 machines would do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from convalgos.core.errors import missing
from convalgos.core.problem import ConvProblem
from convalgos.studies.large_image import LargeImage, large_image_parts
from convalgos.studies.study import Answer, Chart, Finding, NotRun, Part, Study, StudyColumn, StudySetting

LARGE, SMALL = 1 << 24, 8  # bytes of messages whose times tell bandwidth and latency
EFFICIENT = 0.5  # of what so many workers could do: where scaling is said to end


@dataclass(frozen=True)
class ClusterFigures:
    """What was measured on the workers of this machine."""

    bandwidth: float  # bytes/s from one worker to another
    latency: float  # seconds of a message, as a task sees it
    task: float  # seconds that the scheduler takes for one


class ClusterStudy(Study):
    name: ClassVar[str] = "cluster"
    question: ClassVar[str] = "How many workers does a convolution keep busy, and what ends that?"
    source: ClassVar[str] = (
        "A seminar on convolutional networks that ended with data parallelism, where images are split and "
        "gradients are summed, and model parallelism, where filters are. Its figures are not at hand."
    )
    method: ClassVar[str] = (
        "Processes of one thread on this machine compute each problem by convalgos.dask, from chunks that "
        "they hold already; messages between them, and tasks that do nothing, are timed. A simulated cluster "
        "takes the time of one worker, scaled by the cost models to smaller blocks, and a network of "
        "10 Gbit/s, and picks for each number of workers the split that is predicted to be the fastest. At "
        "last a process that may take a part of an image's bytes convolves it through zarr."
    )
    look_at: ClassVar[str] = (
        "Where efficiency falls below a half, and whether moving data or the scheduler's tasks are the "
        "larger part there; and how far prediction and measurement are apart on two workers, which share "
        "the memory of one machine."
    )

    problems: ClassVar[dict[str, str]] = {
        "a layer of VGG-16, 64 images": "n64 c256 h56 w56 k256 r3 s3 p1",
        "an image of 8,192 x 8,192, 31x31": "n1 c1 h8192 w8192 k1 r31 s31 p15",
    }
    quick_problems: ClassVar[dict[str, str]] = {
        "a layer of VGG-16, 8 images": "n8 c64 h56 w56 k64 r3 s3 p1",
        "an image of 2,048 x 2,048, 31x31": "n1 c1 h2048 w2048 k1 r31 s31 p15",
    }
    large, quick_large = LargeImage(32, 904), LargeImage(22, 904, share=0.5)
    measured: ClassVar[tuple[int, ...]] = (1, 2)
    simulated: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    rounds: ClassVar[int] = 5

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        if reason := missing("dask"):
            yield NotRun("workers, and the cluster simulated by them", reason)
            return
        problems = {
            name: ConvProblem.parse(text)
            for name, text in (self.quick_problems if setting.quick else self.problems).items()
        }
        seconds: dict[tuple[str, int], float] = {}
        figures = None
        for workers in self.measured:
            setting.tell(f"{workers} workers")
            with local_workers(workers) as client:
                if workers > 1:
                    figures = measure_figures(client)
                for name, problem in problems.items():
                    seconds[name, workers] = median_seconds(client, problem, workers, self.rounds)
        if figures is not None:
            yield _figures_part(figures)
        for name, problem in problems.items():
            setting.tell(f"the simulated cluster: {name}")
            yield from self._simulated(name, problem, seconds, figures)
        setting.tell("an image larger than memory")
        yield from large_image_parts(self.quick_large if setting.quick else self.large, setting)
        if setting.device == "gpu":
            yield NotRun("workers with GPUs", "arrays of CuPy in chunks, which convalgos.dask does not take")

    def _simulated(
        self,
        name: str,
        problem: ConvProblem,
        seconds: dict[tuple[str, int], float],
        figures: ClusterFigures | None,
    ) -> Iterator[Answer]:
        """The table of a problem, and what it says."""
        cd = import_module("convalgos.dask")
        network = cd.Interconnect() if figures is None else cd.Interconnect(task=figures.task)
        own = seconds[name, 1]
        rows: list[tuple[str | float | None, ...]] = []
        last = None
        for workers in self.simulated:
            found = cd.plan(problem, workers, network)
            scale = own / found.whole_s if found.whole_s else 1.0  # of the models to this worker
            best = min(found.candidates, key=lambda split: _in_all(split, scale))
            in_all = _in_all(best, scale)
            real = seconds.get((name, workers))
            efficiency = own / workers / in_all
            if efficiency >= EFFICIENT:
                last = workers, best
            rows.append((
                workers, str(best), best.compute_s * scale * 1e3, best.exchange_s * 1e3,
                best.schedule_s * 1e3, in_all * 1e3, efficiency,
                None if real is None else real * 1e3, None if real is None else own / workers / real,
            ))  # fmt: skip
        yield Part(
            f"Simulated workers: {name}",
            f"{problem}; of the splits of each number of workers the fastest. Tasks are handed out one after "
            "the other while others compute: the time in all is the larger of both.",
            (
                StudyColumn("workers"), StudyColumn("split"), StudyColumn("compute", "ms"),
                StudyColumn("exchange", "ms"), StudyColumn("tasks", "ms"), StudyColumn("in all", "ms"),
                StudyColumn("efficiency predicted", "x"), StudyColumn("measured", "ms"),
                StudyColumn("efficiency measured", "x"),
            ),
            tuple(rows),
            Chart("lines", "workers", ("efficiency predicted", "efficiency measured"), log_x=True),
        )  # fmt: skip
        if last is not None:
            ends = rows[-1]
            yield Finding(
                "Splitting images or space moves less than splitting filters, whose workers read the same.",
                f"{name}: at {last[0]} workers the fastest split is {last[1]}, at an efficiency of at least "
                f"{EFFICIENT:.0%}; {ends[0]} workers come to {ends[6]:.1%}, by {ends[1]}.",
                last[1].filters == last[1].channels == 1 if last[0] > 1 else None,
            )


@contextmanager
def local_workers(count: int) -> Iterator[Any]:
    """A client of so many processes of one thread each, which end with it."""
    distributed = import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def median_seconds(client: Any, problem: ConvProblem, workers: int, rounds: int) -> float:
    """Seconds of a convolution on the workers, from chunks that they hold to such chunks."""
    cd, distributed = import_module("convalgos.dask"), import_module("distributed")
    da = import_module("dask.array")
    chunks, _ = cd.plan(problem, workers).chunks()
    shape = problem.array_shape(problem.x_shape)
    w = np.ones(problem.w_shape, problem.dtype)
    how = {"stride": problem.stride, "padding": problem.padding, "dilation": problem.dilation}

    def once(turn: int) -> float:
        # another x each time: a result that the workers still hold is not computed again
        x = client.persist(da.zeros(shape, dtype=problem.dtype, chunks=chunks) + np.float32(turn))
        distributed.wait(x)
        y = cd.conv(x, w, groups=problem.groups, layout=problem.layout, **how)
        began = time.perf_counter()
        distributed.wait(client.persist(y))
        return time.perf_counter() - began

    once(0)  # plans, and the pages of new arrays
    return statistics.median(once(1 + turn) for turn in range(rounds))


def measure_figures(client: Any) -> ClusterFigures:
    """Messages between two workers, and tasks that do nothing."""
    distributed = import_module("distributed")
    one, other = sorted(client.scheduler_info()["workers"])[:2]

    def moved(nbytes: int) -> float:
        times = []
        for turn in range(5):
            data = client.submit(np.full, nbytes, turn, "uint8", workers=[one], pure=False)
            distributed.wait(data)
            began = time.perf_counter()
            distributed.wait(client.submit(len, data, workers=[other], pure=False))
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    latency = moved(SMALL)
    return ClusterFigures(LARGE / max(1e-9, moved(LARGE) - latency), latency, _task_seconds(client.map))


def _task_seconds(submit: Callable[..., Any], count: int = 300) -> float:
    distributed = import_module("distributed")
    distributed.wait(submit(abs, range(count), pure=False))
    began = time.perf_counter()
    distributed.wait(submit(abs, range(count), pure=False))
    return (time.perf_counter() - began) / count


def _in_all(split: Any, scale: float) -> float:
    """Seconds of a split on workers that take `scale` times what the models say."""
    return float(max(split.compute_s * scale + split.exchange_s, split.schedule_s))


def _figures_part(figures: ClusterFigures) -> Part:
    return Part(
        "What workers on this machine take",
        "A message is what a task sees that needs data of another worker, the scheduler's part included.",
        (StudyColumn("what"), StudyColumn("ms", "ms"), StudyColumn("MB/s", "MB/s")),
        (
            ("a message of a few bytes", figures.latency * 1e3, None),
            (f"{LARGE >> 20} MiB from one worker to another", LARGE / figures.bandwidth * 1e3,
             figures.bandwidth / 1e6),
            ("a task that does nothing", figures.task * 1e3, None),
        ),
    )  # fmt: skip


STUDY = ClusterStudy()
