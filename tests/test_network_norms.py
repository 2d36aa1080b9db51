"""Norms of groups and of instances in networks, from ONNX in each of their forms, and from torch."""

import numpy as np
import pytest
from test_network_odd_models import check_model
from test_network_onnx import CLOSE, RNG, Builder

from convalgos.network.graph import Convolution, Elementwise, Foreign, LayerNormalization
from convalgos.network.group_norms import GroupNormalization
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def numbers(*shape):
    return RNG.standard_normal(shape).astype("f4")


def spelled_out(build, x):
    """As opsets before 18 have it."""
    parts = build.node("Reshape", x, np.array([0, 2, -1]))
    parts = build.node("InstanceNormalization", parts, np.ones(2, "f4"), np.zeros(2, "f4"))
    whole = build.node("Reshape", parts, build.node("Shape", x))
    return build.node("Add", build.node("Mul", whole, numbers(8, 1, 1)), numbers(8, 1, 1))


FORMS = {
    "instances": (6, lambda b, x: b.node("InstanceNormalization", x, numbers(8), numbers(8), epsilon=0.1)),
    "spelled out": (11, spelled_out),
    "of groups": (18, lambda b, x: b.node("GroupNormalization", x, numbers(2), numbers(2), num_groups=2)),
    "of channels": (21, lambda b, x: b.node("GroupNormalization", x, numbers(8), numbers(8), num_groups=2)),
}


@pytest.mark.parametrize("form", FORMS)
def test_norms_of_groups(form, tmp_path):
    opset, norm = FORMS[form]
    build = Builder(("n", 8, "h", "w"), max(13, opset) if form != "spelled out" else 11)
    y = build.node("Relu", norm(build, build.conv()))
    y = build.node("Add", y, build.conv(y))  # whose shapes are known to be equal behind the norm
    model = build.model(y)
    check_model(model, numbers(2, 8, 9, 7))
    net = from_onnx(model)
    kinds = [type(step) for step in net.graph.steps]
    assert kinds == [Convolution, GroupNormalization, Convolution]
    x = numbers(1, 8, 6, 5)
    y = net(x)
    net.save(tmp_path / "net.cal")
    assert np.array_equal(Network.load(tmp_path / "net.cal")(x), y)


def test_what_is_no_norm_of_groups_stays():
    build = Builder(("n", 8, "h", "w"))
    parts = build.node("Reshape", build.conv(), np.array([0, 2, -1]))
    parts = build.node("InstanceNormalization", parts, np.ones(2, "f4"), np.zeros(2, "f4"))
    y = build.node("Reshape", parts, np.array([0, 4, -1, 9]))  # other channels than before
    model = build.model(y)
    check_model(model, numbers(2, 8, 9, 7))


def test_maps_shifted_by_a_number_each_and_slopes():
    """As embeddings of time in networks of diffusion; such a sum is no residual."""
    build = Builder(("n", 8, "h", "w"))
    mean = build.node("GlobalAveragePool", "x")
    y = build.node("PRelu", build.node("Add", build.conv(), mean), np.full((8, 1, 1), 0.2, "f4"))
    net = from_onnx(build.model(y))
    assert not any(isinstance(step, Foreign) for step in net.graph.steps)
    assert any(isinstance(step, Elementwise) and step.operation == "shift" for step in net.graph.steps)
    check_model(build.model(y), numbers(2, 8, 5, 7))
    check_model(build.model(y), numbers(1, 8, 1, 1))


def test_norms_and_shifts_of_torch():
    torch = pytest.importorskip("torch")
    from convalgos.torch import freeze

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
            self.group, self.instance = torch.nn.GroupNorm(2, 8), torch.nn.InstanceNorm2d(8, affine=True)
            self.slope = torch.nn.PReLU()

        def forward(self, x):
            y = self.first(torch.nn.functional.silu(self.group(x))) + x.mean((2, 3), keepdim=True)
            return self.slope(self.second(self.instance(y))) + x

    block, x = Block().eval(), torch.randn(2, 8, 9, 7)
    with torch.no_grad():
        for tensor in block.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
        frozen = freeze(block, x)
        right = block(x)
        assert (frozen(x) - right).abs().max() <= CLOSE * right.abs().max()
    assert "left" not in frozen.report()


