"""Convolutions that pool what they write, tile by tile: the bits of a pooling behind them."""

from dataclasses import replace

import numpy as np
import pytest
from test_winograd import BLOCKED, Forced

import convalgos as ca
from convalgos.core.epilogue import RELU, activation_of
from convalgos.core.layouts import laid, to_logical
from convalgos.core.pool_problem import PoolProblem
from convalgos.core.problem import ConvProblem
from convalgos.cpu.winograd import Winograd
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph, Pooling
from convalgos.network.network import Network

LEAKY = ("leaky_relu", 0.1)


def hostile(rng, shape, dtype):
    """Numbers among which some are infinite, and one is none."""
    x = rng.standard_normal(shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, -np.inf):
        x[tuple(rng.integers(n) for n in shape)] = value
    return x


@pytest.mark.parametrize(
    ("m", "r", "text", "activation", "cuts", "team"),
    [
        (2, 3, f"n2 c18 h13 w30 k20 r3 s3 p1 {BLOCKED}", "relu", (1, 1, 1, 1), False),
        (4, 3, f"n2 c5 h9 w27 k36 r3 s3 p0:2,3:1 {BLOCKED} y_channels_last", LEAKY, (2, 1, 2, 3), True),
        (4, 3, "n2 c17 h11 w14 k20 r3 s3 p1", None, (1, 1, 2, 1), False),
        (6, 3, f"n1 c33 h31 w26 k40 r3 s3 p1 groups1 {BLOCKED}", "relu", (1, 1, 3, 2), False),
        (6, 3, "n1 c3 h13 w50 k7 r3 s3 p2 channels_last", LEAKY, (1, 1, 1, 2), True),
        (4, 2, f"n2 c16 h21 w42 k32 r3 s3 p1 stride2 {BLOCKED} y_channels_first", "relu", (1,) * 4, False),
        (4, 5, "n1 c6 h9 w15 k24 r5 s5 p2 groups2 float64", None, (1, 1, 1, 1), True),
    ],
    ids=str,
)
def test_pooled_tiles_are_the_maxima_of_windows(m, r, text, activation, cuts, team):
    p = ConvProblem.parse(text)
    plan = Forced(m, r, cuts=cuts, team=team).plan(p)
    rng, pooling = np.random.default_rng(m), PoolProblem.of(p.y_shape, 2, dtype=p.dtype)
    assert Winograd(m, r).pools(p, pooling)
    pooled, w = plan.pooled(pooling), plan.prepare(rng.standard_normal(p.w_shape).astype(p.dtype))
    bias = rng.standard_normal(p.K).astype(p.dtype)
    for x in (rng.standard_normal(p.x_shape).astype(p.dtype), hostile(rng, p.x_shape, p.dtype)):
        x = np.ascontiguousarray(laid(x, p.layout))
        y = to_logical(plan(x, w, bias=bias, activation=activation), p.y_layout, p.K)
        right = ca.max_pool(np.ascontiguousarray(y), 2)
        target = np.full(laid(right, p.y_layout).shape, np.nan, p.dtype)
        pooled(x, w, bias=bias, activation=activation, out=target)
        found = to_logical(target, p.y_layout, p.K)
        assert np.array_equal(found, right, equal_nan=True)
        if p.y_layout == BLOCKED == p.layout:
            pooled.bind(x, w, target := np.full_like(target, np.nan), bias, activation).run()
            assert np.array_equal(to_logical(target, p.y_layout, p.K), right, equal_nan=True)


def test_windows_of_several_tiles_are_not_pooled():
    p = ConvProblem.parse("n1 c16 h13 w13 k16 r3 s3 p1")
    own = PoolProblem.of(p.y_shape, 2)
    others = [
        PoolProblem.of(p.y_shape, 2, **given)
        for given in ({"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"reduction": "mean"})
    ]
    assert [Winograd(4).pools(p, pooling) for pooling in (own, *others)] == [True] + [False] * 4
    assert not Winograd(5).pools(p, own)
    dilated = p.with_valid(dilation=(2, 1))
    assert not Winograd(4).pools(dilated, PoolProblem.of(dilated.y_shape, 2))


def network(rng):
    """Convolutions and poolings behind them that can be one step, and some that cannot."""

    def conv(name, x, k, c, activation=RELU):
        w = (rng.standard_normal((k, c, 3, 3)) / np.sqrt(9 * c)).astype(np.float32)
        bias = rng.standard_normal(k).astype(np.float32)
        return Convolution(name, (x,), name, w, bias, padding=((1, 1), (1, 1)), activation=activation)

    def pool(name, x, **given):
        return Pooling(name, (x,), name, kernel=(2, 2), stride=(2, 2), **given)

    steps = (
        conv("a", "x", 64, 3), conv("b", "a", 64, 64), pool("b2", "b"),
        conv("c", "b2", 64, 64, activation_of(LEAKY)), pool("c2", "c"),
        conv("d", "c2", 64, 64, activation_of("silu")), pool("d2", "d"),  # which falls
        conv("e", "c2", 64, 64), pool("e2", "e"), pool("e3", "e", reduction="mean"),
        conv("f", "c2", 64, 64), pool("f2", "f", ceil_mode=True),
        conv("g", "c2", 64, 64, None), pool("g2", "g"),
        Elementwise("y", ("d2", "e2"), "y", "add"), Elementwise("z", ("e3", "g2"), "z", "add"),
    )  # fmt: skip
    return NetworkGraph(("x",), ("y", "z", "f2"), steps, {"x": ("n", 3, "h", "w")})


def test_networks_pool_in_convolutions(tmp_path, shipped_figures):
    graph = network(np.random.default_rng(0))
    net = Network(graph)
    apart = Network(replace(graph, outputs=(*graph.outputs, "b", "c", "f", "g")))  # which are to be written
    for shape, pooled in (
        ((2, 3, 64, 80), ["b", "c", "f", "g"]),
        ((1, 3, 73, 66), ["b", "c", "f", "g"]),
        ((1, 3, 79, 67), ["b", "c", "g"]),  # a last window of f2 has one row
        ((2, 3, 64, 80), ["b", "c", "f", "g"]),
    ):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        rows = net.explain(shape).rows
        # a machine may have faster tiles of odd sizes, in which no window of two fits
        odd = {row.name for row in rows if row.what == "convolution" and ".f5x3" in row.algorithm}
        assert {*pooled} & odd <= {"b"}
        assert [row.name for row in rows if row.what == "pooled"] == [n for n in pooled if n not in odd]
        left = [*(["b2"] if "b" in odd else []), "d2", "e2", "e3", *(["f2"] if "f" not in pooled else [])]
        assert [row.name for row in rows if row.what == "pooling"] == left
        assert not any(row.what == "pooled" for row in apart.explain(shape).rows)
        for y, right in zip(net(x), apart(x), strict=False):
            assert np.allclose(y, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
    net.save(tmp_path / "net")
    again = ca.network.load(tmp_path / "net")
    assert str(again.explain(x.shape)) == str(net.explain(x.shape))
    assert all(map(np.array_equal, again(x), net(x)))
