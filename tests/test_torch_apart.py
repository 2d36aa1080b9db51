"""Reading a model leaves it and other threads as they are, and what it returns holds numbers."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Hooked(nn.Module):
    """Reads what a hook writes into a dictionary that it holds, and keeps one of what it met."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)
        self.found, self.met = {}, {"sizes": []}
        found = self.found
        self.first.register_forward_hook(lambda module, given, y: found.__setitem__("first", y))

    def forward(self, x):
        self.met["sizes"].append(x)
        return self.second(self.first(x)) + self.found["first"]


def test_a_model_that_was_read_computes_as_before():
    model, x, other = Hooked().eval(), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        before = model(x)
        frozen = ct.freeze(model, x)
        assert len(model.met["sizes"]) == 1 and type(model.met["sizes"][0]) is torch.Tensor
        assert type(model.found["first"]) is torch.Tensor
        torch.testing.assert_close(model(x), before)
        torch.testing.assert_close(frozen(other), model(other), rtol=1e-4, atol=1e-5)
    assert "3 of 3 operators" in frozen.report()


class Kept(nn.Module):
    """Its hook lays a map into an attribute that it reads."""

    def __init__(self, make_hook):
        super().__init__()
        self.layer, self.kept = nn.Conv2d(3, 4, 3), None
        self.layer.register_forward_hook(make_hook(self))

    def keep(self, module, given, y):
        self.kept = y

    def forward(self, x):
        self.layer(x)
        return self.kept * 2


HOOKS = {
    "method": (lambda model: model.keep, "2 of 2 operators are computed by convalgos"),
    "function": (
        lambda model: lambda module, given, y: setattr(model, "kept", y),
        "writes its attribute kept",
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("is_called", [False, True])
def test_hooks_that_write_to_the_model(hook, is_called):
    make, report = HOOKS[hook]
    model, x, other = Kept(make).eval(), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        if is_called:
            model(x)
        frozen = ct.freeze(model, x)
        torch.testing.assert_close(frozen(other), model(other), rtol=1e-4, atol=1e-5)
    assert report in frozen.report() or not is_called


class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.__dict__["parent"] = parent

    def forward(self):
        return self.parent.kept * 2


class Parent(nn.Module):
    """A part of it reads its attributes."""

    def __init__(self):
        super().__init__()
        self.layer, self.child = nn.Conv2d(3, 4, 3), Child(self)

    def forward(self, x):
        self.kept = self.layer(x)
        return self.child()


def test_parts_that_know_the_model():
    model, x, other = Parent().eval(), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        model(x)
        frozen = ct.freeze(model, x)
        torch.testing.assert_close(frozen(other), model(other), rtol=1e-4, atol=1e-5)
    assert "2 of 2 operators" in frozen.report()


class Waiting(nn.Module):
    """Lets others go on while it is traced."""

    def __init__(self, traced, done):
        super().__init__()
        self.layer, self.events = nn.Conv2d(3, 4, 3), (traced, done)

    def forward(self, x):
        traced, done = self.events
        traced.set()
        assert done.wait(60)
        return self.layer(x)


def test_other_threads_call_a_model_while_it_is_read():
    traced, done, x = threading.Event(), threading.Event(), torch.randn(1, 3, 8, 8)
    model, frozen, call = Waiting(traced, done).eval(), [], nn.Module.__call__
    expected = model.layer(x)
    reader = threading.Thread(target=lambda: frozen.append(ct.freeze(model, x)))
    reader.start()
    try:
        assert traced.wait(60)
        found = model.layer(x)
    finally:
        done.set()
        reader.join()
    assert type(found) is torch.Tensor and torch.equal(found, expected)
    assert "1 of 1 operators" in frozen[0].report() and nn.Module.__call__ is call


def test_models_are_read_one_after_the_other():
    models = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval() for _ in range(3)]
    x, call, found = torch.randn(1, 3, 8, 8), nn.Module.__call__, []
    readers = [threading.Thread(target=lambda m=m: found.append(ct.freeze(m, x))) for m in models]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for frozen in found:  # in a thread that found another one tracing it left the call to the model
        torch.testing.assert_close(frozen(x), frozen.model(x).detach(), rtol=1e-4, atol=1e-5)
    assert all(frozen.report().startswith("3 of 3 operators") for frozen in found)
    assert nn.Module.__call__ is call


@dataclass
class Answer:
    y: torch.Tensor
    parts: Any = None


class Bag(OrderedDict):
    """What torch does not look into."""


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Conv2d(3, 4, 3), make

    def forward(self, x):
        return self.make(self.layer(x))


class Shape:
    """No dataclass, and no more than its attributes."""

    def __init__(self, y):
        self.sizes, self.numbers = y.shape, {"y": y}


def test_objects_of_attributes_are_returned():
    frozen = ct.freeze(Returns(lambda y: (Shape(y), y)).eval(), torch.randn(2, 3, 8, 8))
    found, y = frozen(torch.randn(2, 3, 8, 8))
    assert type(found) is Shape and found.sizes == (2, 4, 6, 6) and torch.equal(found.numbers["y"], y)
    assert "1 of 1 operators" in frozen.report()


def test_dataclasses_are_returned():
    model = Returns(lambda y: {"a": Answer(y, [Answer(y + 1), None, "name"]), "n": 3}).eval()
    x = torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(model, x)
    found, expected = frozen(x), model(x)
    assert "2 of 2 operators" in frozen.report() and found["n"] == 3
    assert type(found["a"]) is type(found["a"].parts[0]) is Answer and found["a"].parts[1:] == [None, "name"]
    for one, other in ((found["a"].y, expected["a"].y), (found["a"].parts[0].y, expected["a"].parts[0].y)):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5)


def test_what_might_hold_tensors_comes_from_the_model():
    model, x = Returns(lambda y: Bag(y=y)).eval(), torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(model, x)
    assert type(frozen(x)["y"]) is torch.Tensor and "it returns a Bag" in frozen.report()


def test_a_model_whose_sizes_are_not_known_is_read_once_they_are():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).eval()
    x = torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(model, x)
    torch.testing.assert_close(frozen(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert frozen.report() == "4 of 4 operators are computed by convalgos"


def test_what_torch_sees_in_another_shape_lies_in_another_order_here():
    """Between operators that torch is left to run, what `contiguous` gave is the tensor before it."""

    class Turned(nn.Module):
        def forward(self, x):
            turned = x.transpose(1, 2).contiguous()
            return torch.expm1(turned.view(-1, x.shape[1])) + torch.cdist(x, x).sum()

    x = torch.randn(2, 3, 5)
    frozen = ct.freeze(Turned().eval(), x)
    torch.testing.assert_close(frozen(x), Turned()(x), rtol=1e-4, atol=1e-5)


def test_layers_that_torch_has_traced():
    traced = torch.jit.trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(nn.Sequential(traced, nn.ConvTranspose2d(4, 2, 2)).eval(), x)
    torch.testing.assert_close(frozen(x), frozen.model(x).detach(), rtol=1e-4, atol=1e-5)
    assert "3 of 3 operators" in frozen.report()
