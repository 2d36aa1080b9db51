"""Modules run as whole networks: read for the shapes that come, and left to torch where they cannot be."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, from_numpy, nn
from torch.utils import _pytree as pytree

from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported
from convalgos.core.forks import renewed
from convalgos.network.network import Network
from convalgos.network.torch_reader.graph import TorchGraph, graph_of_module
from convalgos.network.torch_reader.memory_orders import Order, order_in_memory
from convalgos.network.torch_reader.returned import NO_TENSORS
from convalgos.torch import threads
from convalgos.torch.eager import ORDINARY, is_differentiated, is_idle, plain_values, quick_views

SHAPES = 4096  # of arguments, whose network is remembered
FIXED = 2  # shapes that are read for themselves before sizes are open
KEPT = 4  # networks of fixed sizes, each with parameters of its own: those that were read last
OPEN = 4  # networks of open sizes, which hold for more, but for parts of all sizes only
ONE_ORDER = 3  # dimensions at most; maps of one channel or pixel lie in two orders, and strides tell which
LONGER = 4  # times as long as fixed sizes took may open ones take to be read,
SHORTEST, LONGEST = 2.0, 10.0  # seconds at least, as other programs may have the cores, and at most
FIXED_OR_READ = (Tensor, *NO_TENSORS)  # arguments: what is no tensor is one with the network
CHANGING = "an argument is of {}, and may be another one in each call"
BY_STRIDES = "the model reads memory by strides, and an argument does not lie there in order"
MANY = "it came in many sizes, and runs in torch until it pays to read it for these"


class ReadNetwork(NamedTuple):
    """A network, the graph that it was read as, and what of the arguments is the same in all calls."""

    network: Network
    read: TorchGraph
    kind: Any  # of the arguments: those that are no tensors, and the order and types of those that are
    shapes: tuple[Shape, ...]  # of the tensors that it was read for
    free: tuple[frozenset[int], ...]  # dimensions of each whose sizes are open
    returned: Callable[[list[Tensor]], Any]  # what the module returns, of the tensors in it

    @property
    def is_open(self) -> bool:
        return any(self.free)

    def takes(self, shapes: Sequence[Shape], kind: Any) -> bool:
        """Whether it holds for such arguments."""
        return kind == self.kind and self.read.exported.sizes.takes(shapes)

    def run(self, views: Sequence[np.ndarray], plain: bool) -> Any:
        """What the module returns for arguments of these numbers, of shapes for which it holds.

        Args:
            plain: whether the last axes of all are those of neighbours in memory, without gaps, and no
                others could be.
        """
        threads.share()
        if not plain:
            views = self._laid(views)
        return self.returned([*map(from_numpy, self.network.run(views))])

    def _laid(self, views: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What the network takes; copies where there are gaps."""
        taken = zip(views, self.read.exported.taken, strict=True)
        views = [view if order is None else view.transpose(order) for view, order in taken]
        if all(view.flags.carray for view in views):
            return views
        if self.read.exported.by_strides:
            raise ValueError(BY_STRIDES)
        return self.network.checked(dict(zip(self.network.graph.inputs, views, strict=True)))

    def freed(self, shapes: Sequence[Shape]) -> tuple[frozenset[int], ...] | None:
        """The dimensions that have to be open for it to hold for other sizes; None for other dimensions."""
        if [*map(len, shapes)] != [*map(len, self.shapes)]:
            return None
        return tuple(
            known | {i for i, (n, m) in enumerate(zip(one, other, strict=True)) if n != m}
            for known, one, other in zip(self.free, self.shapes, shapes, strict=True)
        )


