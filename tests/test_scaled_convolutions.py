"""Convolutions that scale the maps that they read, as of squeeze and excitation."""

from dataclasses import replace

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.allocator import aligned_empty
from convalgos.core.epilogue import activation_of
from convalgos.core.layouts import blocked_layout, laid, to_logical
from convalgos.core.problem import ConvProblem
from convalgos.cpu.gemm.scaled_plan import ScaledPlan, takes_scale
from convalgos.cpu.vectors import simd
from convalgos.network.graph import Convolution, Elementwise, NetworkGraph, Pooling
from convalgos.network.network import Network
from convalgos.network.planned import JoinedConvolutions, ScaledConvolution

LANES = simd.lanes(4)
BLOCKED = blocked_layout(LANES)


def in_blocks(array):
    """With what nobody may read in the lanes beyond the last channel."""
    found = np.ascontiguousarray(laid(array, BLOCKED))
    if array.shape[1] % LANES:
        found[:, -1, ..., array.shape[1] % LANES :] = np.nan
    return found


def integers(rng, shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


# several images in a block, their channels cut short; and passes over more channels than the first cache has
@pytest.mark.parametrize(
    "n, c, k, size", [(3, LANES + 3, 9, (3, 5)), (1, 40 * LANES, 2 * LANES + 1, (9, 13))]
)
def test_filters_take_the_scales_of_each_image(n, c, k, size):
    rng, p = (
        np.random.default_rng(0),
        ConvProblem((n, c, *size), (k, c, 1, 1), layout=BLOCKED, y_layout=BLOCKED),
    )
    plan = ca.plan(p, algorithm="cpu.direct")
    assert takes_scale(plan) and not takes_scale(ca.plan(p.with_valid(layout="channels_first")))
    plan = ScaledPlan(plan)
    x, w, residual = (integers(rng, shape) for shape in (p.x_shape, p.w_shape, p.y_shape))
    scale, bias = integers(rng, (n, c, 1, 1)), integers(rng, (k,))
    right = np.einsum("nchw,kc->nkhw", x * scale, w[..., 0, 0]) + bias.reshape(-1, 1, 1) + residual
    scratch = aligned_empty(plan.scratch_bytes, np.uint8)
    scratch[:] = 255  # NaN, which must be written before it is read
    for given in (scale, in_blocks(scale)):
        y = np.full(p.array_shapes[2], np.nan, np.float32)
        run = plan.bind(
            in_blocks(x), given, plan.prepare(w), y, bias, activation_of("relu"), in_blocks(residual), scratch
        )
        run.run()
        assert np.array_equal(to_logical(y, BLOCKED, k), np.maximum(right, 0))


def test_a_network_scales_in_convolutions(tmp_path):
    rng = np.random.default_rng(1)

    def convolution(name, x, k, c, active=None):
        w = rng.standard_normal((k, c, 1, 1)).astype(np.float32) / c
        return Convolution(name, (x,), name, w, activation=active and activation_of(active))

    taps, pads = rng.standard_normal((48, 1, 3, 3)).astype(np.float32), ((1, 1), (1, 1))
    steps = (
        convolution("wide", "x", 48, 3),
        Convolution("a", ("wide",), "a", taps, padding=pads, groups=48, activation=activation_of("silu")),
        Pooling("mean", ("a",), "mean", "mean"),
        convolution("few", "mean", 8, 48, "relu"), convolution("share", "few", 48, 8, "sigmoid"),
        Elementwise("product", ("share", "a"), "product", "multiply"),
        convolution("b", "product", 32, 48), convolution("c", "b", 48, 32), convolution("y", "c", 5, 48),
    )  # fmt: skip
    graph = NetworkGraph(("x",), ("y",), steps, {"x": ("n", 3, 40, 40)})
    x = rng.standard_normal((2, 3, 40, 40)).astype(np.float32)
    net, shown = Network(graph), Network(replace(graph, outputs=("y", "product", "mean")))
    scaled = [[s.step.name for s in n.plan(x.shape).planned.steps if is_scaled(s)] for n in (net, shown)]
    assert scaled == [["b"], []]  # the product is wanted, and must be written
    means = [
        s.step.outputs for s in net.plan(x.shape).planned.steps if isinstance(s.step, JoinedConvolutions)
    ]
    assert means == [("a", "mean")]
    y, right = net(x), shown(x)[0]
    assert np.allclose(y, right, rtol=1e-5, atol=1e-6 * abs(right).max())
    assert [row.what for row in net.explain(x.shape).rows if row.name == "b"] == ["scaled"]
    net.save(tmp_path / "net")
    assert np.array_equal(ca.network.load(tmp_path / "net")(x), y)


def is_scaled(planned_step):
    return isinstance(planned_step.step, ScaledConvolution)
