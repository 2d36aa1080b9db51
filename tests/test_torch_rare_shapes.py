"""Operators on tensors of no dimensions or elements, of integers, by strides, and sizes that ONNX has not."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from test_network_torch import Does  # noqa: E402
from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402
from convalgos.torch.whole_networks import ReadNetwork  # noqa: E402

ZERO = torch.tensor(0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0) + x.mean(-1) * x.amax((0,)), lambda x: x.max(0)[0] + x.min(-1, keepdim=True)[1],
        lambda x: x.argmax(0) + x.argmin(-1), lambda x: x.cumsum(0), lambda x: x.logsumexp(0),
        lambda x: x.softmax(0), lambda x: x.topk(1)[0], lambda x: x.gather(0, ZERO),
        lambda x: x.index_select(0, ZERO),
    ],
)  # fmt: skip
def test_one_number_is_taken_for_a_dimension_of_1(function):
    same_as_torch(function, torch.tensor(-1.5))


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda x: torch.stack((x, x)), (0, 1, 0)),
        (lambda x: x.repeat(2, 1, 3), (3, 0)),
        (lambda x: F.pixel_unshuffle(x, 1), (2, 3, 0, 4)),
        (lambda x: x.gather(0, torch.zeros(2, 0, dtype=torch.int64)), (5,)),
        (lambda x: F.pad(x, (0, 0, 2, -4), "replicate"), (2, 3, 4, 5)),
    ],
)
def test_what_has_no_elements(function, shape):
    same_as_torch(function, torch.ones(shape))


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_outputs_of_a_transposed_layer_that_no_window_reaches(ndim):
    """By an `output_padding` as large as the stride, which torch takes below the dilation."""
    layer = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)[ndim - 1]
    layer = layer(2, 4, 3, stride=2, padding=1, output_padding=3, groups=2, dilation=4)
    same_as_torch(layer, torch.randn(2, 2, *(4, 5, 3)[:ndim]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.addmm(x, x, x), lambda x: torch.baddbmm(x[None], x[None], x[None], beta=2),
        lambda x: F.linear(x, x, x[0]), lambda x: x @ x, lambda x: torch.einsum("ij,kj->ik", x, x),
    ],
)  # fmt: skip
def test_products_of_integers(function, dtype):
    same_as_torch(function, torch.arange(100, 116).reshape(4, 4).to(dtype))


def test_other_steps_of_integers():
    same_as_torch(
        lambda x: F.interpolate(x, scale_factor=2), torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4)
    )
    same_as_torch(lambda x: x.sign(), torch.tensor([True, False]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((2, 2), (1, 2)) + 1,
        lambda x: x.relu().t().contiguous().as_strided((2, 2), (1, 2)),
        lambda x: torch.as_strided_scatter(x, x[:2, :2], (2, 2), (1, 2)),
        lambda x: x.t().as_strided((2, 2), (1, 2)),
        lambda x: x.as_strided((2, 2), (1, 2), 3),
    ],
)
def test_what_reads_memory_by_strides_goes_by_those_of_each_call(function):
    x = torch.arange(25.0).reshape(5, 5)
    module = Does(lambda m, x: function(x)).eval()
    for example in (x, x.t()):
        frozen, compiled = ct.freeze(module, example), torch.compile(module, backend="convalgos")
        for other in (x, x.t(), x[:3], x[1:4, 1:4], x[2:]):
            with torch.no_grad():
                torch.testing.assert_close(frozen(other), module(other))
                torch.testing.assert_close(compiled(other), module(other))


def test_what_reads_beyond_an_argument_is_left_to_torch():
    whole = torch.arange(50.0).reshape(10, 5)
    module = Does(lambda m, x: x.as_strided((5, 5), (5, 1)) + 1).eval()
    frozen, compiled = ct.freeze(module, whole), torch.compile(module, backend="convalgos")
    for x in (whole, whole[:3], whole[2:7], whole[4:6]):
        with torch.no_grad():
            torch.testing.assert_close(frozen(x), module(x))
            torch.testing.assert_close(compiled(x), module(x))


def same_as_torch(function, x):
    module = Does(lambda m, x: function(x)).eval()
    with torch.no_grad():
        expected = module(x.clone())
        torch.testing.assert_close(ct.freeze(module, (x.clone(),))(x), expected)
        torch.testing.assert_close(torch.compile(module, backend="convalgos")(x.clone()), expected)


class Choosy(nn.Module):
    """Refuses what it is given, while that is wrong."""

    def __init__(self):
        super().__init__()
        self.layer, self.given = nn.Conv2d(3, 4, 3), {"wrong": False}

    def forward(self, x):
        if self.given["wrong"]:
            raise ValueError("a wrong value")
        return self.layer(x)


def test_wrong_values_do_not_leave_the_next_ones_to_torch(monkeypatch):
    model, x = Choosy().eval(), torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(model, x)

    def refuse(self, views, plain):
        raise ValueError("in a region")

    with monkeypatch.context() as patch:
        patch.setattr(ReadNetwork, "run", refuse)
        model.given["wrong"] = True
        with pytest.raises(ValueError, match="a wrong value"):
            frozen(x)
    model.given["wrong"] = False
    left = frozen.report()
    torch.testing.assert_close(frozen(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert frozen.report() == left and "1 of 1 operators" in left
