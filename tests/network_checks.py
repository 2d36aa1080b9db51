"""One random network, run in every way: against ONNX Runtime, and each way against the plainest.

Convolutions of integers are exact, so that a quantised network gives the same bits by all algorithms and in
all layouts: the reference, channels first, is its judge. ONNX Runtime rounds sums and means another way, and
judges it roughly. Float32 is judged by ONNX Runtime without its optimisations; how much a network enlarges
errors is found by moving its inputs a little.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
from network_ways import CLOSE, Arrays, Found, Way, wrong
from random_networks import NotAModel, quantised, random_network
from random_picks import picked_at_random, the_reference

from convalgos.network.graph import (
    Convolution,
    Elementwise,
    Foreign,
    LayerNormalization,
    LocalResponseNormalization,
    Pooling,
    Resizing,
    TransposedConvolution,
)
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.recurrence import Recurrence
from convalgos.network.softmax import Softmax
from convalgos.onnx.session import Session

MOVED = 1e-6  # of inputs, to find how much a network enlarges errors
ROUGH = 0.6, 0.03  # of the largest element, of a quantised network: at most, and in the mean
LARGE = 1e30  # what is beyond is no number of a network
FLOATS = (  # steps whose sums differ in their last bits by algorithm and by threads
    Convolution, TransposedConvolution, Foreign, LayerNormalization, LocalResponseNormalization, Resizing,
    Elementwise, GroupNormalization, Recurrence, Softmax,
)  # fmt: skip


def answers(model: Any, feeds: list[dict[str, np.ndarray]], optimised: bool) -> list[Arrays]:
    """Of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return [session.run(None, feed) for feed in feeds]
    except Exception as error:  # of several types
        raise NotAModel(str(error)) from None


def tolerances(model: Any, feeds: list[dict[str, np.ndarray]], right: list[Arrays]) -> list[list[float]]:
    """The errors that float32 makes, or may make, of each output of each run."""
    rng = np.random.default_rng(0)
    moved = [
        {name: (x * (1 + MOVED * rng.standard_normal(x.shape))).astype("f4") for name, x in feed.items()}
        for feed in feeds
    ]
    found = []
    for outputs, others in zip(right, answers(model, moved, False), strict=True):
        each = zip(outputs, others, strict=True)
        found.append(
            [max(CLOSE * np.abs(y).max(initial=0), 40 * np.abs(y - z).max(initial=0)) for y, z in each]
        )
    return found


def _far_off(found: Arrays, right: Arrays) -> str | None:
    """Whether a quantised network is off by more than roundings make in the mean."""
    for i, (y, expected) in enumerate(zip(found, right, strict=True)):
        off, largest = np.abs(y.astype("f8") - expected), np.abs(expected).max(initial=0)
        if y.size > 20 and off.mean() > ROUGH[1] * largest:
            return f"output {i} is off by {off.mean():.3g} in the mean, the largest is {largest:.3g}"
    return None


class Check:
    """A network and what is right."""

    def __init__(self, seed: str, quantise: bool):
        self.seed, self.rng = seed, random.Random(f"check {seed}")
        network = random_network(seed, quantise)
        if quantise:
            network = quantised(network, self.rng)
        self.model, self.feeds, self.quantise = network.model, network.feeds, quantise
        self.right = answers(self.model, self.feeds, quantise)
        if any(not (np.abs(y) < LARGE).all() for run in self.right for y in run):
            raise NotAModel("windows that lie in padding have no maximum")
        if quantise:
            self.close = [[ROUGH[0] * float(np.abs(y).max(initial=0)) for y in run] for run in self.right]
        else:
            self.close = tolerances(self.model, self.feeds, self.right)

    def judged(self) -> str | None:
        """The plainest way against ONNX Runtime; of a quantised network it is then the judge."""
        with picked_at_random(self.seed, "channels_first", the_reference):
            session = Session(self.model)
            found = [session.run(None, feed) for feed in self.feeds]
        for run, (y, right, close) in enumerate(zip(found, self.right, self.close, strict=True)):
            failure = wrong(y, right, close)
            if self.quantise and not failure:
                failure = _far_off(y, right)
            if failure:
                return f"run {run} by the reference: {failure}"
        exact = self.quantise and not _has_floats(session.network)
        if self.quantise:
            self.right = found
        if exact:
            self.close = [[0.0] * len(run) for run in self.right]
        return None


def _has_floats(net: Any) -> bool:
    """Whether a step computes sums in floating point, which differ in their last bits by algorithm."""
    return any(
        isinstance(step, FLOATS) or (isinstance(step, Pooling) and step.reduction == "mean")
        for step in net.graph.steps
    )


def check_network(seed: str, quantise: bool, ways: int) -> Iterator[Found]:
    """(what was checked, what was wrong or None, picks) of all that is checked of a network."""
    try:
        check = Check(seed, quantise)
    except NotAModel as reason:
        yield "no model", None, {"reason": str(reason)[:300]}
        return
    try:
        yield "reference", check.judged(), {}
    except Exception as error:
        yield "reference", f"{type(error).__name__}: {error}", {}
        return
    for number in range(ways):
        try:
            yield from Way(check.model, check.feeds, check.right, check.close, f"{seed} {number}").checks()
        except Exception as error:
            yield f"way {number}", f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}", {}
