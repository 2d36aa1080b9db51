"""Operators of torch that networks compute themselves: their numbers, and that nothing is left to torch."""

import math
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from test_network_torch import Does, checked, kinds  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from convalgos.network.onnx_reader import messages  # noqa: E402
from convalgos.network.torch_reader import graph  # noqa: E402
from convalgos.network.torch_reader.graph import from_torch, graph_of_module  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = torch.tensor([2, 0, 3, 3])


def own(module, *inputs, error=1e-5):
    """The steps of a module of which nothing is left to torch, and whose numbers are torch's."""
    read = []

    def keep(*given):
        read.append(graph_of_module(*given))
        return read[-1]

    with patch.object(graph, "graph_of_module", keep):  # to export takes longer than all else
        steps = checked(module, *inputs, error=error)
    assert read and not any(of.left for of in read) and "Foreign" not in kinds(steps)
    return steps


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - 2 * x.abs(), lambda x: torch.sub(x, x.square(), alpha=0.5),
        lambda x: torch.rsub(x, 2, alpha=3), lambda x: x / (x.abs() + 1),
        lambda x: x.clamp(torch.tensor(-0.3), torch.tensor([[0.4]])), lambda x: x.clamp(max=torch.tensor(1)),
        lambda x: torch.addcmul(x, x.abs(), x[..., :1], value=-2), lambda x: torch.addcmul(x[:1], x, x),
        lambda x: (x**2 + 1).sqrt() + (x**2 + 2).rsqrt() + (x.exp() + 1).log(),
        lambda x: torch.maximum(x, -x) * torch.minimum(x, x.neg()),
        lambda x: 1 / (x.exp() + x.reciprocal() ** 2), lambda x: torch.where(x > 0.2, x, 0.5 * x),
        lambda x: x.masked_fill((x < 0) & (x >= -1), 7.0),
        lambda x: x.masked_fill(~((x <= 0) | (x == 1)) & (x != 2), -torch.inf).softmax(-1),
        lambda x: (x > 0).to(torch.float32) + x, lambda x: (x * 10).to(torch.int64) + 1,
        lambda x: F.prelu(x, torch.tensor([0.1, -0.2, 0.3, 0.5])), F.log_softmax,
        lambda x: F.group_norm(x, 2), F.instance_norm, lambda x: F.layer_norm(x, (7,), torch.arange(7.0)),
        lambda x: x.permute(0, 2, 3, 1) @ torch.ones(4, 5), lambda x: x @ x.mT,
        lambda x: torch.bmm(x[0], x[1].mT), lambda x: torch.addmm(x[0, 0, 0], x[0, 0, :, :3], x[0, 1, :3]),
        lambda x: F.linear(x, x[0, 0], x[0, 1, :, 0]), lambda x: torch.einsum("bchw,bcvw->bchv", x, x),
        lambda x: torch.einsum("bchw,bcwk->bchk", x, x.mT), lambda x: torch.einsum("bchw->whbc", x),
        lambda x: torch.einsum("bchw,bcvw->bvhc", x, x), lambda x: torch.einsum("chw,bchv->bvcw", x[0], x),
        lambda x: x.mean() + x.sum((1, 3), keepdim=True) - x.amax(2, True),
        lambda x: x.amin((-1, -2)) + x.norm(dim=(2, 3)),
        lambda x: x.max(1).values[:, None] * x.min(-1, keepdim=True)[0], lambda x: x.max(2)[1],
        lambda x: x.argmax(1, keepdim=True) + x.argmin(1, keepdim=True), lambda x: x.topk(3, 2).values,
        lambda x: x.topk(2, 1, largest=False)[1], lambda x: x.cumsum(2),
        lambda x: torch.roll(x, (2, -10), (2, 3)), lambda x: torch.stack((x, 2 * x), -2),
        lambda x: torch.cat((torch.arange(7.0).expand(len(x), 4, 1, -1), x), 2),
        lambda x: x + x[:1].repeat(len(x), 1, 1, 1),
        lambda x: x.repeat(2, 1, 3, 1, 1), lambda x: x.mean(3, keepdim=True).expand(3, -1, -1, -1, 5),
        lambda x: x[:, None, ..., 1:-1:2] + x[0, 1, :, :3],
        lambda x: torch.cat([p * i for i, p in enumerate(x.unbind(1))], 1),
        lambda x: x.split([1, 3, 5], 2)[1] * 2, lambda x: x.chunk(4, -1)[3],
        lambda x: x.index_select(2, ROWS), lambda x: x[:, ROWS], lambda x: x[..., ROWS],
        lambda x: x.gather(2, (x[:, :, :2] > 0).to(torch.int64) * 3),
        lambda x: x.swapaxes(1, -1).flatten(1, 2).squeeze(), lambda x: F.pixel_unshuffle(x[..., :8, :6], 2),
        lambda x: F.pixel_shuffle(x, 2), lambda x: F.channel_shuffle(x, 2),
        lambda x: F.adaptive_avg_pool2d(x[..., :8, :6], (4, 3)),
        lambda x: F.glu(x, 1) + F.glu(x[..., :6]).sum((1, 3), keepdim=True),
        lambda x: F.pad(x, (1, 0, 0, 2, 1, 1), value=2.0),
        lambda x: F.embedding((x > 0).long(), torch.arange(8.0).view(2, 4)) + torch.ones_like(x)[..., None],
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, 2 * x, x, (x @ x.mT) * 0.3),
    ],
)  # fmt: skip
def test_operators_are_computed_as_by_torch(function):
    own(Does(lambda m, x: function(x)), error=2e-5)


