"""Attention of torch, as the products and the softmax of which it is made."""

from __future__ import annotations

import math

import numpy as np
from torch import fx

from convalgos.network.torch_reader.moves import turned_matrices
from convalgos.network.torch_reader.shapes import are_same_sizes, known_sizes, shape_of_tensor
from convalgos.network.torch_reader.translation import Arguments, Left, Translation, Value


def attention_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """softmax(q k^T * scale + mask) v."""
    q, k, v = (t.value(a[name]) for name in ("query", "key", "value"))
    if a["dropout_p"] or a["enable_gqa"]:
        raise Left("drops elements" if a["dropout_p"] else "has fewer heads of keys than of queries")
    of_q, of_k, rank = t.shape(q), t.shape(k), len(t.shape(q))
    if not rank == len(of_k) == len(t.shape(v)) >= 3 or not are_same_sizes(of_q[:-2], of_k[:-2]):
        raise Left("is of arrays of different numbers of images or heads")
    if type(of_q[-1]) is not int or isinstance(a["scale"], fx.Node):
        raise Left("has sizes that are computed")
    scale = 1 / math.sqrt(of_q[-1]) if a["scale"] is None else a["scale"]
    shape = (*of_q[:-1], of_k[-2])
    scores = t.between("MatMul", [q, turned_matrices(t, k)], shape)
    scores = t.between("Mul", [scores, t.constant(np.float32(scale))], shape)
    if (mask := _mask(t, a, shape)) is not None:
        scores = t.between("Add", [scores, mask], shape)
    return t.emit("MatMul", [t.between("Softmax", [scores], shape, axis=-1), v])


def _mask(t: Translation, a: Arguments, shape: tuple[object, ...]) -> Value | None:
    """What is added to the scores, if anything."""
    if a["is_causal"]:
        rows, columns = known_sizes(shape[-2:])
        return t.constant(np.triu(np.full((rows, columns), -np.inf, np.float32), 1))
    if a["attn_mask"] is None:
        return None
    mask = t.value(a["attn_mask"])
    if t.dtype(mask) != "bool":
        return mask
    ends = np.float32(0), np.float32(-np.inf)
    if mask in t.constants:
        return t.constant(np.where(t.constants[mask], *ends).astype(np.float32))
    return t.between("Where", [mask, *map(t.constant, ends)], shape_of_tensor(a["attn_mask"]))
