"""Networks of torch take tensors as they lie, and give what lies as torch's results do."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from torch import nn  # noqa: E402

import convalgos.torch  # noqa: E402
from convalgos.network.torch_reader.memory_orders import as_seen, by_order, order_in_memory  # noqa: E402

LAST = torch.channels_last


class Results(nn.Module):
    """Maps, other views of them, what has no order of its own, an argument, and truth values."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))

    def forward(self, x):
        y = self.body(x)
        pooled = y.mean((2, 3))
        return y, y.permute(2, 3, 0, 1), y.flatten(1), x, pooled, pooled.t(), (y > 0), y.relu().contiguous()


def example(kind, n=2):
    torch.manual_seed(n)
    if kind == "turned":
        return torch.randn(n, 3, 10, 12).transpose(2, 3)
    if kind == "image":  # whose batch is of one, and a view
        return torch.randn(12, 10, 3).permute(2, 0, 1)[None]
    if kind == "expanded":
        return torch.randn(n, 3, 1, 1).expand(n, 3, 12, 10)
    x = torch.randn(n, 3, 12, 20)
    return (x if kind == "first" else x.to(memory_format=LAST))[..., :10].contiguous(
        memory_format=LAST if kind == "last" else torch.contiguous_format
    )


def steps(tensor):
    """Its strides, where there is more than one element."""
    return [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
        assert 0 in steps(other) or steps(one) == steps(other)


@pytest.mark.parametrize("by", ["freeze", "compile"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["first", "last", "turned", "image", "expanded"])
def test_results_lie_as_torch_has_them(kind, last, by):
    torch._dynamo.reset()
    x = example(kind)
    model = Results().eval()
    if last:
        model = model.to(memory_format=LAST)
    with torch.no_grad():
        if by == "freeze":
            run = convalgos.torch.freeze(model, x)
        else:
            run = torch.compile(model, backend="convalgos")
        for n in (2, 3, 1):
            x = example(kind, n)
            same(run(x), model(x))
        if by == "freeze":
            assert not run._calls.left_whole


def test_one_model_takes_several_orders():
    model = Results().eval()
    run = convalgos.torch.freeze(model, example("first"))
    with torch.no_grad():
        for kind in ("last", "first", "image", "last"):
            x = example(kind)
            same(run(x), model(x))
    assert not run._calls.left_whole


class Twice(nn.Module):
    def forward(self, x):
        return x * 2, x.relu()


class Constants(nn.Module):
    """Results of which nothing is computed of the argument."""

    def __init__(self):
        super().__init__()
        self.known = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=LAST))

    def forward(self, x):
        return torch.zeros_like(x) + 1, torch.ones_like(x), self.known, self.known * 2


def test_constants_lie_as_in_torch():
    x, model = example("last"), Constants().eval()
    with torch.no_grad():
        same(convalgos.torch.freeze(model, x)(x), model(x))


@pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 3, 1, 2), (2, 3, 1, 0), (1, 0, 2, 3)])
def test_open_batches_keep_their_order(order):
    seen = as_seen(order)

    def arranged(n):
        return torch.randn(by_order((n, 3, 5, 4), order)).permute(seen)

    model = Twice().eval()
    run = convalgos.torch.freeze(model, arranged(2))
    for n in (1, 3, 2):  # the second is read for an open batch, of an example of one
        x = arranged(n)
        same(run(x), model(x))


@pytest.mark.parametrize("shape", [(2, 1, 6, 5), (2, 3, 1, 1), (1, 1, 6, 5)])
@pytest.mark.parametrize("by", ["freeze", "compile"])
def test_maps_of_one_channel_or_pixel_lie_as_their_strides_tell(shape, by):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(shape[1], 4, 1), nn.Upsample(scale_factor=2)).eval()
    x = torch.randn(shape)
    plain, last = x, torch.empty_like(x, memory_format=LAST).copy_(x)
    with torch.no_grad():
        for first, second in ((plain, last), (last, plain)):
            if by == "freeze":
                run = convalgos.torch.freeze(model, first)
            else:
                run = torch.compile(model, backend="convalgos")
            for given in (first, second, first):
                same([run(given)], [model(given)])


def test_parts_of_plain_tensors_need_no_other_network():
    model, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(2, 3, 24, 10)
    run = convalgos.torch.freeze(model, x[:, :, :12].contiguous())
    with torch.no_grad():
        for part in (x[:, :, ::2], x[:, :1, :1, :1].expand(2, 3, 12, 10)):
            same([run(part)], [model(part)])
    assert len(run._calls.networks) == 1


def test_gaps_are_left_out():
    x = torch.randn(2, 3, 12, 20).to(memory_format=LAST)[..., ::2]
    model = nn.Conv2d(3, 4, 3).eval()
    with torch.no_grad():
        run, y = convalgos.torch.freeze(model, x), model(x)
        same([run(x)], [y])
        half = convalgos.torch.freeze(Half().eval(), x)(x)
    torch.testing.assert_close(half, x[:, :1].relu())
    assert half.is_contiguous()


class Half(nn.Module):
    def forward(self, x):
        return x.relu()[:, :1]


@pytest.mark.parametrize(
    "tensor, order",
    [
        (torch.empty(2, 3, 4, 5), None),
        (torch.empty(2, 3, 4, 5).to(memory_format=LAST), (0, 2, 3, 1)),
        (torch.empty(2, 3, 4, 5).to(memory_format=LAST)[:, :2, ::2], (0, 2, 3, 1)),
        (torch.empty(2, 3, 4).transpose(0, 2), (2, 1, 0)),
        (torch.empty(4, 3).t(), (1, 0)),
        (torch.empty(1, 3, 1).expand(2, 3, 4), None),
        (torch.empty(0, 3, 4).transpose(0, 2), None),
        (torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d), (0, 2, 3, 4, 1)),
        (torch.tensor(1.0), None),
    ],
)
def test_orders(tensor, order):
    assert order_in_memory(tensor.shape, tensor.stride()) == order
    if order is not None:
        assert tensor.permute(order).permute(as_seen(order)).stride() == tensor.stride()
        assert by_order(tensor.shape, order) == tensor.permute(order).shape