def written(x):
    """Into parts, one after the other, as torch writes."""
    x[..., 1] = x[..., 0] * 3
    x[:, 1:, 2:-1] = x[:1, :2, :2]
    x[1] = 7
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin() + x.cos() * x.tan() + x.floor() - x.ceil() + x.sign() + x.atan(),
        lambda x: x.flip(1) + x.flip((0, -1)),
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + x.var((0, 2), keepdim=True)),
        lambda x: x.std() + x.var(1, unbiased=False) * x.std((1,), correction=0),
        lambda x: x.repeat_interleave(3, 1).sum(1) + x.mean(1, keepdim=True).expand_as(x).logsumexp(1),
        lambda x: F.rms_norm(x, (6,)) + F.rms_norm(x, (6,), torch.arange(6.0), 1e-3),
        lambda x: F.layer_norm(x, (5, 6)) + F.layer_norm(x, (3, 5, 6), torch.arange(90.0).view(3, 5, 6)),
        lambda x: F.interpolate(x, size=(7, 4)).sum() + F.interpolate(x, size=(13, 12)),
        lambda x: F.interpolate(x, size=(3, 9), mode="bicubic"),
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=True),
        lambda x: F.grid_sample(x, x.tanh()[:, 0, :, :4].reshape(-1, 5, 2, 2), align_corners=True),
        lambda x: F.grid_sample(
            x, F.affine_grid(x[:, 0, :2, :3], (2, 3, 4, 7), align_corners=False),
            padding_mode="border", align_corners=False,
        ),
        lambda x: F.grid_sample(
            x[:, None], x[:, :3, :, :4].reshape(2, 2, 5, 2, 3).tanh(), padding_mode="border",
            align_corners=True,
        ),
        lambda x: (x > 0).to(x) + (x < 1).to("cpu", torch.float32) + x.to(device="cpu", dtype=torch.int64),
        lambda x: written(2 * x), lambda x: torch.slice_scatter(x, -x[:, :1], 1, -1),
        lambda x: torch.select_scatter(x, x[0].long(), 0, -1).slice_scatter(x + 1, 3, 0),
        lambda x: x.narrow(2, 1, 3) + x.narrow(-2, 2, 3), lambda x: x.narrow(3, -2, 2) + x.narrow(3, -6, 2),
        lambda x: F.adaptive_avg_pool2d(x[..., :1], (3, 4)) - F.adaptive_max_pool2d(x[:, :, :1], (3, 4)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)) + F.adaptive_max_pool2d(x, (3, 4)),
        lambda x: F.adaptive_avg_pool2d(x, (7, 2)) - F.adaptive_max_pool2d(x, (7, 2)),
        lambda x: F.adaptive_max_pool1d(x[0], 4) * F.adaptive_avg_pool1d(x[1], 4),
        lambda x: F.adaptive_avg_pool3d(x[:, None], (2, 3, 5)) - F.adaptive_max_pool3d(x[:, None], (2, 3, 5)),
        lambda x: F.adaptive_max_pool2d(x, 1) * F.adaptive_max_pool2d(x, (5, 3)),
        lambda x: F.interpolate(x[:, None], size=(5, 7, 4), mode="trilinear"),
        lambda x: F.interpolate(x[:, None], scale_factor=2, mode="trilinear", align_corners=True),
        lambda x: x.unfold(3, 3, 2).sum(-1) + x.unfold(-1, 3, 3).mean(-1), lambda x: 2 * x.unfold(1, 2, 1),
        lambda x: F.unfold(x, (3, 2), dilation=(2, 1), padding=(1, 0), stride=(1, 3)),
        lambda x: F.fold(2 * F.unfold(x, (5, 2), stride=(5, 2)), (5, 6), (5, 2), stride=(5, 2)),
    ],
)  # fmt: skip
def test_less_common_operators_are_computed_as_by_torch(function):
    x = torch.randn(2, 3, 5, 6)
    own(Does(lambda m, x: function(x)), x, error=2e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "how", [{}, {"num_layers": 2, "batch_first": True, "bidirectional": True}, {"bias": False}], ids=str
)
def test_recurrent_layers(kind, how):
    """With their last states."""
    layer = kind(5, 6, **how)
    own(Does(lambda m, x: tuple(tree_leaves(m.layer(x))), layer=layer), torch.randn(3, 7, 5))


