"""Models of torch that write into tensors: constants are computed with their writes, and others left out."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Of(nn.Module):
    """A module of a function of itself and x."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.drop = nn.Dropout(0.5, inplace=True)
        self.keep = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("rows", torch.arange(12.0).reshape(3, 4))

    def forward(self, x):
        return self.function(self, x)


def masked(self, x):
    """As attention in shifted windows makes its mask."""
    mask, rows = x.new_zeros((3, 4)), self.rows.clone()
    for i, part in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
        mask[part] = i
    rows[:, 1:] = mask[:, :3] * 2
    rows.t().sub_(1)
    return x + mask.masked_fill(mask != 0, -100.0) * rows


def dropped(self, x):
    return self.drop(x.mul(2).flatten(1)) + 1


def chained(self, x):
    y = x * 2
    y.add_(1).relu_()
    return y.view(-1).mul_(3)


def read_between(self, x):
    mask = torch.zeros(3, 4)
    before = x + mask
    mask.fill_(1)
    return before, x + mask


def base_read(self, x):
    y = x.relu()
    y[:, 1:].add_(1)
    return y


def view_read(self, x):
    y = x.relu()
    part = y[:, 1:]
    y.add_(1)
    return part, y


def part_behind_all(self, x):
    y = x * 2
    y.relu_()
    y[:, :2].add_(1)
    return y


def kept(self, x):
    y = x * 2
    z = self.keep(y)
    z.add_(1)
    return y + z


def kept_in_part(self, x):
    y = self.keep(x * 2)
    y[:, 1:].sub_(1)
    return F.feature_alpha_dropout(y, 0.5, self.training)


def turned(self, x):
    y = x * 2
    z = torch.einsum("ij->ji", y)
    z.add_(torch.ones(3))
    return y, z


def filled(self, x):
    made = x.new_zeros(3, 4)
    made[:, :2] = x[:, 2:]
    return made * 2


def halves(self, x):
    y = x.relu()
    a, b = y.chunk(2, 1)
    a.mul_(2)
    return a + b, y


def repeated(self, x):
    mask = torch.zeros(1, 4).expand(3, 4).clone()
    mask[0] = self.weight * 3
    return x + mask


def counted(self, x):
    self.rows.add_(1)
    return x * self.rows


UNDONE = (masked, dropped, chained)  # without torch's functionalisation, which takes long
DONE = (part_behind_all, read_between, base_read, view_read, filled, halves, repeated, kept, kept_in_part)
LEFT = {
    turned: "writes into what einsum gives",
    counted: "writes into rows",
}


@pytest.mark.parametrize("function", (*UNDONE, *DONE, *LEFT), ids=lambda f: f.__name__)
def test_writes_give_the_numbers_of_torch(function, monkeypatch):
    if function in UNDONE:
        monkeypatch.delattr(torch.export.ExportedProgram, "run_decompositions")
    torch.manual_seed(0)
    model, own = Of(function).eval(), Of(function).eval()
    frozen = ct.freeze(own, torch.randn(3, 4))
    if function is counted:
        model(torch.randn(3, 4))
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(frozen(x.clone()), model(x.clone()))
    assert LEFT.get(function, "operators are computed by") in frozen.report()
    assert ("the model itself ran" in frozen.report()) == (function in LEFT)
    assert torch.equal(own.weight, torch.ones(4)) and (own.rows[0, 0] == 0 or function is counted)


def written(self, x):
    x.add_(self.weight)
    return x * 2, x


def written_in_part(self, x):
    x.mul_(2)
    x[:, 1:].relu_()
    return x * 2, x


@pytest.mark.parametrize("function", (written, written_in_part), ids=lambda f: f.__name__)
def test_writes_into_arguments_are_seen_behind_torch_compile(function):
    """dynamo gives back the very argument, where the graph says that it was written to."""
    torch.manual_seed(0)
    model = Of(function).eval()
    compiled = torch.compile(Of(function).eval(), backend="convalgos")
    for _ in range(2):
        x = torch.randn(3, 4)
        own, y = x.clone(), x.clone()
        with torch.no_grad():
            torch.testing.assert_close(compiled(y), model(own))
        torch.testing.assert_close(y, own)
    torch.testing.assert_close(ct.freeze(Of(function).eval(), x)(x.clone()), model(x.clone()))


@pytest.mark.parametrize("channels", (4, 64))
def test_writes_that_torch_does_not_count_are_seen_behind_torch_compile(channels):
    """Through `data`, as averages of weights are set, and through NumPy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)).eval()
    compiled = torch.compile(model, backend="convalgos")
    convolution, norm = model
    x, other = torch.randn(2, channels, 6, 5), torch.randn_like(convolution.weight) / channels
    writes = (
        lambda: None,
        lambda: convolution.weight.data.mul_(1.5),
        lambda: setattr(convolution.weight, "data", other),
        lambda: convolution.weight.detach().numpy().__imul__(2),
        lambda: norm.running_mean.numpy().fill(0.5),
        lambda: convolution.bias.data.copy_(torch.arange(float(channels))),
    )
    with torch.no_grad():
        for write in writes:
            write()
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of", [lambda w: w[:, :4], lambda w: w[:1].expand(6, 9), lambda w: w.T[::2]])
def test_writes_to_parts_of_tensors_are_seen_behind_torch_compile(of):
    """Whose elements lie apart: a flat array of them is a copy."""
    weight = torch.randn(6, 9)
    model = nn.Linear(1, 1, bias=False).eval()
    model.weight = nn.Parameter(of(weight), requires_grad=False)
    compiled = torch.compile(model, backend="convalgos")
    x = torch.randn(2, model.weight.shape[1])
    for factor in (1, 3):
        weight.numpy().__imul__(factor)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
