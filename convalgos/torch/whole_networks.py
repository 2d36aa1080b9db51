"""Modules run as whole networks: read for the shapes that come, and left to torch where they cannot be."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from convalgos.core.errors import Unsupported
from convalgos.network.network import Network
from convalgos.network.torch_reader.graph import TorchGraph, graph_of_module
from convalgos.torch import threads
from convalgos.torch.eager import is_differentiated, is_idle, plain_values

SHAPES = 64  # of arguments, whose network is remembered


class ReadNetwork(NamedTuple):
    """A network, the graph that it was read as, and the arguments that are no tensors."""

    network: Network
    read: TorchGraph
    others: Any

    def takes(self, tensors: Sequence[Tensor], others: Any) -> bool:
        """Whether it holds for such arguments."""
        declared, least = self.read.exported.shapes, self.read.exported.least
        return others == self.others and all(
            len(shape) == t.dim()
            and all(n == m or isinstance(n, str) for n, m in zip(shape, t.shape, strict=True))
            and all(m >= n for n, m in zip(least[name], t.shape, strict=True))
            for (name, shape), t in zip(declared.items(), tensors, strict=True)
        )


class WholeNetwork:
    """Calls of a module, by networks of what it computes.

    The first call has the module read for its shapes. Another shape has it read for all, and where it cannot
    be read so, for each. The numbers of its parameters are taken as it is read.

    Args:
        module: in eval.
        run_whole: computes what no network can.
    """

    def __init__(self, module: nn.Module, run_whole: Callable[..., Any]):
        self.module = module
        self.run_whole = run_whole
        self.left_whole: Counter[str] = Counter()  # why calls were left to torch -> how many
        self.networks: list[ReadNetwork] = []
        self._any_size = True  # whether it may still be read for all shapes
        self._by_shapes: dict[Any, ReadNetwork | str] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not keywords and all(type(leaf) is Tensor for leaf in arguments):
            tensors, others = arguments, None
        else:
            leaves, spec = pytree.tree_flatten((arguments, keywords))
            tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
            others = (spec, tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        reason = why_left(tensors)
        if reason is None:
            found = self.network(arguments, keywords, tensors, others)
            if isinstance(found, ReadNetwork):
                return _run(found, tensors)
            reason = found
        return self.leave(reason, arguments, keywords)

    def leave(self, reason: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Let torch compute a call."""
        self.left_whole[reason] += 1
        return self.run_whole(*arguments, **keywords)

    def network(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], tensors: Sequence[Tensor], others: Any
    ) -> ReadNetwork | str:
        """The network for a call, or why there is none."""
        key = (others, *(t.shape for t in tensors))
        found = self._by_shapes.get(key)
        if found is None:
            with self._lock:
                found = self._by_shapes.get(key)
                if found is None:
                    found = self._read(arguments, keywords, tensors, others)
                    while len(self._by_shapes) >= SHAPES:
                        self._by_shapes.pop(next(iter(self._by_shapes)))
                    self._by_shapes[key] = found
        return found

    def _read(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], tensors: Sequence[Tensor], others: Any
    ) -> ReadNetwork | str:
        for known in self.networks:
            if known.takes(tensors, others):
                return known
        reason = ""
        for any_size in (True, False) if self.networks and self._any_size else (False,):
            try:
                read = graph_of_module(self.module, arguments, keywords, any_size=any_size)
                found = ReadNetwork(Network(read.graph), read, others)
                if found.takes(tensors, others):
                    self.networks.append(found)
                    return found
            except (ValueError, Unsupported) as error:
                reason = str(error)
            self._any_size &= not any_size
        return reason

    def report(self) -> str:
        """What is computed by convalgos, and what torch is left to run and why."""
        lines = [_told(self.networks[-1].read)] if self.networks else []
        lines += [f"the model itself ran, in {n} calls: {why}" for why, n in self.left_whole.items()]
        return "\n".join(lines) or "not called yet"


def _run(found: ReadNetwork, tensors: Sequence[Tensor]) -> Any:
    threads.share()
    outputs = found.network(*(plain_values(t) for t in tensors))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return found.read.exported.returned([torch.from_numpy(y) for y in outputs])


def _told(read: TorchGraph) -> str:
    nodes = read.exported.graph.graph.nodes
    count = sum(n.op == "call_function" and n.target is not operator.getitem for n in nodes)
    lines = [f"{count - len(read.left)} of {count} operators are computed by convalgos"]
    lines += [f"  left {n} times: {why}" for why, n in Counter(read.left.values()).items()]
    return "\n".join(lines)


def why_left(tensors: Sequence[Tensor]) -> str | None:
    """Why a call with these arguments is left to torch, or None."""
    if not is_idle():
        return "torch was tracing, transforming or profiling"
    if is_differentiated(*tensors):
        return "an argument asks for its gradient"
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return f"an argument lies on {tensor.device}, and networks run on the CPU"
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            return f"an argument is of {tensor.dtype}, and networks are of torch.float32"
        if plain_values(tensor) is None:
            return "an argument has no plain numbers"
    return None