class Parts:
    """What norms are written of: x, its mean, the inverse of the root of its variance, and numbers."""

    def __init__(self, build, x, axis, of, epsilon=1e-3):
        ones = (1,) * (2 if of == "maps" else 0)
        self.x, self.mean = x, build.node("ReduceMean", x, axes=[axis], keepdims=1)
        self.centred = build.node("Sub", x, self.mean)
        square = build.node("Mul", self.centred, self.centred)
        variance = build.node("ReduceMean", square, axes=[axis], keepdims=1)
        self.plus = build.node("Add", variance, np.float32(epsilon))
        self.build = build
        self.gamma, self.beta = numbers(8, *ones), numbers(8, *ones)

    @property
    def root(self):
        return self.build.node("Sqrt", self.plus)


def keras(b, p):
    """x r + (beta - mean r)"""
    r = b.node("Mul", b.node("Reciprocal", p.root), p.gamma)
    return b.node("Add", b.node("Mul", p.x, r), b.node("Sub", p.beta, b.node("Mul", p.mean, r)))


def keras_3(b, p):
    """x r + (-mean r + beta)"""
    r = b.node("Mul", p.gamma, b.node("Div", np.float32(1), p.root))
    less = b.node("Mul", b.node("Neg", p.mean), r)
    return b.node("Add", b.node("Add", less, p.beta), b.node("Mul", r, p.x))


def by_power(b, p):
    r = b.node("Pow", p.plus, np.float32(-0.5))
    return b.node("Add", b.node("Mul", b.node("Mul", p.centred, p.gamma), r), p.beta)


def of_each(b, p):
    """(x r - mean r) gamma, and nothing is added."""
    r = b.node("Reciprocal", p.root)
    return b.node("Mul", b.node("Sub", b.node("Mul", p.x, r), b.node("Mul", p.mean, r)), p.gamma)


def shifted_first(b, p):
    over = b.node("Div", p.gamma, p.root)
    return b.node("Add", p.beta, b.node("Mul", over, p.centred))


@pytest.mark.parametrize("of", ["maps", "rows", "vectors"])
@pytest.mark.parametrize("norm", [keras, keras_3, by_power, of_each, shifted_first])
def test_norms_whose_factors_are_multiplied_out(norm, of):
    axis, shape = {"maps": (1, (8, "h", "w")), "rows": (-1, ("t", 8)), "vectors": (-1, (8,))}[of]
    build = Builder(("n", *shape), 13)
    parts = Parts(build, build.node("Sinh", "x"), axis, of)
    model = build.model(build.node("Relu", norm(build, parts)))
    kinds = [type(step) for step in from_onnx(model).graph.steps]
    assert kinds.count(LayerNormalization) == 1 and len(kinds) <= 6, kinds
    for n in (1, 3):
        check_model(model, numbers(n, *(5 if isinstance(size, str) else size for size in shape)))


def other_scales(b, p):
    r = b.node("Reciprocal", p.root)
    by_x, by_mean = b.node("Mul", p.x, b.node("Mul", r, p.gamma)), b.node("Mul", p.mean, r)
    return b.node("Add", by_x, b.node("Sub", p.beta, by_mean))


def added(b, p):
    r = b.node("Reciprocal", p.root)
    return b.node("Add", b.node("Mul", p.x, r), b.node("Mul", p.mean, r))


def squared(b, p):
    r = b.node("Reciprocal", p.root)
    r = b.node("Mul", r, r)
    return b.node("Sub", b.node("Mul", p.x, r), b.node("Mul", p.mean, r))


def read_elsewhere(b, p):
    return b.node("Mul", keras(b, p), p.mean)


@pytest.mark.parametrize("norm", [other_scales, added, squared, read_elsewhere])
def test_what_is_no_norm_stays_sums_and_products(norm):
    build = Builder(("n", "t", 8), 13)
    model = build.model(norm(build, Parts(build, build.node("Sinh", "x"), -1, "rows")))
    assert not any(isinstance(step, LayerNormalization) for step in from_onnx(model).graph.steps)
    check_model(model, numbers(2, 5, 8))
