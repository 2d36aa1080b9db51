"""An image that does not fit into the memory that a process may take: read, convolved and written by chunks.

    python -m convalgos.studies.large_image FOLDER BYTES THREADS

convolves FOLDER/image.zarr by FOLDER/filter.npy into FOLDER/result.zarr in a process that the system gives no
more than so many bytes of memory of its own, and prints what it took.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core.cached_attribute import cached_attribute
from convalgos.core.errors import missing
from convalgos.core.problem import ConvProblem
from convalgos.studies.study import Answer, Finding, NotRun, Part, StudyColumn, StudySetting

TIMES = 3  # as large as memory is the image at least
SLOWEST = 5e7  # bytes/s of an image that is made, read, convolved and written


@dataclass(frozen=True)
class LargeImage:
    """An image of `blocks` x `blocks` chunks, and its filter.

    Args:
        about: rows and columns of a chunk, but for what `chunk` says.
        share: of the bytes of the image that the process may take.
    """

    blocks: int
    about: int
    taps: int = 31
    share: float = 1 / 3

    @cached_attribute
    def chunk(self) -> tuple[int, int]:
        """Rows and columns of a chunk: whole tiles of the algorithm that is picked for the image, so that
        chunks of the result are those of the image."""
        side = self.blocks * self.about
        problem = ConvProblem((1, 1, side, side), (1, 1, self.taps, self.taps), padding=self.taps // 2)
        pinning = import_module("convalgos.dask.pinning")
        starts = pinning.block_starts(pinning.pinned_algorithm(problem, "auto", ()), problem)
        rows, columns = (max(1, self.about // step) * step for step in starts)
        return rows, columns

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.chunk
        return self.blocks * rows, self.blocks * columns

    @property
    def nbytes(self) -> int:
        """Of the image in float32."""
        return 4 * math.prod(self.size)

    @property
    def limit(self) -> int:
        """Bytes that the process may take."""
        return int(self.share * self.nbytes)


@dataclass(frozen=True)
class LargeImageRun:
    """What the process took, and by how much its answer is wrong where it was looked at."""

    seconds: float
    peak: int  # bytes in memory at a time, code of libraries included
    error: float  # relative to the largest result


def lacking_for(image: LargeImage, folder: str, seconds: float) -> str | None:
    """What is missing, or None."""
    if reason := missing("zarr"):
        return reason
    if not sys.platform.startswith("linux"):
        return "Linux, which can limit the memory of a process"
    if shutil.disk_usage(folder).free < 3 * image.nbytes:
        return f"{3 * image.nbytes / 1e9:.1f} GB of space in {folder}"
    if seconds < image.nbytes / SLOWEST:
        return f"{image.nbytes / SLOWEST:.0f} s more than the study has"
    return None


def large_image_parts(image: LargeImage, setting: StudySetting) -> Iterator[Answer]:
    """The table of such a run, and what it says."""
    what = "an image of {:,} x {:,} in little memory".format(*image.size)
    with tempfile.TemporaryDirectory() as folder:
        if reason := lacking_for(image, folder, setting.left()):
            yield NotRun(what, reason)
            return
        run = run_in_little_memory(image, Path(folder), setting.threads)
    times = image.nbytes / run.peak
    yield Part(
        f"A filter of {image.taps}x{image.taps} on {what}",
        "A process reads it from zarr, convolves it and writes the result, while the system refuses it more "
        "memory of its own than the limit. The peak counts the code of libraries, too; the error is that "
        "where four chunks meet, against direct sums.",
        (
            StudyColumn("image", "MB"), StudyColumn("chunk", "MB"), StudyColumn("limit", "MB"),
            StudyColumn("peak", "MB"), StudyColumn("seconds", "s"), StudyColumn("error"),
        ),
        ((
            image.nbytes / 1e6, 4 * math.prod(image.chunk) / 1e6, image.limit / 1e6, run.peak / 1e6,
            run.seconds, f"{run.error:.1e}",
        ),),
    )  # fmt: skip
    yield Finding(
        f"An image {TIMES} times as large as the memory of a process is convolved by chunks.",
        f"The image is {times:.1f} times as large as the peak of the process, and "
        f"{image.nbytes / image.limit:.1f} times as large as its limit.",
        times >= TIMES,
    )


def run_in_little_memory(image: LargeImage, folder: Path, threads: int) -> LargeImageRun:
    """Convolve an image by a process that may take a share of its bytes.

    Raises:
        RuntimeError: the process failed, as where it wanted more.
    """
    zarr = import_module("zarr")
    (rows, columns), (chunk, _) = image.size, image.chunk
    how: dict[str, Any] = {
        "shape": (1, 1, rows, columns), "chunks": (1, 1, *image.chunk), "dtype": "f4", "compressors": None,
    }  # fmt: skip
    x = zarr.create_array(folder / "image.zarr", **how)
    zarr.create_array(folder / "result.zarr", **how)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 1, image.taps, image.taps), "f4")
    np.save(folder / "filter.npy", w)
    for first in range(0, rows, chunk):
        x[0, 0, first : first + chunk] = rng.standard_normal((chunk, columns), "f4")
    command = [sys.executable, "-m", __name__, str(folder), str(image.limit), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return LargeImageRun(found["seconds"], found["peak"], _error_at_crossing(folder, image, w))


def _error_at_crossing(folder: Path, image: LargeImage, w: np.ndarray) -> float:
    """Where four chunks meet, against direct sums."""
    import convalgos as ca

    zarr = import_module("zarr")
    reach, at = image.taps // 2, [image.blocks // 2 * size for size in image.chunk]
    read, written = ([slice(n - 20 - more, n + 20 + more) for n in at] for more in (reach, 0))
    x = zarr.open_array(folder / "image.zarr", mode="r")[:, :, *read]
    y = zarr.open_array(folder / "result.zarr", mode="r")[:, :, *written]
    right = ca.conv(x, w, algorithm="cpu.direct")
    return float(np.abs(y - right).max() / np.abs(right).max())


def _convolve(folder: Path, limit: int, threads: int) -> None:
    """In the process whose memory is limited."""
    import resource  # which is not on every system

    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    da, dask, zarr = map(import_module, ("dask.array", "dask", "zarr"))
    cd = import_module("convalgos.dask")
    x, w = da.from_zarr(folder / "image.zarr"), np.load(folder / "filter.npy")
    began = time.perf_counter()
    with dask.config.set(scheduler="threads", num_workers=threads):
        y = cd.conv(x, w, padding=w.shape[-1] // 2)
        y.rechunk(x.chunks).store(zarr.open_array(folder / "result.zarr"), lock=False)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak}))


if __name__ == "__main__":
    _convolve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