class WholeNetwork:
    """Calls of a module, by networks of what it computes.

    The first calls of other shapes have the module read for each: where all sizes are known, more is computed
    here. Another batch, and other sizes than those of the first FIXED, have it read with those sizes open
    that differ. Where it cannot be read so, or not soon, it is for KEPT shapes, and for others once they have
    taken torch as long as the reading takes. The numbers of its parameters are taken as it is read.

    Args:
        module: in eval.
        run_whole: computes what no network can.
        open_sizes: the dimensions of each tensor that are known to have other sizes in other calls.
        tell: is given the report where there is more to tell.
    """

    def __init__(
        self, module: nn.Module, run_whole: Callable[..., Any], open_sizes: Sequence[frozenset[int]] = (),
        tell: Callable[[str], None] | None = None,
    ):  # fmt: skip
        self.module = module
        self.run_whole = run_whole
        self._tell = tell
        self._open_sizes = tuple(open_sizes)
        self.left_whole: Counter[str] = Counter()  # why calls were left to torch -> how many
        self.networks: list[ReadNetwork] = []
        self._refused: list[tuple[frozenset[int], ...]] = []  # dimensions that could not be open
        self._seconds = 0.0  # that the reading for fixed sizes took at most
        self._opens = True  # until open sizes took too long
        self._spent: dict[Any, float] = {}  # seconds of torch, by shapes that are not read yet
        self._by_shapes: dict[Any, ReadNetwork | str] = {}
        self._lock = renewed(threading.Lock())

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not keywords and {*map(type, arguments)} == ORDINARY:
            tensors, others = arguments, None
        else:
            leaves, spec = pytree.tree_flatten((arguments, keywords))
            tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
            for leaf in leaves:
                if not isinstance(leaf, FIXED_OR_READ):
                    return self.leave(CHANGING.format(type(leaf).__name__), arguments, keywords)
            others = (spec, tuple(None if isinstance(leaf, Tensor) else _exactly(leaf) for leaf in leaves))
        views = quick_views(tensors) or _views_of(tensors)
        if isinstance(views, str):
            return self.leave(views, arguments, keywords)
        plain = False not in [
            v.flags.carray and (v.ndim <= ONE_ORDER or v.strides[1] >= v.strides[2]) for v in views
        ]
        orders = None if plain else _orders_of(views)
        key = ((others, orders, *[v.dtype for v in views]), *[v.shape for v in views])
        found = self._by_shapes.get(key) or self._found(key, arguments, keywords, tensors)
        if isinstance(found, ReadNetwork):
            try:
                return found.run(views, plain)
            except (ValueError, RuntimeError, Unsupported) as error:  # of a region of torch: sizes are new
                outputs = self.leave(str(error), arguments, keywords)  # which raises where a value is wrong
                self._by_shapes[key] = str(error)
                return outputs
        if found is not None:
            return self.leave(found, arguments, keywords)
        began = time.monotonic()
        outputs = self.leave(MANY, arguments, keywords)
        if len(self._spent) >= SHAPES:
            self._spent.clear()
        self._spent[key] = self._spent.get(key, 0.0) + time.monotonic() - began
        return outputs

    def leave(self, reason: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Let torch compute a call."""
        self.left_whole[reason] += 1
        if self._tell is not None and self.left_whole[reason] == 1:
            self._tell(self.report())
        return self.run_whole(*arguments, **keywords)

    def _found(
        self, key: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> ReadNetwork | str | None:
        """The network for a call, or why there is none; None where it does not pay yet to read one."""
        with self._lock:
            found = self._by_shapes.get(key)
            if found is None:
                found = self._read(key, arguments, keywords, tensors)
            if found is not None:
                while len(self._by_shapes) >= SHAPES:
                    self._by_shapes.pop(next(iter(self._by_shapes)))
                self._by_shapes[key] = found
                self._spent.pop(key, None)
        return found

    def _read(
        self, key: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> ReadNetwork | str | None:
        kind, *shapes = key
        orders = kind[1] or (None,) * len(shapes)
        for known in self.networks:
            if known.takes(shapes, kind):
                return known
        fixed = (frozenset[int](),) * len(shapes)
        reason = ""
        for free in (self._free(shapes, kind), fixed):
            if free is None:
                continue
            if free is fixed and self._count_fixed() >= KEPT and self._spent.get(key, 0.0) < self._seconds:
                return None
            began = time.monotonic()
            opened, seconds = (free, self._patience()) if any(free) else (None, math.inf)
            try:
                read = graph_of_module(self.module, arguments, keywords, opened, seconds, orders)
                found = ReadNetwork(Network(read.graph), read, kind, shapes, free, read.exported.maker())
                if found.takes(shapes, kind):
                    if not found.is_open:
                        self._seconds = max(self._seconds, time.monotonic() - began)
                    self._keep(found)
                    return found
            except (ValueError, Unsupported) as error:
                reason = str(error)
            self._opens &= not any(free) or time.monotonic() - began < self._patience()
            self._refused.append(free)
        return reason

    def _free(self, shapes: Sequence[Shape], kind: Any) -> tuple[frozenset[int], ...] | None:
        """The fewest dimensions to open beside those of a known network; None where that is not tried."""
        if not self._opens or len(self.networks) - self._count_fixed() >= OPEN:
            return None
        if any(self._open_sizes) and len(self._open_sizes) == len(shapes) and not self.networks:
            return None if self._open_sizes in self._refused else self._open_sizes
        ways = [way for known in self.networks if known.kind == kind and (way := known.freed(shapes))]
        ways = [way for way in ways if not any(_within(old, way) for old in self._refused)]
        if self._count_fixed() < FIXED:
            ways = [way for way in ways if all(own <= {0} for own in way)]
        return min(ways, key=lambda way: sum(map(len, way)), default=None)

    def _patience(self) -> float:
        """Seconds that the reading for open sizes may take."""
        return min(LONGEST, max(SHORTEST, LONGER * self._seconds)) if self._seconds else LONGEST

    def _count_fixed(self) -> int:
        return sum(not known.is_open for known in self.networks)

    def _keep(self, found: ReadNetwork) -> None:
        """Remember a network, and forget the oldest of too many of fixed sizes, but for the first."""
        self.networks.append(found)
        fixed = [known for known in self.networks if not known.is_open]
        if len(fixed) > KEPT:
            old = fixed[1]
            self.networks = [known for known in self.networks if known is not old]
            self._by_shapes = {key: known for key, known in self._by_shapes.items() if known is not old}
        if self._tell is not None:
            self._tell(self.report())

    def report(self) -> str:
        """What is computed by convalgos, and what torch is left to run and why."""
        lines = [_told(self.networks[-1].read)] if self.networks else []
        lines += [f"the model itself ran, in {n} calls: {why}" for why, n in self.left_whole.items()]
        return "\n".join(lines) or "not called yet"


def _within(fewer: Sequence[frozenset[int]], more: Sequence[frozenset[int]]) -> bool:
    """Whether all dimensions of some are among others, of as many tensors."""
    return len(fewer) == len(more) and any(fewer) and all(a <= b for a, b in zip(fewer, more, strict=True))


def _exactly(leaf: Any) -> Any:
    """An argument that is no tensor, so that equal ones are the same: 1, 1.0 and True are not."""
    return type(leaf), leaf.hex() if type(leaf) is float else leaf


def _told(read: TorchGraph) -> str:
    nodes = read.exported.graph.graph.nodes
    count = sum(n.op == "call_function" and n.target is not operator.getitem for n in nodes)
    lines = [f"{count - len(read.left)} of {count} operators are computed by convalgos"]
    lines += [f"  left {n} times: {why}" for why, n in Counter(read.left.values()).items()]
    return "\n".join(lines)


def _orders_of(views: Sequence[np.ndarray]) -> tuple[Order | None, ...] | None:
    """In which orders arguments lie; None where all lie in that of their dimensions."""
    orders = tuple(order_in_memory(view.shape, view.strides) for view in views)
    return orders if any(orders) else None


def _views_of(tensors: Sequence[Tensor]) -> Sequence[np.ndarray] | str:
    """Views of the numbers of arguments, or why a call with them is left to torch."""
    if not is_idle():
        return "torch was tracing, transforming or profiling"
    if is_differentiated(*tensors):
        return "an argument asks for its gradient"
    views: list[np.ndarray] = []
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return f"an argument lies on {tensor.device}, and networks run on the CPU"
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            return f"an argument is of {tensor.dtype}, and networks are of torch.float32"
        values = plain_values(tensor)
        if values is None:
            return "an argument has no plain numbers"
        views.append(values)
    return views
