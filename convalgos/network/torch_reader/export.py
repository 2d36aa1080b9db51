"""A module of torch as a flat graph of ATen's operators, none of which writes into its arguments."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from convalgos.core.arguments import Shape

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
    shapes: dict[str, tuple[int | str, ...]]  # of the inputs, by name; a text where any size goes
    least: dict[str, Shape]  # sizes of the inputs from which on the graph holds

    def returned(self, tensors: Sequence[Tensor]) -> Any:
        """What the module returns, of the tensors in it."""
        given = iter(tensors)
        leaves = [next(given) if leaf is TENSOR else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)


class _Outputs:
    """What a module returns; `torch.export` would undo an assignment to an attribute of the module."""

    leaves: list[Any]
    spec: Any


class _Flat(nn.Module):
    """A module from the tensors among its arguments to those of what it returns."""

    def __init__(self, module: nn.Module, arguments: Any):
        super().__init__()
        self.module = module
        self.leaves, self.in_spec = pytree.tree_flatten(arguments)
        self.outputs = _Outputs()

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        given = iter(inputs)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        arguments, keywords = pytree.tree_unflatten(leaves, self.in_spec)
        outputs, self.outputs.spec = pytree.tree_flatten(self.module(*arguments, **keywords))
        self.outputs.leaves = [TENSOR if isinstance(y, Tensor) else y for y in outputs]
        return tuple(y for y in outputs if isinstance(y, Tensor))


def export_module(
    module: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any], any_size: bool = False
) -> Exported:
    """The graph of a module.

    Args:
        any_size: for every batch, and every spatial size that the module can be given, not those of the
            arguments alone; it takes several times as long.

    Raises:
        ValueError: it cannot be exported; says why.
    """
    flat = _Flat(module, (tuple(arguments), dict(keywords)))
    # tensors of our own: `export` marks which sizes are free on those that it is given, for all times
    tensors = [leaf.detach() for leaf in flat.leaves if isinstance(leaf, Tensor)]
    if any_size:  # a batch of one would be taken for one that is always one
        tensors = [torch.cat((t, t)) if t.dim() and len(t) == 1 else t for t in tensors]
    try:
        with _quiet():
            program = torch.export.export(
                flat, tuple(tensors), strict=False, dynamic_shapes=_any_sizes(tensors) if any_size else None
            )
            if any(isinstance(leaf, torch.SymInt | torch.SymFloat) for leaf in flat.outputs.leaves):
                raise ValueError("it returns sizes of its inputs")
            graph = program.module(check_guards=False)
            if not _replace_writes(graph):
                program = program.run_decompositions({})
                graph = program.module(check_guards=False)
            _compute_constants(graph)
            graph.graph.eliminate_dead_code()
    except Exception as error:  # of torch, which raises what it likes where it cannot follow
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{type(module).__name__} cannot be exported by torch.export: {told}") from None
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    sizes = {node.name: tuple(node.meta["val"].shape) for node in inputs}
    declared = {name: tuple(n if type(n) is int else str(n) for n in s) for name, s in sizes.items()}
    least = {name: tuple(_least(program, n) for n in shape) for name, shape in sizes.items()}
    return Exported(graph, flat.outputs.leaves, flat.outputs.spec, declared, least)


def _any_sizes(tensors: Sequence[Tensor]) -> Any:
    """The batch and the spatial sizes, for `torch.export`."""
    free = torch.export.Dim.AUTO
    sizes = [{i: free for i in range(t.dim()) if i != 1 and t.shape[i] > 1} for t in tensors]
    return (tuple(sizes),)


def _least(program: Any, size: Any) -> int:
    """The least value of a size; of the batch also 1, which `export` left out."""
    if type(size) is int:
        return size
    known = program.range_constraints.get(size.node.expr)
    least = int(known.lower) if known is not None else 2
    return 1 if least == 2 else least


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
    for node in list(graph.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, Tensor | tuple | list):
            continue
        if node.target is operator.getitem:  # put in its place with its operator
            continue
        if node.target in OF_TYPES:
            _read_nothing(graph, node)
        if any(n.op != "get_attr" for n in node.all_input_nodes) or node.target in REPEATS:
            continue
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or not _is_plain(value):
            continue
        of = {n: constant_of(graph, n.target) for n in node.all_input_nodes}
        arguments, keywords = fx.map_arg((node.args, node.kwargs), of.__getitem__)
        found = node.target(*arguments, **keywords)
        if isinstance(value, Tensor):
            _put_constant(graph, node, found)
            continue
        for user in list(node.users):
            if user.target is operator.getitem:
                _put_constant(graph, user, found[user.args[1]])
    graph.recompile()


def _is_plain(value: Any) -> bool:
    """Whether tensors lie on the CPU, with all sizes known, and are not large."""
    tensors = [value] if isinstance(value, Tensor) else value
    return all(
        isinstance(t, Tensor) and t.device.type == "cpu"
        and all(type(n) is int for n in t.shape) and t.numel() <= MOST
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


def _read_nothing(graph: fx.GraphModule, node: fx.Node) -> None:
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


def _replace_writes(graph: fx.GraphModule) -> bool:
    """Put operators that give a new tensor in the place of those that write; False where views forbid it."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        name, overload = node.target._schema.name, node.target._overloadname
        if not node.target._schema.is_mutable:
            continue
        written = node.args[0] if node.args else None
        plain = getattr(ATEN, name.removeprefix("aten::").removesuffix("_"), None)
        plain = getattr(plain, overload, None) if name.endswith("_") and name.startswith("aten::") else None
        if plain is None or not isinstance(written, fx.Node) or _shares_memory(written):
            return False
        nodes = list(graph.graph.nodes)
        later = set(nodes[nodes.index(node) + 1 :])
        written.replace_all_uses_with(node, delete_user_cb=later.__contains__)
        node.target = plain
    return True


def _shares_memory(node: fx.Node) -> bool:
    """Whether other nodes are views of it, or it is one of another."""
    return node.op == "get_attr" or any(_is_view(n) for n in (node, *node.users))


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and any(r.alias_info for r in schema.returns)
