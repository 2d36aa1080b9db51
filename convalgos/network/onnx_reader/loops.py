"""Loops of known numbers of turns, branches of known conditions, and lists of values, written out as nodes.

Exporters make such of Python's own: `tensor_split`, lists that are filled in a loop, layers by `if`. Where
what they depend on is constant, the nodes of their bodies take their place, with names of their own for each
turn, and whoever reads an element of a list reads the value that was put there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from convalgos.network.onnx_reader.bag_loops import bag_of_loop
from convalgos.network.onnx_reader.messages import (
    array_of,
    constant_tensor,
    node_attributes,
    node_of,
    tensor_of,
)
from convalgos.network.onnx_reader.order import bodies_of, read_by
from convalgos.network.onnx_reader.sizes import ONNX_NAMES
from convalgos.network.onnx_reader.types import BOOL, INT32, INT64

MOST_NODES = 4096  # that a loop may become
LISTS = ("SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase")  # nodes that give lists
READERS = ("SequenceAt", "SequenceLength", "ConcatFromSequence")
AXES_AS_INPUT = 13  # the opset from which on Unsqueeze and ReduceSum have them so,
LATER_AXES_AS_INPUT = 18  # and other reductions
NONE: Mapping[str, Any] = MappingProxyType({})


def with_loops_written_out(proto: Any) -> Any:
    """A ModelProto without the loops, branches and lists that are known; itself where there are none."""
    if not any(node.op_type in ("Loop", "If", *READERS) for node in proto.graph.node):
        return proto
    written = _Written(proto)
    for node in proto.graph.node:
        written.take(node)
    if not written.changed:
        return proto
    found = type(proto)()
    found.CopyFrom(proto)
    del found.graph.node[:]
    found.graph.node.extend(_needed(written.nodes, [value.name for value in proto.graph.output]))
    found.graph.initializer.extend(written.tensors)
    return found


class _Written:
    """The nodes of a graph so far, and what is known of their values."""

    def __init__(self, proto: Any):
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []  # constants of bodies
        self.changed = False
        self._opset = max((o.version for o in proto.opset_import if o.domain in ONNX_NAMES), default=1)
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._lists: dict[str, list[str]] = {}
        told = (*proto.graph.input, *proto.graph.value_info)
        types = {value.name: value.type.tensor_type for value in told}
        self._matrices = {  # of integers
            name for name, of in types.items() if len(of.shape.dim) == 2 and of.elem_type in (INT32, INT64)
        }

    def take(self, node: Any) -> None:
        """Add a node, or what takes its place."""
        tensor = constant_tensor(node) if node.op_type == "Constant" else None
        if tensor is not None:
            self._constants[node.output[0]] = tensor
        elif node.op_type == "Identity":
            self._same(node.input[0], node.output[0])
        elif node.domain in ONNX_NAMES and self._replaced(node):
            self.changed = True
            return
        self.nodes.append(node)

    def _same(self, name: str, other: str) -> None:
        """Note that two values are one."""
        for known in (self._constants, self._lists):
            if name in known:
                known[other] = known[name]

    def _replaced(self, node: Any) -> bool:
        """Whether other nodes were taken for this one; lists stay as long as they may be read."""
        op, attributes = node.op_type, node_attributes(node)
        if op in LISTS:
            self._note_list(node)
            return False
        if op == "Loop":
            return self._bag(node, attributes["body"]) or self._unroll(node, attributes["body"])
        if op == "If":
            return self._branch(node, attributes)
        values = self._lists.get(node.input[0]) if op in READERS else None
        if values is None:
            return False
        if op == "SequenceLength":
            self._constant(node.output[0], np.int64(len(values)))
        elif op == "ConcatFromSequence":
            return self._concatenate(values, node.output[0], attributes)
        else:
            at = self._number(node.input[1])
            if at is None or not -len(values) <= at < len(values):
                return False
            self.take(node_of("Identity", [values[at]], node.output))
        return True

    def _note_list(self, node: Any) -> None:
        if not node.input or node.op_type == "SequenceConstruct":
            self._lists[node.output[0]] = list(node.input)
            return
        values = self._lists.get(node.input[0])
        erases = node.op_type == "SequenceErase"
        where = node.input[1 if erases else 2 :]
        at = self._number(where[0]) if where and where[0] else None
        if values is None or (where and where[0] and at is None):
            return
        own, end = list(values), len(values) - erases
        at = end if at is None else at + len(values) if at < 0 else at
        if 0 <= at <= end:
            own[at : at + erases] = [] if erases else [node.input[1]]
            self._lists[node.output[0]] = own

    def _concatenate(self, values: Sequence[str], name: str, attributes: Mapping[str, Any]) -> bool:
        axis = int(attributes["axis"])
        if not values:
            return False
        if attributes.get("new_axis", 0):
            values = [self._unsqueezed(v, axis, f"{name}//{i}") for i, v in enumerate(values)]
        self.take(node_of("Concat", values, [name], axis=axis))
        return True

    def _unsqueezed(self, value: str, axis: int, name: str) -> str:
        """A value with one more dimension, by this name."""
        if self._opset < AXES_AS_INPUT:
            self.take(node_of("Unsqueeze", [value], [name], axes=[axis]))
        else:
            self._constant(f"{name}//axis", np.array([axis]))
            self.take(node_of("Unsqueeze", [value, f"{name}//axis"], [name]))
        return name

    def _constant(self, name: str, value: Any) -> None:
        self.take(node_of("Constant", [], [name], value=tensor_of(np.asarray(value), "")))

    def _number(self, name: str, inside: Mapping[str, Any] = NONE) -> int | None:
        """A constant of one number.

        Args:
            inside: constants of a body.
        """
        tensor = inside.get(name) or self._constants.get(name)
        array = array_of(tensor).reshape(-1) if tensor is not None and len(tensor.dims) < 2 else None
        return int(array[0]) if array is not None and array.size == 1 else None

    # --- bodies ------------------------------------------------------------------------------

    def _branch(self, node: Any, attributes: Mapping[str, Any]) -> bool:
        """Whether the branch was written that a constant asks for."""
        which = self._number(node.input[0])
        if which is None:
            return False
        body = attributes["then_branch" if which else "else_branch"]
        self._pass(self._inlined(body, {}, node.output[0]), node.output)
        return True

    def _bag(self, node: Any, body: Any) -> bool:
        """Whether the reduction of rows was written that a loop over places computes."""
        inside = {n.output[0]: constant_tensor(n) for n in body.node if n.op_type == "Constant"}
        inside |= {tensor.name: tensor for tensor in body.initializer}
        makers = {name: n for n in self.nodes for name in n.output}
        bag = bag_of_loop(node, body, makers, lambda name: self._number(name, inside))
        if bag is None or bag.places not in self._matrices or not self._takes_all_turns(node, body):
            return False
        rows = f"{node.output[0]}//rows"
        axis: dict[str, Any] = {}
        self.take(node_of("Gather", [bag.table, bag.places], [rows]))
        inputs = [rows]
        if self._opset < (AXES_AS_INPUT if bag.op == "ReduceSum" else LATER_AXES_AS_INPUT):
            axis["axes"] = [1]
        else:
            inputs.append(f"{node.output[0]}//axis")
            self._constant(inputs[1], np.array([1]))
        self.take(node_of(bag.op, inputs, node.output, keepdims=0, **axis))
        return True

    def _unroll(self, node: Any, body: Any) -> bool:
        """Whether the turns of a loop were written, of which the number is known."""
        turns = self._number(node.input[0]) if node.input[0] else None
        carried = list(node.input[2:])
        if turns is None or turns < 1 or turns * len(body.node) > MOST_NODES:
            return False
        if not self._takes_all_turns(node, body):
            return False
        collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
        for turn in range(turns):
            prefix = f"{node.output[0]}//{turn}"
            given = dict(zip([v.name for v in body.input[2:]], carried, strict=True))
            for declared, number in zip(body.input, (np.int64(turn), np.bool_(True)), strict=False):
                given[declared.name] = f"{prefix}//{declared.name}"
                of_rank = (1,) * len(declared.type.tensor_type.shape.dim)  # one as ONNX Runtime has it
                self._constant(given[declared.name], np.full(of_rank, number))
            _, *made = self._inlined(body, given, prefix)
            carried, gathered = made[: len(carried)], made[len(carried) :]
            for values, value in zip(collected, gathered, strict=True):
                values.append(value)
        stacked = [f"{node.output[0]}//stacked//{i}" for i in range(len(collected))]
        for name, values in zip(stacked, collected, strict=True):
            self._concatenate(values, name, {"axis": 0, "new_axis": 1})
        self._pass([*carried, *stacked], node.output)
        return True

    def _takes_all_turns(self, node: Any, body: Any) -> bool:
        """Whether no condition ends a loop before its last turn."""
        return not node.input[1] or (self._number(node.input[1]) == 1 and self._goes_on(body))

    def _goes_on(self, body: Any) -> bool:
        """Whether the condition of a loop stays what it is."""
        true = {body.input[1].name} | {name for name in self._constants if self._number(name) == 1}
        true |= {t.name for t in body.initializer if t.data_type == BOOL and array_of(t).all()}
        for node in body.node:
            tensor = constant_tensor(node) if node.op_type == "Constant" else None
            is_true = tensor is not None and array_of(tensor).size == 1 and bool(array_of(tensor).all())
            if is_true or (node.op_type in ("Identity", "Cast") and node.input[0] in true):
                true.add(node.output[0])
        return body.output[0].name in true

    def _pass(self, values: Iterable[str], names: Iterable[str]) -> None:
        for value, name in zip(values, names, strict=True):
            if name:
                self.take(node_of("Identity", [value], [name]))

    def _inlined(self, body: Any, given: Mapping[str, str], prefix: str) -> list[str]:
        """What the outputs of a body are called here, whose nodes are taken.

        Args:
            given: its inputs, by what they are called here.
            prefix: of new names, which have two strokes: the reader's own have one.
        """
        names = dict(given)
        for tensor in body.initializer:
            own = type(tensor)()
            own.CopyFrom(tensor)
            own.name = names[tensor.name] = f"{prefix}//{tensor.name}"
            self.tensors.append(own)
            self._constants[own.name] = own
        for node in body.node:
            names |= {name: f"{prefix}//{name}" for name in node.output if name}
            own = _renamed(node, names)
            own.name = own.name and f"{prefix}//{own.name}"  # of which there may be but one
            self.take(own)
        return [names.get(value.name, value.name) for value in body.output]


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """A node with other names for values, in the bodies that it has, too."""
    own = type(node)()
    own.CopyFrom(node)
    for field in (own.input, own.output):
        found = [names.get(name, name) for name in field]
        del field[:]
        field.extend(found)
    for body in bodies_of(own):
        inside = {v.name for v in (*body.input, *body.initializer)}
        inside |= {name for inner in body.node for name in inner.output}
        outer = {name: other for name, other in names.items() if name not in inside}
        nodes = [_renamed(inner, outer) for inner in body.node]
        del body.node[:]
        body.node.extend(nodes)
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return own


def _needed(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
    """The nodes of which something is read."""
    read, kept = {*outputs}, []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read |= {*read_by(node)}
    return kept[::-1]
