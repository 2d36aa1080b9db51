"""Batches loaded and computed with, one after the other or at the same time: when each began and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from convalgos.studies.image_input.decoding import ImageTask
from convalgos.studies.image_input.loaders import Loader

Compute = Callable[[np.ndarray], object]  # a training step on a batch (n, 3, 224, 224)


class Span(NamedTuple):
    """Seconds since the first batch was asked for."""

    what: str  # "input" or "compute"
    batch: int
    begin: float
    end: float


def run_batches(loader: Loader, batches: Sequence[Sequence[ImageTask]], compute: Compute) -> list[Span]:
    """Load and compute with each batch.

    1. The first batch is asked for.
    2. Each batch is waited for and copied out, and then the next one asked for: where other processes or
       threads load, they do so during the step.
    3. The step is computed.
    """
    began = time.monotonic()
    spans = []
    loading = loader.start(batches[0])
    for i, tasks in enumerate(batches):
        times = loading.get()
        spans.append(Span("input", i, min(t[0] for t in times) - began, max(t[-1] for t in times) - began))
        x = loader.batch[: len(tasks)].copy()  # (n, 3, 224, 224)
        if i + 1 < len(batches):
            loading = loader.start(batches[i + 1])
        begin = time.monotonic()
        compute(x)
        spans.append(Span("compute", i, begin - began, time.monotonic() - began))
    return spans


def waited(spans: Sequence[Span]) -> float:
    """Share of the time from the first step's end to the last one's in which nothing was computed."""
    steps = [span for span in spans if span.what == "compute"]
    whole = steps[-1].end - steps[0].end
    return 1 - sum(step.end - step.begin for step in steps[1:]) / whole if whole else 0.0
