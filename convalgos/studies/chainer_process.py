"""Chainer in a Python of its own: it needs an old NumPy, so it never shares a process with convalgos.

To install it: python -m venv chainer && chainer/bin/pip install "setuptools<60" "numpy<1.24" wheel, then
chainer/bin/pip install --no-build-isolation chainer==7.8.1, and CONVALGOS_CHAINER_PYTHON=chainer/bin/python.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convalgos.core import strict_json
from convalgos.core.errors import Unsupported
from convalgos.select.measure.timing import Timing
from convalgos.studies import chainer_runner
from convalgos.studies.layer_functions import LayerData

VARIABLE = "CONVALGOS_CHAINER_PYTHON"
HOW = (
    "a Python with Chainer, named by --chainer-python or CONVALGOS_CHAINER_PYTHON (pip install "
    '"setuptools<60" "numpy<1.24" wheel, then pip install --no-build-isolation chainer==7.8.1)'
)


@dataclass(frozen=True)
class ChainerRun:
    """What Chainer computed and how long it took, by function."""

    version: str
    answers: dict[str, np.ndarray]
    timings: dict[str, Timing]


def chainer_python() -> str | None:
    """The Python that has Chainer, where the user named one."""
    return os.environ.get(VARIABLE) or None


def run_chainer(python: str, data: LayerData, *, threads: int, rounds: int, seconds: float) -> ChainerRun:
    """Run all functions on these arrays by Chainer.

    Raises:
        Unsupported: the process failed, or took longer than so many seconds; in its own words.
    """
    counts = {f"{name}_NUM_THREADS": str(threads) for name in ("OPENBLAS", "OMP", "MKL")}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | counts
    with tempfile.TemporaryDirectory() as folder:
        arrays, answers = Path(folder, "arrays.npz"), Path(folder, "answers.npz")
        np.savez(arrays, **data.arrays())  # type: ignore[arg-type]
        command = [python, chainer_runner.__file__, str(arrays), str(answers), str(rounds)]
        found = strict_json.loads(_printed(command, environment, seconds))
        with np.load(answers) as kept:
            results = {name: kept[name] for name in kept}
    timings = {name: Timing(tuple(samples)) for name, samples in found["seconds"].items()}
    return ChainerRun(str(found["version"]), results, timings)


def _printed(command: list[str], environment: dict[str, str], seconds: float) -> str:
    """The last line that a program prints."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
        failed = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = str(error)
    if failed is not None:
        raise Unsupported(f"a working Chainer: {failed[:200] or 'it ended without a word'}")
    return done.stdout.strip().splitlines()[-1]
