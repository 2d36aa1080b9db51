"""What prepared filters depend on: plans of equal keys lay filters alike, and so share them."""

import numpy as np
import pytest

from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import answer
from convalgos.cpu.vectors import simd
from convalgos.select import registry

MAPS = ((1, 9, 11), (2, 9, 11), (1, 24, 37), (3, 5, 6))  # batch and sizes: blocks and boxes differ
HALF_FULL = 3 * simd.lanes(4) // 2  # channels: a vector and a half
LAYERS = {  # filter, and the rest of a layer
    "dense": ((20, 24, 3, 3), {"padding": 1}),
    "strided": ((33, 16, 3, 3), {"padding": 1, "stride": 2}),
    "1x1": ((48, 40, 1, 1), {}),
    "depthwise": ((HALF_FULL, 1, 3, 3), {"padding": 1, "groups": HALF_FULL}),
    "flipped": ((8, 6, 3, 3), {"padding": 1, "mode": "convolution"}),
    "transposed": ((16, 8, 3, 3), {"padding": 1, "stride": 2, "direction": "backward_data"}),
}
ALGORITHMS = (
    *("cpu.direct", "cpu.direct.pixels", "cpu.im2col.own", "cpu.winograd.f2x3", "cpu.winograd.f4x3"),
    *("cpu.fft_tiles.t32", "cpu.depthwise.channels", "cpu.depthwise.rows"),
    *("cpu.indirect", "cpu.direct.phases"),
)
SHARED = {  # layers whose filters maps of all these sizes share
    "cpu.direct": ("depthwise", "flipped"),
    "cpu.im2col.own": (*LAYERS,),
    "cpu.winograd.f4x3": ("dense",),
    "cpu.depthwise.channels": ("depthwise",),
    "cpu.depthwise.rows": ("depthwise",),
    "cpu.indirect": (*LAYERS,),
    "cpu.direct.phases": ("transposed",),
}


def plans(algorithm, layer, layout):
    w_shape, more = LAYERS[layer]
    channels = w_shape[1] * more.get("groups", 1)
    for n, h, w in MAPS:
        problem = ConvProblem((n, channels, h, w), w_shape, layout=layout, **more)
        found = registry.find_algorithm(algorithm, problem)
        if found.why_not(problem) is None:
            yield found.serve(problem)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_filters_of_equal_keys_are_the_same(algorithm, layer, layout):
    rng = np.random.default_rng(3)
    w = rng.standard_normal(LAYERS[layer][0]).astype("f4")
    known = {}
    for plan in plans(algorithm, layer, layout):
        own = plan.prepare(w)
        other = known.setdefault(plan._key, own)
        x = rng.standard_normal(plan.problem.array_shapes[0]).astype("f4")
        np.testing.assert_array_equal(plan(x, other), plan(x, own))
        assert own.key.form.w_shape == w.shape
    if layer in SHARED.get(algorithm, ()):
        assert len(known) <= 1


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("layer", ["dense", "strided", "1x1", "depthwise", "flipped"])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "cpu.bf16x3"])
def test_filters_whose_axes_lie_in_another_order(algorithm, layer, direction):
    """They are prepared as their copies are, into arrays of their own; views that skip elements, too."""
    w_shape, more = LAYERS[layer]
    p = ConvProblem((2, w_shape[1] * more.get("groups", 1), 9, 11), w_shape, direction=direction, **more)
    rng = np.random.default_rng(4)
    w = rng.standard_normal(w_shape).astype("f4")
    for problem in (p, p.replace(layout="channels_last")):
        try:
            plan = registry.find_algorithm(algorithm, problem).serve(problem)
        except (Unsupported, ValueError):
            continue
        x = rng.standard_normal(problem.array_shapes[0]).astype("f4")
        y = answer(p, x if problem is p else np.moveaxis(x, -1, 1), w)
        y = y if problem is p else np.moveaxis(y, 1, -1)
        for order in ((0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)):
            laid = w.transpose(order).copy()
            spread = np.full((*laid.shape, 2), np.nan, "f4")
            spread[..., 0] = laid
            for other in (laid.transpose(np.argsort(order)), spread[..., 0].transpose(np.argsort(order))):
                prepared = plan.prepare(other)
                found = plan(x, prepared)
                np.testing.assert_array_equal(found, plan(x, plan.prepare(w)))
                other[...] = np.nan
                np.testing.assert_array_equal(found, plan(x, prepared, out=np.full_like(found, np.nan)))
                np.testing.assert_allclose(found, y, rtol=1e-3, atol=1e-3)