def test_layers_that_begin_with_a_state_that_is_computed_are_left():
    module = Does(lambda m, x: m.layer(x, x[:1, :, :5] * 2)[0], layer=nn.GRU(5, 5))
    checked(module, torch.randn(3, 7, 5))
    left = graph_of_module(module.eval(), (torch.randn(3, 7, 5),), {}).left
    assert left["gru"] == "gru begins with a state that is computed"


@pytest.mark.parametrize(
    "how", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True}], ids=str
)
def test_transformers_are_attention_and_products(how, monkeypatch):
    """Also where the package onnx is not there, and for sizes that the graph was not made of."""

    def missing():
        raise ModuleNotFoundError("onnx")

    monkeypatch.setattr(messages, "messages", missing)
    module = nn.Transformer(8, 2, 1, 1, 16, **how)
    steps = own(
        module, torch.randn(3, 5, 8), torch.randn(3, 5, 8) if how.get("batch_first") else torch.randn(4, 5, 8)
    )
    assert kinds(steps).count("Attention") == 3
    layer = nn.TransformerEncoderLayer(8, 2, 16, **how).eval()
    net = from_torch(layer, torch.randn(3, 5, 8), any_size=True)
    x = torch.randn(7, 5, 8)
    torch.testing.assert_close(net(x), layer(x).detach(), rtol=1e-4, atol=1e-5)


