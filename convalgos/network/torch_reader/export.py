"""A module of torch as a flat graph of ATen's operators, none of which writes into its arguments."""

from __future__ import annotations

import logging
import math
import operator
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from convalgos.network.torch_reader.apart import copy_of, traced_alone, unchanged
from convalgos.network.torch_reader.held_tensors import held_by, state_of, tensors_held
from convalgos.network.torch_reader.known_numbers import KnownNumbers
from convalgos.network.torch_reader.memory_orders import (
    Order,
    as_seen,
    by_order,
    doubled,
    give_laid,
    take_laid,
)
from convalgos.network.torch_reader.open_sizes import OpenSizes, open_sizes_of
from convalgos.network.torch_reader.returned import check_returned, flattened
from convalgos.network.torch_reader.strided_reads import reads_by_strides
from convalgos.network.torch_reader.wrapped import unwrap
from convalgos.network.torch_reader.writes import (
    check_arguments,
    check_writes,
    replace_detachments,
    replace_dropout,
    replace_writes,
    written_apart,
)

ATEN = torch.ops.aten
OF_TYPES = (  # what reads the type, and perhaps the shape, of a tensor alone
    ATEN.new_zeros.default, ATEN.new_ones.default, ATEN.new_full.default,
    ATEN.zeros_like.default, ATEN.ones_like.default, ATEN.full_like.default,
)  # fmt: skip
MOST = 1 << 28  # elements of what is computed once
REPEATS = (ATEN.expand.default,)  # which would only make constants larger
TENSOR = object()  # in the place of a tensor


class Exported(NamedTuple):
    """What `torch.export` made of a module."""

    graph: fx.GraphModule  # from tensors to a tuple of tensors; its constants are attributes
    leaves: list[Any]  # of what the module returns: numbers and the like, TENSOR for each tensor
    out_spec: Any  # how they make up what it returns
    sizes: OpenSizes  # of the inputs
    by_strides: bool  # whether it goes by how these lie in memory: the elements of each in order
    taken: Sequence[Order | None]  # how tensors lie of which the graph takes views,
    given: Sequence[Order | None]  # or gives them; empty where it gives none

    @property
    def shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Of what the graph takes; a text where a size is open."""
        known = self.sizes.shapes.items()
        return {name: by_order(shape, order) for (name, shape), order in zip(known, self.taken, strict=True)}

    def maker(self) -> Callable[[list[Tensor]], Any]:
        """A function that makes what the module returns of what the graph gives."""
        made, seen = self._structured(), [order and as_seen(order) for order in self.given]
        if not any(seen):
            return made
        return lambda tensors: made(
            [t if order is None else t.permute(order) for t, order in zip(tensors, seen, strict=True)]
        )

    def _structured(self) -> Callable[[list[Tensor]], Any]:
        """A function that makes what the module returns of the tensors in it."""
        spec = self.out_spec
        if all(leaf is TENSOR for leaf in self.leaves):
            if spec.is_leaf():
                return operator.itemgetter(0)
            if spec.num_nodes == 1 + spec.num_leaves:  # nothing within
                if spec.type is tuple:
                    return tuple
                if spec.type is list:
                    return list

        def made(tensors: list[Tensor]) -> Any:
            given = iter(tensors)
            leaves = [next(given) if leaf is TENSOR else leaf for leaf in self.leaves]
            return pytree.tree_unflatten(leaves, spec)

        return made


class _Outputs:
    """What a module returns; `torch.export` would undo an assignment to an attribute of the module."""

    leaves: list[Any]
    spec: Any
    state: str  # the name of an attribute that each call reads and replaces; "" if none


class _Flat(nn.Module):
    """A module from the tensors among its arguments to those of what it returns."""

    def __init__(self, module: nn.Module, arguments: Any, seconds: float):
        super().__init__()
        self.seconds = seconds
        self.module = module
        self.leaves, self.in_spec = pytree.tree_flatten(arguments)
        self.outputs = _Outputs()
        self.held = [held_by(module)]  # in a list: as attributes of a module they would be exported

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        given = iter(inputs)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        arguments, keywords = pytree.tree_unflatten(leaves, self.in_spec)
        held = {stand_in: self.held[0][name] for name, stand_in in held_by(self.module).items()}
        before, known = tensors_held(self.module), KnownNumbers(held)
        deadline = _Deadline(self.seconds) if self.seconds < math.inf else nullcontext()
        with deadline, known:
            outputs, self.outputs.spec = flattened(self.module(*arguments, **keywords))
        self.outputs.state = state_of(before, self.module, known.read)
        check_returned(outputs)
        self.outputs.leaves = [TENSOR if isinstance(y, Tensor) else y for y in outputs]
        return tuple(y for y in outputs if isinstance(y, Tensor))


class _Deadline(TorchFunctionMode):
    """Raises TimeoutError at the first operator after so many seconds."""

    def __init__(self, seconds: float):
        super().__init__()
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if time.monotonic() > self._end:
            raise TimeoutError(f"it took longer than {self._seconds:.1f} seconds")
        return function(*args, **(kwargs or {}))


def export_module(
    module: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any],
    free: Sequence[Collection[int]] | None = None, seconds: float = math.inf,
    orders: Sequence[Order | None] | None = None,
) -> Exported:  # fmt: skip
    """The graph of a module.

    Args:
        free: the dimensions of each tensor among the arguments whose sizes are open, not those of the
            arguments; such a graph takes several times as long.
        seconds: after which tracing ends.
        orders: how the tensors among the arguments lie of which the graph is to take views in order; it gives
            such of what lies otherwise in torch. By default it takes and gives the tensors.

    Raises:
        ValueError: it cannot be exported; says why.
    """
    flat = _Flat(copy_of(module), (tuple(arguments), dict(keywords)), seconds)
    # tensors of our own: `export` marks which sizes are free on those that it is given, for all times
    tensors = [leaf.detach() for leaf in flat.leaves if isinstance(leaf, Tensor)]
    if free is not None:  # a batch of one would be taken for one that is always one
        tensors = [
            doubled(t) if 0 in own and t.dim() and len(t) == 1 else t
            for t, own in zip(tensors, free, strict=True)
        ]
    try:
        with traced_alone(), unchanged(module), _quiet():
            program = torch.export.export(
                flat, tuple(tensors), strict=False, dynamic_shapes=_open_dimensions(tensors, free)
            )
            if any(isinstance(leaf, torch.SymInt | torch.SymFloat) for leaf in flat.outputs.leaves):
                raise ValueError("it returns sizes of its inputs")
            if name := flat.outputs.state:
                raise ValueError(
                    f"it puts another tensor in the place of {name}, which the next call would read"
                )
            graph = _graph_of(program)
            if getattr(module, "writes_are_seen", False):
                check_arguments(graph)
            _compute_constants(graph)
            if not replace_writes(graph):
                replace_dropout(program.graph_module)
                graph = _graph_of(program)  # of which nothing was replaced
                check_arguments(graph)
                check_writes(graph)
                program = program.run_decompositions({})
                graph = _graph_of(program)
                _compute_constants(graph)
            graph.graph.eliminate_dead_code()
            by_strides = reads_by_strides(graph)
    except Exception as error:  # of torch, which raises what it likes where it cannot follow
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{type(module).__name__} cannot be exported by torch.export: {told}") from None
    sizes = open_sizes_of(program, graph)
    taken = [None] * len(tensors) if orders is None else orders
    take_laid(graph, taken)
    given = () if orders is None else give_laid(graph)
    return Exported(graph, flat.outputs.leaves, flat.outputs.spec, sizes, by_strides, taken, given)


def _graph_of(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """Its graph, anew, in one part, without writes that write no numbers."""
    graph: fx.GraphModule = program.module(check_guards=False)
    unwrap(graph)
    replace_detachments(graph)
    return graph


def any_sizes(tensors: Sequence[Tensor]) -> list[set[int]]:
    """The batch and the spatial sizes."""
    return [{i for i in range(t.dim()) if i != 1} for t in tensors]


def _open_dimensions(tensors: Sequence[Tensor], free: Sequence[Collection[int]] | None) -> Any:
    """Those, for `torch.export`, which takes a size of one for one that is always one."""
    if free is None:
        return None
    auto = torch.export.Dim.AUTO
    return (tuple({i: auto for i in own if t.shape[i] > 1} for t, own in zip(tensors, free, strict=True)),)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about what it specialises, which `Exported.shapes` tells."""
    log = logging.getLogger("torch.")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _compute_constants(graph: fx.GraphModule) -> None:
    """Put their numbers in the place of operators that read parameters alone, or the type of a tensor."""
    for node in graph.graph.nodes:
        if node.target in OF_TYPES and isinstance(node.meta.get("val"), Tensor):
            _read_nothing(node)
    apart = written_apart(graph, _can_compute)
    for node in list(graph.graph.nodes):
        if node in apart or any(n.op != "get_attr" for n in node.all_input_nodes) or not _can_compute(node):
            continue
        if node.target is operator.getitem:  # put in its place with its operator
            continue
        of = {n: constant_of(graph, n.target) for n in node.all_input_nodes}
        arguments, keywords = fx.map_arg((node.args, node.kwargs), of.__getitem__)
        found = node.target(*arguments, **keywords)
        if isinstance(found, Tensor):
            _put_constant(graph, node, found)
            continue
        for user in list(node.users):
            if user.target is operator.getitem:
                _put_constant(graph, user, found[user.args[1]])
    graph.recompile()


