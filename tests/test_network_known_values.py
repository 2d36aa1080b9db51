"""Values that follow from the sizes of a network's inputs are computed once for each plan."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from test_array_functions import same
from test_network_onnx import Builder, numbers, reference

from convalgos.cpu.elementwise.sampling import SamplingPlan
from convalgos.network import known_values
from convalgos.network.onnx_reader.graph import from_onnx

MASK = np.tril(np.ones((12, 12), bool))


def masked_model():
    """Positions added to x, and for two layers a mask of its own each; the positions are an output, too."""
    b = Builder((1, "t", 4))
    length = b.node("Squeeze", b.node("Shape", "x", start=1, end=2), np.int64([0]))
    positions = b.node("Cast", b.node("Range", np.int64(0), length, np.int64(1)), to=1)
    waves = [b.node(op, b.node("Unsqueeze", positions, np.int64([1]))) for op in ("Sin", "Cos")]
    y = b.node("Add", "x", b.node("Concat", *waves, *waves, axis=1))
    for _ in range(2):
        t = b.node("Shape", y, start=1, end=2)
        part = b.node("Slice", MASK, np.int64([0]), t, np.int64([0]))
        mask = b.node("Not", b.node("Slice", part, np.int64([0]), t, np.int64([1])))
        scores = b.node("MatMul", y, b.node("Transpose", y, perm=[0, 2, 1]))
        masked = b.node("Where", mask, np.float32(-np.inf), scores)
        y = b.node("MatMul", b.node("Softmax", masked, axis=-1), y)
    return b.model(y, positions)


@pytest.mark.parametrize("most", [known_values.MOST, 64, 0])
def test_they_are_constants_of_the_plan(most, monkeypatch):
    """All runs have the outputs of ONNX Runtime, whatever a caller does to those it got; sizes change back
    and forth; larger values are computed in each run."""
    monkeypatch.setattr(known_values, "MOST", most)
    model = masked_model()
    net = from_onnx(model)
    for t in (5, 12, 1, 5):
        x = numbers((1, t, 4))
        right = reference(model, {"x": x})
        for _ in range(2):
            found = net(x)
            same(found, right)
            found[1][...] = np.nan
    executor = net.plan((1, 5, 4))._executor
    assert all(array.nbytes <= most for array in executor.known.values())
    masks = [array for array in executor.known.values() if array.dtype == bool]
    assert len(masks) == (2 if most >= MASK[:5, :5].nbytes else 0)
    assert len({id(mask) for mask in masks}) <= 1  # one array for both layers


def test_places_that_are_no_numbers_are_read_from_nowhere():
    """Maps of which some pixels are infinite: where nothing is read of these, nothing of them shows."""
    x = numbers((2, 3, 4, 5))
    x[:, :, 0, 4] = x[:, :, 3, 0] = np.inf
    grid = np.float32([[np.nan, np.nan], [np.inf, -np.inf], [3e38, 0], [0.6, 0.5]])
    grid = np.ascontiguousarray(np.broadcast_to(grid, (2, 1, 4, 2)))
    for border in (False, True):
        y = np.full((2, 3, 1, 4), np.nan, "f4")
        SamplingPlan(x.shape, y.shape, False, border, True).run((x, grid), y)
        assert np.isfinite(y[..., 2:]).all() and (border or not y[..., :3].any())
        right = np.einsum("nchw,h,w->nc", x[:, :, 2:, 3:].astype("f8"), [0.75, 0.25], [0.8, 0.2])
        np.testing.assert_allclose(y[..., 0, 3], right, rtol=1e-4, atol=1e-5)
        volumes, deep = x[:, :, None].repeat(3, 2), np.full((2, 3, 1, 1, 4), np.nan, "f4")
        grids = np.concatenate([grid[:, None], np.full((2, 1, 1, 4, 1), 0.3, "f4")], -1)
        SamplingPlan(volumes.shape, deep.shape, False, border, True).run((volumes, grids), deep)
        np.testing.assert_allclose(deep[:, :, 0], y, rtol=1e-5, atol=1e-6)