def test_windows_that_are_shifted_and_masked():
    """As in Swin: the mask is computed of sizes alone, in place, and so is constant."""

    def forward(m, x):
        n, h, w, c = x.shape
        x = torch.roll(x, (-1, -1), (1, 2))
        windows = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = m.qkv(windows).reshape(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        number = x.new_zeros((h, w))
        number[: h - 2] = 1
        number[:, w - 1 :] += 2
        number = number.view(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).reshape(-1, 4)
        apart = number.unsqueeze(1) - number.unsqueeze(2)
        apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        scores = (q * (c // 2) ** -0.5) @ k.transpose(-2, -1)
        scores = scores.view(n, -1, 2, 4, 4) + apart.unsqueeze(1).unsqueeze(0)
        y = F.softmax(scores.view(-1, 2, 4, 4), -1) @ v
        return m.out(y.transpose(1, 2).reshape(-1, 4, c))

    module = Does(forward, qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))
    steps = own(module, torch.randn(2, 6, 4, 8))
    assert kinds(steps).count("Attention") == 1 and "ArrayFunction" not in kinds(steps)


def test_tokens_in_front_of_patches():
    def forward(m, x):
        patches = m.cut(x).flatten(2).transpose(1, 2)
        y = torch.cat((m.token.expand(x.shape[0], -1, -1), patches), 1) + m.place
        return m.norm(y)[:, 0]

    module = Does(forward, cut=nn.Conv2d(3, 8, 4, 4), norm=nn.LayerNorm(8))
    module.token, module.place = (nn.Parameter(torch.randn(1, n, 8)) for n in (1, 5))
    for images in (1, 3):
        steps = own(module, torch.randn(images, 3, 8, 8))
        assert "ArrayFunction" not in kinds(steps)


def test_filters_that_are_computed():
    """As in StyleGAN2."""

    def forward(m, x, style):
        w = m.conv.weight * style[:, None, :, None, None]
        w = w * torch.rsqrt(w.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, 8, 9, 7), w.reshape(10, 4, 3, 3), padding=1, groups=2)
        return y.reshape(2, 5, 9, 7) + m.conv.bias[:, None, None]

    own(Does(forward, conv=nn.Conv2d(4, 5, 3)), torch.randn(2, 4, 9, 7), torch.rand(2, 4))


def test_transposed_filters_that_are_computed():
    """Of each image its own, as generators modulate them."""

    def modulated(self, x):
        w = x.mean((2, 3))[:, :, None, None, None] * torch.linspace(-1, 2, 45).reshape(1, 1, 5, 3, 3)
        y = F.conv_transpose2d(x.reshape(1, 8, 9, 7), w.reshape(8, 5, 3, 3), stride=2, padding=1, groups=2)
        return F.leaky_relu(y, 0.2).reshape(2, 5, 17, 13)

    assert "DynamicConvolution" in kinds(own(Does(modulated), torch.randn(2, 4, 9, 7)))


def test_infinities_stay_where_there_is_no_limit():
    x = torch.randn(2, 3, 5, 6)
    x[:, :, 0, 1:4] = torch.tensor([math.inf, -math.inf, math.nan])
    for function in (
        lambda x: x.clamp_min(-0.5), lambda x: x.clamp_max(0.5), lambda x: x.clamp(-math.inf, 0.5),
        lambda x: torch.maximum(x, torch.tensor(0.25)), lambda x: torch.min(torch.tensor(0.25), x),
    ):  # fmt: skip
        module = Does(lambda m, x, function=function: function(x) * 2).eval()
        torch.testing.assert_close(from_torch(module, x)(x), module(x), equal_nan=True)


def test_pooling_of_one_map_or_of_an_open_size_is_left():
    def of_one(m, x):
        return F.adaptive_avg_pool2d(x, (2, 3)) * 2, F.adaptive_max_pool2d(x, (1, 1)) + 1

    checked(Does(of_one), torch.randn(2, 5, 6))
    checked(Does(of_one), torch.randn(2, 2, 3))
    pool = Does(lambda m, x: F.adaptive_max_pool1d(x, 8) * 2).eval()
    net = from_torch(pool, torch.randn(2, 5, 8), any_size=True)
    for size in (8, 4, 11):
        x = torch.randn(3, 5, size)
        torch.testing.assert_close(net(x), pool(x))


def test_what_has_no_such_operators_says_why():
    def forward(m, x):
        return (
            x.double().sum(),
            x[x > 0].sum(),
            x.sort(1).values,
            F.softplus(x, 2.0),
            torch.div(x, 3, rounding_mode="floor"),
            F.fold(x.flatten(2), (4, 4), (2, 2)),
            F.adaptive_max_pool2d(x, 2, return_indices=True)[1],
        )

    left = graph_of_module(Does(forward).eval(), (torch.randn(2, 4, 3, 3),), {}).left
    reasons = " / ".join(left.values())
    for words in (
        "computes in torch.float64", "takes what a mask tells", "sort has no step here",
        "softplus is a softplus with numbers of its own", "div has no step here",
        "sums windows that overlap", "adaptive_max_pool2d gives more than one tensor that is read",
    ):  # fmt: skip
        assert words in reasons


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: torch.where(x > 0, x, 0.5), lambda _, x: torch.where(x > 0, 1.0, x), 
        lambda _, x: x * torch.where(x > 0, 1.5, -2.0), lambda _, x: torch.multiply(x, torch.subtract(x, 2)),
        lambda _, x: torch.divide(x, 3) + torch.divide(x, x.abs() + 1),
        lambda _, x: torch.concat([torch.concatenate([x, -x], 1), x.repeat(1, 2, 1)], -1),
        lambda _, x: x.transpose(1, 2).reshape_as(x).view_as(x) + 1,
        lambda _, x: x.transpose(1, 2).ravel() * 2,
        lambda _, x: torch.cat([torch.tensor([]), x, x], -1),
        lambda _, x: torch.cat([torch.tensor([]), x]) + 1,
    ],
)  # fmt: skip
def test_other_names_and_numbers_as_operands(function):
    own(Does(function), torch.randn(2, 3, 5))


def test_a_gelu_that_is_written_out_is_one_step():
    def written(_, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    assert kinds(own(Does(written), torch.randn(2, 5, 7))) == ["Elementwise"]


@pytest.mark.parametrize("exponent", [2, 3, 4])
def test_whole_powers_are_products(exponent):
    steps = own(Does(lambda _, x: x**exponent), torch.randn(2, 5, 7) * 3)
    assert {step.operation for step in steps} == {"multiply"}


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x, i: x.new_zeros(9, 4).scatter_add_(0, i[:, :1].expand_as(x), x),
        lambda _, x, i: torch.ones(6, 9).scatter_add(-1, i, x),
        lambda _, x, i: torch.ones(7, 9).scatter(1, i, x),
        lambda _, x, i: torch.zeros(6, 9, dtype=torch.int64).scatter_add(1, i, i) * 1.0,
    ],
)  # fmt: skip
def test_elements_at_places_that_are_computed(function):
    places = torch.stack([torch.randperm(9)[:4] for _ in range(6)])
    own(Does(function), torch.randn(6, 4), places)