def _can_compute(node: fx.Node) -> bool:
    """Whether it gives tensors of the CPU, not large and with all sizes known, if what it reads is known."""
    if node.op != "call_function" or node.target in REPEATS:
        return False
    value = node.meta.get("val")
    tensors = value if isinstance(value, tuple | list) else [value]
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()) and all(
        isinstance(t, Tensor) and t.device.type == "cpu"
        and all(type(n) is int for n in t.shape) and math.prod(t.shape) <= MOST
        for t in tensors
    )  # fmt: skip


def _put_constant(graph: fx.GraphModule, node: fx.Node, tensor: Tensor) -> None:
    name = f"computed_{node.name}"
    graph.register_buffer(name, tensor)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    constant.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(constant)
    graph.graph.erase_node(node)


def _read_nothing(node: fx.Node) -> None:
    """Let an operator that makes an array of the type of another one make it of that type by itself."""
    tensor = node.meta["val"]
    if not all(type(n) is int for n in tensor.shape):
        return
    given = [node.args[-1]] if node.target in (ATEN.new_full.default, ATEN.full_like.default) else []
    value = given[0] if given else int(node.target in (ATEN.new_ones.default, ATEN.ones_like.default))
    if isinstance(value, fx.Node):
        return
    node.target = ATEN.full.default
    node.args, node.kwargs = ([*tensor.shape], value), {"dtype": tensor.dtype, "device": tensor.device}


def constant_of(graph: fx.GraphModule, target: str) -> Any:
    """The parameter or buffer of a node."""
    found: Any = graph
    for name in target.split("."):
        found = getattr(found, name)
    return found
