"""Networks of torch's modules: what becomes steps, what torch is left to run, and that numbers are its."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from convalgos.core.errors import Unsupported  # noqa: E402
from convalgos.network.network import Network  # noqa: E402
from convalgos.network.torch_reader.graph import from_torch, graph_of_module  # noqa: E402
from convalgos.torch import freeze  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Does(nn.Module):
    """A function as a module, with layers."""

    def __init__(self, function, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = function

    def forward(self, *inputs):
        return self.function(self, *inputs)


def checked(module, *inputs, error=1e-5):
    """The steps of a module, whose outputs are those of torch."""
    torch.manual_seed(0)
    module = module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    inputs = inputs or (torch.randn(2, 4, 9, 7),)
    with torch.no_grad():
        expected = module(*inputs)
    before = [x.clone() for x in inputs]
    net = from_torch(module, *inputs)
    found = net(*inputs)
    expected, found = (v if isinstance(v, tuple) else (v,) for v in (expected, found))
    assert len(found) == len(expected)
    for y, z in zip(found, expected, strict=True):
        assert y.shape == z.shape and y.dtype == z.dtype
        assert float((y - z).abs().max()) <= error * max(1e-3, float(z.abs().max()))
    assert all(torch.equal(x, b) for x, b in zip(inputs, before, strict=True))
    return net.graph.steps


def kinds(steps):
    return [type(step).__name__ for step in steps]


def test_norms_scales_activations_and_sums_become_part_of_convolutions():
    def block(m, x):
        y = F.hardswish(m.norm(m.first(x)))
        y = m.second(y) * 0.5 + m.scale[:, None, None]
        return F.relu_(y.add_(x))

    layers = {"first": nn.Conv2d(4, 6, 3, padding=1, bias=False), "norm": nn.BatchNorm2d(6)}
    module = Does(block, **layers, second=nn.Conv2d(6, 4, 1))
    module.register_buffer("scale", torch.randn(4))
    first, second = checked(module)
    assert first.activation.name == "hard_swish" and first.name == "first"
    assert second.activation.name == "relu" and second.inputs[1] == "inputs_0"


@pytest.mark.parametrize(
    "function",
    [
        F.relu6, lambda x: F.hardtanh(x, -0.5, 0.7), lambda x: x.clamp(min=0), lambda x: x.clamp(-0.1, 0.4),
        lambda x: F.leaky_relu(x, 0.3), F.silu, torch.sigmoid, F.hardsigmoid, F.gelu,
        torch.tanh, F.mish, F.selu, F.elu, F.softplus,
        lambda x: F.gelu(x, approximate="tanh"), lambda x: 3 - x / 2, lambda x: x - 1, F.dropout2d,
    ],
)  # fmt: skip
def test_activations_are_one_step_with_the_convolution(function):
    in_eval = function if function is not F.dropout2d else lambda x: F.dropout2d(x, training=False)
    steps = checked(Does(lambda m, x: in_eval(m.conv(x)), conv=nn.Conv2d(4, 5, 1)), error=2e-5)
    assert kinds(steps) == ["Convolution"]


def test_pads_become_borders_of_convolutions():
    def padded(m, x):
        x = F.relu(m.round(x))
        y = m.valid(F.pad(x, (2, 1, 0, 3), "reflect"))
        alone = F.pad(y, (1, 0), value=0.5)
        return F.max_pool2d(alone, 2), m.valid(alone)

    layers = {"round": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), "valid": nn.Conv2d(4, 4, 3)}
    steps = checked(Does(padded, **layers))
    assert kinds(steps) == ["Convolution", "Convolution", "Convolution", "Pooling", "Convolution"]
    assert [getattr(step, "boundary", "") for step in steps] == [
        "wrap",
        "reflect",
        "constant",
        "",
        "constant",
    ]


def test_maps_are_pooled_joined_scaled_and_enlarged():
    def forward(m, x):
        a, b = F.max_pool2d(m.conv(x), 3, 2, 1), F.avg_pool2d(m.conv(x), 3, 2, 1, count_include_pad=False)
        gate = torch.sigmoid(m.gate(x.mean((2, 3)))).view(x.size(0), 4, 1, 1)
        y = torch.cat((a, b * gate, gate * a), 1)
        return F.interpolate(m.up(y), scale_factor=2), F.adaptive_avg_pool2d(y, 1).flatten(1)

    layers = {"conv": nn.Conv2d(4, 4, 3, 2), "gate": nn.Linear(4, 4)}
    up = nn.ConvTranspose2d(12, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    assert "Foreign" not in kinds(checked(Does(forward, **layers, up=up)))


@pytest.mark.parametrize(
    "how", [{"scale_factor": 1.7}, {"size": (5, 20)}, {"size": (30, 9), "align_corners": True}], ids=str
)
def test_maps_are_interpolated(how):
    module = Does(lambda m, x: F.interpolate(m.conv(x), mode="bilinear", **how), conv=nn.Conv2d(4, 8, 1))
    assert kinds(checked(module)) == ["Convolution", "Resizing"]


@pytest.mark.parametrize("ndim", [1, 3])
def test_other_dimensions(ndim):
    conv, norm = (getattr(nn, f"{name}{ndim}d") for name in ("Conv", "BatchNorm"))
    module = nn.Sequential(
        conv(3, 5, 3, padding="same"), norm(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 5**ndim, 2)
    )
    steps = checked(module, torch.randn(2, 3, *(5,) * ndim))
    assert [k for k in kinds(steps) if k != "View"] == ["Convolution"] * 2


def test_products_on_channels_last_are_convolutions():
    """As in ConvNeXt: no permutation is left, and the numbers of the norm are in the product behind it."""

    def block(m, x):
        y = m.norm(m.depthwise(x).permute(0, 2, 3, 1))
        return x + m.scale * m.down(F.gelu(m.up(y))).permute(0, 3, 1, 2)

    layers = {"depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4), "norm": nn.LayerNorm(4)}
    module = Does(block, **layers, up=nn.Linear(4, 16), down=nn.Linear(16, 4))
    module.register_buffer("scale", torch.randn(4, 1, 1))
    steps = checked(module)
    assert kinds(steps) == ["Convolution", "LayerNormalization", "Convolution", "Convolution"]
    assert steps[1].scale is None and len(steps[3].inputs) == 2


def test_what_torch_runs_is_one_region_where_that_makes_no_circle(tmp_path):
    def forward(m, x):
        a = torch.expm1(x)
        b = torch.cumprod(m.conv(a), 2)  # between two regions: not one
        c = torch.cumprod(a, 3) * torch.sort(b, 1).values
        return c, torch.topk(c.flatten(1), 3).values, (c > 0).sum((1, 2, 3))

    graph = graph_of_module(Does(forward, conv=nn.Conv2d(4, 4, 1)).eval(), (torch.randn(2, 4, 6, 6),), {})
    assert kinds(graph.graph.steps) == ["Foreign", "Convolution", "Foreign"]
    assert graph.left["expm1"] == "expm1 has no step here"
    checked(Does(forward, conv=nn.Conv2d(4, 4, 1)))
    with pytest.raises(Unsupported, match="torch runs it, and there is no form"):
        Network(graph.graph).save(tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_operators_that_look_at_numbers_have_shapes():
    """torch.istft asks what its window sums to, which tensors without numbers cannot tell."""

    def forward(m, x):
        maps = m.conv(x).view(2, 2, 17, 9).permute(0, 2, 3, 1).contiguous()
        return torch.istft(torch.view_as_complex(maps), 32, window=torch.hann_window(32))

    steps = checked(Does(forward, conv=nn.Conv1d(4, 34, 1)), torch.randn(2, 4, 9))
    assert kinds(steps)[0] == "Convolution" and kinds(steps)[-1] == "Foreign"


@pytest.mark.parametrize("dim", range(4))
def test_arrays_without_elements_are_joined(dim):
    def forward(m, x):
        return torch.cat((x.narrow(dim, 0, 0) * 2, m.conv(x)), dim), torch.cat((x, x.narrow(dim, 1, 0)), dim)

    checked(Does(forward, conv=nn.Conv2d(4, 4, 1)))


def test_masks_that_pick_elements_have_shapes():
    """What a mask picks has a size that follows from numbers, and what is written there again has none."""

    def forward(m, x):
        y = m.conv(x)
        y[y > 0.5] = torch.fmod(y, 1.5)[y > 0.5] - 0.25
        return F.relu(y)

    steps = checked(Does(forward, conv=nn.Conv2d(4, 4, 1)))
    assert "Foreign" in kinds(steps)


def test_sizes_that_follow_from_numbers_are_refused():
    """Also where zeros and ones give as many: one element, or none."""

    def alike(m, x):
        return torch.unique(m.conv(x).round()) * 2

    def picked(m, x):
        return m.conv(x)[x == 0.5] * 2

    x = torch.rand(2, 4, 5, 6)
    x[0, 0, 0, 0] = 0.5
    for function in (alike, picked):
        module = Does(function, conv=nn.Conv2d(4, 4, 1)).eval()
        with pytest.raises(ValueError, match="sizes that follow from numbers"):
            from_torch(module, x)
        with torch.no_grad():
            torch.testing.assert_close(freeze(module, x)(x), module(x))


def test_writes_through_views_are_seen():
    def forward(m, x):
        y = m.conv(x)
        y[:, 0] += 1  # through a view
        z = F.relu(y)
        z.mul_(2)
        return y, z

    checked(Does(forward, conv=nn.Conv2d(4, 4, 3)))


def test_inputs_outputs_and_constants_as_they_come():
    def forward(m, x, scale):
        y = F.conv2d(x, m.conv.weight * 2)  # a filter that is computed of constants
        return x, y * scale, y.permute(0, 2, 3, 1), y.mean((2, 3))

    steps = checked(Does(forward, conv=nn.Conv2d(4, 3, 3)), torch.randn(2, 4, 6, 6), torch.randn(2, 3, 1, 1))
    assert "Foreign" not in kinds(steps)


def test_channels_are_split_sliced_and_shuffled_by_steps():
    def forward(m, x):
        n, c, h, w = (y := m.conv(x)).shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().reshape(n, c, h, w)
        first, second = m.last(y).chunk(2, dim=1)
        few, _, more = (y + 1).split((1, 2, 5), dim=-3)
        return torch.cat((second, F.relu(first)), 1), few, more[:, 1:4]

    steps = checked(Does(forward, conv=nn.Conv2d(4, 8, 3), last=nn.Conv2d(8, 6, 1)))
    assert "Foreign" not in kinds(steps) and kinds(steps).count("ChannelSelection") >= 3


def test_groups_of_channels_that_others_read_stay_as_they_are():
    def forward(m, x):
        n, c, h, w = (y := m.conv(x)).shape
        parts = y.view(n, 4, 2, h, w)
        turned = parts.transpose(1, 2)
        back = parts.reshape(n, c, h, w)
        return parts.amax(2), turned.amax(2), turned, back + 1, F.relu(turned), parts.mean((2, 3, 4))

    steps = checked(Does(forward, conv=nn.Conv2d(4, 8, 3)))
    assert "ChannelSelection" not in kinds(steps)


def test_any_size():
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5)
    )
    module.eval()
    net = from_torch(module, torch.randn(1, 3, 16, 16), any_size=True)
    for shape in ((1, 3, 16, 16), (3, 3, 9, 21)):
        x = torch.randn(shape)
        torch.testing.assert_close(net(x), module(x).detach(), rtol=1e-4, atol=1e-5)
    fixed = from_torch(module, torch.randn(1, 3, 16, 16))
    with pytest.raises(ValueError, match="takes \\(1, 3, 16, 16\\)"):
        fixed(torch.randn(2, 3, 16, 16))


def test_sizes_that_are_computed():
    def forward(m, x):
        n, c, h, w = x.shape
        y = m.conv(x).reshape(n, 2, 2, h, w).transpose(1, 2).reshape(n, c, h, w)  # shuffled channels
        return F.interpolate(y, size=(h + 1, w))

    module = Does(forward, conv=nn.Conv2d(4, 4, 1)).eval()
    net = from_torch(module, torch.randn(2, 4, 5, 6), any_size=True)
    for shape in ((1, 4, 5, 6), (3, 4, 8, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(net(x), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match=r"call module.eval\(\) first"):
        from_torch(nn.Conv2d(3, 3, 3), torch.ones(1, 3, 8, 8))
    branches = Does(lambda m, x: x if x.sum() > 0 else -x).eval()
    with pytest.raises(ValueError, match="Does cannot be exported by torch"):
        from_torch(branches, torch.ones(1, 3, 8, 8))
