"""Branches that shapes decide: a model with such nodes is read anew for shapes that come again and again.

What torch exports of `squeeze` is an If that looks at a size, and behind it no shape is known, so that all of
it is left to ONNX Runtime. For inputs of fixed shapes the branches that are taken follow when a model is
read, and what stands in them is computed by this library. So it is of a number that the model is given, such
as the rate of a signal.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.forks import renewed
from convalgos.network.attention import Product
from convalgos.network.graph import Convolution, Foreign, NetworkGraph, Step
from convalgos.network.onnx_reader.file import tensors_within
from convalgos.network.onnx_reader.messages import kind_of_dtype, tensor_of, value_info
from convalgos.network.onnx_reader.model import OnnxModel
from convalgos.network.recurrence import Recurrence

SEEN = 3  # calls of the same shapes from which on a model is read for them,
TRIES = 3  # first runs of such models that may fail, as data of a call may be wrong,
MOST = 4  # for so many shapes: each has weights of its own
COUNTED = 64  # shapes that are counted at a time
LARGEST = 1 << 24  # elements of the constants of a model
REFUSALS = (ValueError, TypeError, Unsupported)  # ONNX Runtime may take what this library refuses
HEAVY = Convolution | Recurrence | Product  # without which there is nothing to gain


class RunsModel(Protocol):
    """A network of a model."""

    @property
    def graph(self) -> NetworkGraph: ...

    @property
    def stages(self) -> Sequence[Any]: ...

    def run(self, views: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs, new arrays."""


Read = Callable[[Any], RunsModel]  # of a ModelProto


class DecidedBranches:
    """Networks of a model for some shapes of its inputs. Any number of threads may run them at a time.

    Args:
        model: makes its ModelProto.
        inputs: names of its inputs.
        read: makes a network of a ModelProto.
    """

    def __init__(self, model: Callable[[], Any], inputs: Sequence[str], read: Read):
        self._model, self._inputs, self._read = model, inputs, read
        self._networks: dict[Any, RunsModel] = {}
        self._seen: Counter[Any] = Counter()
        self._with_numbers = False  # whether numbers that are inputs decide branches, too
        self._failures = 0  # of first runs
        self._refused = False
        self._lock = renewed(threading.Lock())

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The outputs, new arrays; None where the network computes them as it was read, with its branches."""
        if self._refused:
            return None
        with_numbers = self._with_numbers  # which another thread may change
        fixed = [with_numbers and _is_number(x) for x in inputs]
        key = tuple([(x.shape, x.tobytes() if f else None) for x, f in zip(inputs, fixed, strict=True)])
        network = self._networks.get(key)
        if network is None:
            with self._lock:
                if with_numbers == self._with_numbers:
                    network = self._networks.get(key) or self._new_network(key, inputs, fixed)
        if network is None:
            return None
        return network.run([x for x, f in zip(inputs, fixed, strict=True) if not f])

    # --- inside ------------------------------------------------------------------------------

    def _new_network(self, key: Any, inputs: Sequence[np.ndarray], fixed: Sequence[bool]) -> RunsModel | None:
        """One for inputs whose shapes have come often enough.

        Args:
            fixed: which inputs are numbers that decide branches.
        """
        if self._refused or len(self._networks) >= MOST:
            return None
        if len(self._seen) >= COUNTED:
            self._seen.clear()
        self._seen[key] += 1
        if self._seen[key] < SEEN:
            return None
        found = self._read_for(inputs, fixed)
        if found is not None and not _runs(found, inputs, fixed):
            self._failures += 1
            self._refused = self._failures >= TRIES
            del self._seen[key]
            return None
        if found is not None:
            self._networks[key] = found
        elif not self._with_numbers and not self._networks and any(map(_is_number, inputs)):
            self._with_numbers = True
            self._seen.clear()
        else:
            self._refused = True
        return found

    def _read_for(self, inputs: Sequence[np.ndarray], fixed: Sequence[bool]) -> RunsModel | None:
        """The network of these shapes, and of numbers; None where branches stay, or nothing is gained."""
        proto = self._model()
        del proto.graph.input[:]
        for name, x, is_fixed in zip(self._inputs, inputs, fixed, strict=True):
            if is_fixed:
                proto.graph.initializer.append(tensor_of(x, name))
            else:
                proto.graph.input.append(value_info(name, kind_of_dtype(x.dtype), x.shape))
        try:
            found = self._read(proto)
        except REFUSALS:
            return None
        return found if _gains(found) else None


def decided_branches(graph: NetworkGraph, model: OnnxModel, read: Read) -> DecidedBranches | None:
    """What runs the graph of a model that has branches; None of others, and of models with large constants,
    which are not copied."""
    if not any(map(_has_branch, graph.steps)):
        return None
    elements = sum(math.prod(tensor.dims) for tensor in tensors_within(model.proto.graph))
    return DecidedBranches(model.whole, model.inputs, read) if elements <= LARGEST else None


def _runs(network: RunsModel, inputs: Sequence[np.ndarray], fixed: Sequence[bool]) -> bool:
    """Whether a network takes its inputs; it is planned then."""
    try:
        network.run([x for x, f in zip(inputs, fixed, strict=True) if not f])
    except REFUSALS:
        return False
    return True


def _is_number(x: np.ndarray) -> bool:
    """Whether an input may be a choice: a rate, or a flag."""
    return x.size == 1 and x.dtype.kind in "biu"


def _gains(network: RunsModel) -> bool:
    """Whether a network has no branches left, and more to compute than they take."""
    steps = network.graph.steps
    return not (network.stages or any(map(_has_branch, steps))) and any(isinstance(s, HEAVY) for s in steps)


def _has_branch(step: Step) -> bool:
    """Whether ONNX Runtime runs branches in a step."""
    return isinstance(step, Foreign) and "If" in getattr(step.region, "operators", ())
