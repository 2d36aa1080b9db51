"""Constants of a model that are inputs as well: a call may give others in their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import network_of_read
from convalgos.network.onnx_reader.loading import folded_model, given_model

FIRST_IR = 4  # version of ONNX in which constants that are inputs may be overridden


def overridable(proto: Any) -> dict[str, Any]:
    """The ValueInfoProtos of the inputs of a ModelProto that have a default, by name."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    return {v.name: v for v in proto.graph.input if v.name in constants and proto.ir_version >= FIRST_IR}


class Overriding:
    """The networks of a model in which some defaults are inputs as others are; made when they are asked for.

    Args:
        model: a path, bytes or a ModelProto, which is read again for each of them.
        names: of the inputs that have a default.
    """

    def __init__(self, model: Any, names: Iterable[str]):
        self._model, self._names = model, frozenset(names)
        self._networks: dict[frozenset[str], Network] = {}

    def network(self, given: Iterable[str], network: Network) -> Network:
        """That which takes the inputs of these names: the one that is given where they are no defaults."""
        names = self._names.intersection(given)
        if not names:
            return network
        if names not in self._networks:
            self._networks[names] = self._made(names)
        return self._networks[names]

    def _made(self, names: frozenset[str]) -> Network:
        read = given_model(self._model)
        proto = type(read.proto)()
        proto.CopyFrom(read.proto)
        kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
        weights = {name: array for name, array in read.weights.items() if name not in names}
        return network_of_read(folded_model(read._replace(proto=proto, weights=weights, is_callers=False)))
