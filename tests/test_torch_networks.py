"""`freeze` and the backend of `torch.compile`: the numbers of torch, and what is left to it is told."""

import copy
import importlib.metadata
import logging
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """A layer, a norm, a residual sum, an operator that torch is left to run, and a size beside the map."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)

    def forward(self, x, scale=1.0, *, twice=False):
        y = torch.relu_(self.norm(self.first(x)))
        y = torch.expm1(self.second(y) + y) * scale
        return {"y": y + y if twice else y, "height": x.shape[2]}


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Net().eval()
    model.norm.running_mean.normal_()
    return model


def same(found, expected):
    assert found.keys() == expected.keys() and found["height"] == expected["height"]
    torch.testing.assert_close(found["y"], expected["y"].detach(), rtol=1e-4, atol=1e-5)


def test_frozen_models_give_the_numbers_of_torch(model):
    frozen = ct.freeze(model, torch.randn(1, 3, 8, 8))
    told = "6 of 7 operators are computed by convalgos\n  left 1 times: expm1 has no step here"
    assert frozen.report().startswith(told)
    for shape in ((1, 3, 8, 8), (3, 3, 9, 7), (2, 3, 5, 5)):
        x = torch.randn(shape)
        same(frozen(x), model(x))
    last = torch.randn(3, 3, 9, 7).to(memory_format=torch.channels_last)
    same(frozen(last, 2.0, twice=True), model(last, 2.0, twice=True))
    assert "the model itself ran" not in frozen.report()
    assert not frozen(x)["y"].requires_grad and frozen(x)["y"].data_ptr() != frozen(x)["y"].data_ptr()
    for again in (copy.deepcopy(frozen), ct.freeze(model, (x,))):
        same(again(x), model(x))
        assert "the model itself ran" not in again.report()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda m: torch.ones(1, 3, 8, 8, requires_grad=True), "an argument asks for its gradient"),
        (lambda m: m.double() and torch.ones(1, 3, 8, 8).double(), "an argument is of torch.float64"),
        (lambda m: m.train() and torch.ones(1, 3, 8, 8), "the model is in training"),
    ],
)
def test_calls_that_no_network_serves_go_to_the_model(model, given, why):
    frozen = ct.freeze(model, torch.ones(1, 3, 8, 8))
    x = given(model)
    y = frozen(x)["y"]
    assert y.requires_grad and y.device == x.device
    assert f"the model itself ran, in 1 calls: {why}" in frozen.report()


def test_arguments_that_are_equal_and_not_the_same_are_told_apart():
    class Scaled(nn.Module):
        def forward(self, x, scale):
            return torch.expm1(x) * scale if type(scale) is not bool else x.relu()

    model, x = Scaled().eval(), -torch.ones(2, 3)
    for calls in (
        [(x, 1), (x, True), (x, 0.0), (x, -0.0)],
        [(x.int(), 1.0), (x.long(), 1.0), (x, 1.0), (x, 1)],
    ):
        frozen = ct.freeze(model, *calls[0])
        for given in calls:
            y, expected = frozen(*given), model(*given)
            torch.testing.assert_close(y, expected)
            assert torch.equal(torch.signbit(y), torch.signbit(expected))
        assert not frozen._calls.left_whole and len(frozen._calls.networks) == 4


def test_arguments_that_may_change_are_left_to_the_model():
    class Scaled(nn.Module):
        def forward(self, x, options):
            return x * options.factor

    options, x = SimpleNamespace(factor=2), torch.ones(2)
    frozen = ct.freeze(Scaled().eval(), x, options)
    options.factor = 3
    assert torch.equal(frozen(x, options), 3 * x)
    told = "2 calls: an argument is of SimpleNamespace, and may be another one in each call"
    assert told in frozen.report()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat((x, x), 1)[:, ::2],
        lambda x: x[:0],
        lambda x: nn.Parameter(x, requires_grad=False),
        lambda x: nn.Parameter(x),
        lambda x: torch._neg_view(x),
        lambda x: torch.frombuffer(bytearray(1 + 4 * x.numel()), dtype=torch.float32, offset=1).view_as(x),
        lambda x: x.as_subclass(type("Sub", (torch.Tensor,), {})),
        lambda x: x.to_sparse(),
    ],
)
def test_tensors_of_any_kind_give_the_numbers_of_torch(change):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    frozen = ct.freeze(model, torch.ones(3, 6))
    with torch.no_grad():
        x = change(torch.randn(3, 6))
        y, expected = frozen(x), model(x)
    torch.testing.assert_close(y, expected)
    assert type(y) is type(expected)


def test_frozen_models_are_mapped_and_differentiated_by_torch():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    frozen = ct.freeze(model, torch.ones(6))
    x = torch.randn(3, 6)
    torch.testing.assert_close(torch.func.vmap(frozen)(x), model(x))
    torch.testing.assert_close(torch.func.jacrev(frozen)(x[0]), torch.func.jacrev(model)(x[0]))
    assert "2 calls: torch was tracing, transforming or profiling" in frozen.report()


def test_models_that_no_network_can_be_read_of_run_themselves(model):
    half = ct.freeze(model.to(torch.bfloat16), torch.ones(1, 3, 8, 8, dtype=torch.bfloat16))
    assert "an argument is of torch.bfloat16, and networks are of torch.float32" in half.report()
    with pytest.raises(TypeError, match=r"model=int must be a torch\.nn\.Module"):
        ct.freeze(3)
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        ct.freeze(model.train(), torch.ones(1, 3, 8, 8))


def test_branches_on_values_leave_the_model_to_torch():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    frozen = ct.freeze(Branches().eval(), torch.ones(2))
    assert torch.equal(frozen(-torch.ones(2)), torch.ones(2))
    assert "Branches cannot be exported by torch.export" in frozen.report()


def test_factors_that_torch_makes_of_nothing():
    class Made(nn.Module):
        def forward(self, x):
            return x * torch.randint(3, 4, (5,), dtype=torch.float32)

    frozen = ct.freeze(Made().eval(), torch.ones(2, 5))
    assert torch.equal(frozen(torch.ones(2, 5)), torch.full((2, 5), 3.0))
    assert "left 1 times: randint has no step here" in frozen.report()


def test_parts_that_might_compute_in_another_type():
    """Those that compute in float32 are read as if nothing was around them."""

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            with torch.no_grad():
                y = self.first(x).relu()
                with torch.autocast("cpu", enabled=False):
                    z = self.second(y) * 2
            with torch.autocast("cuda", enabled=False):
                z = self.second(z)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                half = self.second(z)
            return y + half.float(), z

    model = Parts().eval()
    for inner in (torch.no_grad, torch.enable_grad):
        with inner():
            frozen = ct.freeze(model, torch.ones(2, 3, 6, 6))
            x = torch.randn(2, 3, 6, 6)
        torch.testing.assert_close(frozen(x), tuple(y.detach() for y in model(x)), rtol=1e-4, atol=1e-4)
        assert "left 1 times: wrap_with_autocast has no step here" in frozen.report()
        assert "the model itself ran" not in frozen.report()


class Holding(nn.Module):
    """A model that goes its way by numbers that it holds: those of a buffer, and of a plain attribute."""

    def __init__(self, change):
        super().__init__()
        self.register_buffer("flags", torch.tensor([[1, 0], [3, 1]]))
        self.times, self.change = torch.arange(1, 4), change

    def forward(self, x):
        flags = self.flags.clone()
        if self.change == "directly":
            flags[0, 1] = 2
        elif self.change:
            flags.flip(0).flip(0)[0, 1] = 2  # of a copy
            flags.t().diagonal(-1).fill_(2)
        for i, row in enumerate(self.flags):
            x = x.relu_() if row[1] and row.sum() > 2 else x * self.times[i + 1].item()
        return x + 1 if flags[1][0] == 3 and flags[0][1] == 2 else x - int(self.flags.max())


@pytest.mark.parametrize("change", ["", "directly", "seen otherwise"])
def test_branches_on_numbers_that_a_model_holds(change):
    model = Holding(change).eval()
    frozen = ct.freeze(model, torch.ones(2, 3))
    for shape in ((2, 3), (4, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(frozen(x), model(x))
    assert ("the model itself ran" in frozen.report()) == bool(change)
    assert model.flags.tolist() == [[1, 0], [3, 1]] and model.times.tolist() == [1, 2, 3]


def test_a_model_that_cannot_be_read_for_all_sizes_is_read_for_each():
    class Fixed(nn.Module):
        def forward(self, x):
            assert type(x.shape[2]) is int  # a symbol where sizes are free
            return x.relu()

    frozen = ct.freeze(Fixed().eval(), torch.ones(1, 3, 8, 8))
    x = -torch.ones(2, 3, 9, 9)
    assert torch.equal(frozen(x), torch.zeros_like(x))
    assert "the model itself ran" not in frozen.report()
    assert not vars(x)  # as `torch.export` leaves them on what it is given


def test_what_a_model_computes_and_does_not_return_is_left_out():
    class Forgetful(nn.Module):
        def forward(self, x):
            x.expm1().sort()  # steps of torch
            return x.relu()

    frozen = ct.freeze(Forgetful().eval(), torch.ones(1, 3, 8, 8))
    assert torch.equal(frozen(-torch.ones(1, 3, 8, 8)), torch.zeros(1, 3, 8, 8))
    assert "sort" not in frozen.report()


def test_models_that_are_compiled_for_open_sizes_are_read_once():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()
    read = []

    def backend(graph, example):
        read.append(ct.compile_backend(graph, example))
        return read[-1]

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for shape in ((1, 3, 8, 8), (1, 3, 9, 7), (1, 3, 10, 12), (1, 3, 90, 120), (1, 3, 7, 9)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(read) >= 3, "torch itself asks whether maps are large"
    assert all(graph._binding.calls is read[1]._binding.calls for graph in read[1:])
    (network,) = read[1]._binding.calls.networks
    assert network.free == (frozenset({2, 3}),) and not read[1]._binding.calls.left_whole


def test_compiled_models_give_the_numbers_of_torch(model, caplog):
    compiled = torch.compile(model, backend=ct.compile_backend)
    with caplog.at_level(logging.INFO, "convalgos.torch"), torch.no_grad():
        for shape in ((1, 3, 8, 8), (3, 3, 9, 7)):
            x = torch.randn(shape)
            same(compiled(x), model(x))
        model.second.weight.mul_(2)  # what was read of the model no longer holds
        same(compiled(x), model(x))
    assert "left 1 times: expm1 has no step here" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "convalgos.torch"):
        compiled(x)["y"].sum().backward()
    assert model.second.weight.grad is not None and "gradients are recorded" in caplog.text


def test_the_backend_has_a_name():
    from torch._dynamo.backends import registry

    assert ct.compile_backend is registry.lookup_backend("convalgos")
    entries = importlib.metadata.entry_points(group="torch_dynamo_backends", name="convalgos")
    assert all(entry.load() is ct.compile_backend for entry in entries)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular", "replicate"])
def test_replaced_convolutions_are_steps(mode):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=(2, 1), padding_mode=mode, dilation=(2, 1), groups=2),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, (4, 3), stride=2, padding="valid", bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
    ).eval()
    model[1].running_mean.normal_()
    x = torch.randn(2, 4, 11, 9)
    with torch.no_grad():
        wanted = {n: model(x[:n]) for n in (2, 1)}
    ct.replace(model)
    frozen = ct.freeze(model, x)
    assert "left" not in frozen.report()
    with torch.no_grad():
        for n, y in wanted.items():
            for run in (frozen, torch.compile(model, backend="convalgos")):
                torch.testing.assert_close(run(x[:n]), y, rtol=1e-4, atol=1e-4)
