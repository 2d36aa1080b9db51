"""Whether a network waits for its images: JPEG files of three sizes, loaded by one process or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np

from convalgos.core.errors import missing
from convalgos.select.measure.backends import Call
from convalgos.select.measure.timing import interleave
from convalgos.studies.image_input import answers
from convalgos.studies.image_input.decoding import SHAPE, ImageTask
from convalgos.studies.image_input.jpeg_files import read_files, write_images
from convalgos.studies.image_input.loaders import Loader, ProcessLoader, SerialLoader, ThreadLoader
from convalgos.studies.image_input.pipeline import Compute, Span, run_batches
from convalgos.studies.study import Answer, NotRun, Study, StudySetting

ROUNDS = 3
SERIAL = "serial"


@dataclass
class MeasuredInput:
    """What the parts of the answer are made of."""

    files: dict[str, list[Path]] = field(default_factory=dict)  # by resolution
    seconds: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # (resolution, way) -> of all its files
    spans: dict[str, list[Span]] = field(default_factory=dict)  # by way
    step: float | None = None  # seconds of a training step
    batch: int = 0

    def rate(self, resolution: str, way: str) -> float:
        """Images per second."""
        return len(self.files[resolution]) / self.seconds[resolution, way]


class InputStudy(Study):
    name: ClassVar[str] = "input"
    question: ClassVar[str] = (
        "When does a network wait for its images, and how many processes must load them?"
    )
    source: ClassVar[str] = (
        "A comparison of serial and multiprocess input by image resolution, which told the read bandwidth, "
        "when computation is the limit, and time lines of both. Its figures are not at hand."
    )
    method: ClassVar[str] = (
        "JPEG files of three resolutions are generated, written, and read through the file system. Each "
        "image is decoded, randomly cropped, resized to 224x224 and normalised, as ResNet-50 is trained: by "
        "one thread, by several, and by 1 to 16 processes that write into one shared memory. The ways take "
        "turns, and give the same batch. A training step of ResNet-50, its convolutions by convalgos, is "
        "timed beside them, and then both together."
    )
    look_at: ClassVar[str] = (
        "The first number of processes whose images come faster than the step takes them; on a CPU whoever "
        "loads takes cores from who computes, which the time lines show."
    )

    resolutions: ClassVar[tuple[tuple[int, int], ...]] = ((256, 256), (500, 375), (1600, 1200))
    processes: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16)
    quick_processes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    threads: ClassVar[tuple[int, ...]] = (2, 4)
    images: ClassVar[int] = 32  # of each resolution
    batch: ClassVar[int] = 8  # of a training step
    batches: ClassVar[int] = 5  # of a time line

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        if reason := missing("PIL"):
            yield NotRun("loading of JPEG files", reason)
            return
        found = MeasuredInput(batch=self.batch)
        with TemporaryDirectory(prefix="convalgos_input_") as folder, ExitStack() as opened:
            setting.tell("files")
            for width, height in self.resolutions:
                name = f"{width}x{height}"
                found.files[name] = write_images(Path(folder), width, height, self.images)
            yield from self._reading(found)
            setting.tell("processes")
            loaders = self._loaders(setting, opened)
            self._time_loaders(found, loaders, setting)
            yield answers.rates_part(found)
            yield from self._compute(found, loaders, setting)
        yield from answers.input_findings(found)

    def _reading(self, found: MeasuredInput) -> Iterator[Answer]:
        """The steps of an image, and how fast files are read."""
        medians = {}
        with SerialLoader(self.images) as loader:
            for resolution, files in found.files.items():
                loader.load(tasks_of(files))  # the first one reads code, too
                times = np.diff(loader.load(tasks_of(files)))  # (images, steps)
                medians[resolution] = [float(median) for median in np.median(times, 0)]
        yield answers.image_steps_part(found, medians)
        calls: dict[str, Call] = {}
        for resolution, files in found.files.items():
            for cached in (False, True):
                calls[f"{resolution} {cached}"] = partial(read_files, files, cached=cached)
        timings = interleave(calls, rounds=1, burst=3)
        rates = {}
        for resolution, files in found.files.items():
            size = sum(path.stat().st_size for path in files)
            disk, memory = (size / timings[f"{resolution} {cached}"].median for cached in (False, True))
            rates[resolution] = disk, memory
        yield answers.bandwidth_part(rates)

    def _loaders(self, setting: StudySetting, opened: ExitStack) -> dict[str, Loader]:
        """Way -> its loader, which ends with the stack."""
        found: dict[str, Loader] = {SERIAL: opened.enter_context(SerialLoader(self.images))}
        for threads in self.threads:
            found[f"{threads} threads"] = opened.enter_context(ThreadLoader(threads, self.images))
        for count in self.quick_processes if setting.quick else self.processes:
            way = f"{count} process{'es' if count > 1 else ''}"
            found[way] = opened.enter_context(ProcessLoader(count, self.images))
        return found

    def _time_loaders(self, found: MeasuredInput, loaders: dict[str, Loader], setting: StudySetting) -> None:
        for resolution, files in found.files.items():
            setting.tell(f"images of {resolution}")
            calls: dict[str, Call] = {}
            for way, loader in loaders.items():
                calls[way] = partial(loader.load, tasks_of(files))
            timings = interleave(
                calls, rounds=1 if setting.quick else ROUNDS, burst=1, deadline=setting.deadline
            )
            found.seconds |= {(resolution, way): timing.median for way, timing in timings.items()}

    def _compute(
        self, found: MeasuredInput, loaders: dict[str, Loader], setting: StudySetting
    ) -> Iterator[Answer]:
        """A training step, and the time lines of input and steps together."""
        if reason := missing("torch"):
            yield NotRun("the training step beside the input, and their time lines", reason)
            return
        setting.tell("training steps")
        compute = self.training_step(setting)
        zeros = np.zeros((self.batch, *SHAPE), np.float32)
        compute(zeros)  # plans, and the pages of new arrays
        timing = interleave({"step": partial(compute, zeros)}, rounds=ROUNDS, burst=1)["step"]
        found.step = timing.median
        yield answers.limits_part(found)
        largest, files = list(found.files.items())[-1]
        for way in (SERIAL, "2 processes"):
            if way not in loaders or setting.left() < 3 * self.batches * found.step:
                continue
            setting.tell(f"time line, {way}")
            batches = [tasks_of(files)[: self.batch]] * self.batches
            found.spans[way] = run_batches(loaders[way], batches, compute)
        if found.spans:
            yield answers.time_lines_part(found, largest)

    def training_step(self, setting: StudySetting) -> Compute:
        """A step of ResNet-50 on a batch (n, 3, 224, 224), its convolutions by convalgos."""
        import torch

        from convalgos.studies.network_training.networks import NETWORKS
        from convalgos.studies.network_training.stages import Training
        from convalgos.studies.network_training.words import OURS

        torch.set_num_threads(setting.threads)
        device = "cpu" if setting.device == "cpu" else "cuda"
        network = next(network for network in NETWORKS if network.name == "ResNet-50")
        training = Training(network, self.batch, device, channels_last=False)
        return lambda x: training.step(OURS, torch.from_numpy(x))


def tasks_of(files: Sequence[Path]) -> list[ImageTask]:
    """A batch of these files in their order."""
    return [ImageTask(path, seed, seed) for seed, path in enumerate(files)]


STUDY = InputStudy()
