"""Models of torch that return what follows from no input, and tensors that change from call to call."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402


class Returns(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.conv, self.of = nn.Conv2d(3, 4, 3), of
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("doubles", torch.arange(4, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.of(self, x)


RETURNED = [
    lambda m, x: (m.conv(x), m.table, m.scale.exp(), m.table),
    lambda m, x: (m.conv(x), torch.arange(5), torch.full((2, 2), 3.0), torch.zeros(0, 4)),
    lambda m, x: (m.conv(x), m.doubles * 2, m.doubles.half(), m.doubles > 1, m.doubles.to(torch.uint8)),
    lambda m, x: (m.table * 2, m.scale),
    lambda m, x: (m.conv(x).sort(-1)[0], m.table),  # beside steps of torch
]


@pytest.mark.parametrize("of", RETURNED)
@pytest.mark.parametrize("face", [ct.freeze, lambda m, x: torch.compile(m, backend=ct.compile_backend)])
def test_constants_that_a_model_returns_are_its_outputs(of, face):
    torch._dynamo.reset()
    model, x = Returns(of).eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        served = face(model, x)
        for found in (served(x), served(x)):
            expected = model(x)
            assert len(found) == len(expected)
            for y, right in zip(found, expected, strict=True):
                torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
                if y.numel():
                    y.zero_()  # what is given belongs to the caller
    if face is ct.freeze:
        assert "the model itself ran" not in served.report()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_types_that_the_network_has_not_are_told(dtype):
    model, x = Returns(lambda m, x: (m.conv(x), m.table.to(dtype))).eval(), torch.randn(2, 3, 8, 8)
    frozen = ct.freeze(model, x)
    assert frozen(x)[1].dtype == dtype and f"which is of {dtype}" in frozen.report()


def test_images_are_written_into_an_array_of_zeros():
    class Batch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x):
            batch = torch.zeros(x.shape[0], 3, 16, 24)
            batch[:, :, 2:9, :-13].copy_(x)
            return self.conv(batch)

    model, x = Batch().eval(), torch.randn(2, 3, 7, 11)
    frozen = ct.freeze(model, x)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)
    assert "the model itself ran" not in frozen.report()


class Anchors(nn.Module):
    """It makes its tensor anew in each call, as detectors of torchvision do."""

    def __init__(self):
        super().__init__()
        self.conv, self.cells, self.calls = nn.Conv2d(3, 4, 3), [torch.ones(4)], 0

    def forward(self, x):
        return self.conv(x) * self.cells[0][:, None, None], self.cells[0]


def test_a_tensor_that_is_another_one_in_each_call_is_an_input():
    torch._dynamo.reset()
    model, graphs = Anchors().eval(), []

    def backend(graph, example):
        graphs.append(ct.compile_backend(graph, example))
        return graphs[-1]

    compiled, networks = torch.compile(model, backend=backend), []
    with torch.no_grad():
        for _ in range(6):
            x, model.cells = torch.randn(1, 3, 8, 8), [torch.randn(4)]
            for y, right in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
            networks.append(graphs[0]._binding.calls)
        assert len(graphs) == 1 and len({*map(id, networks)}) == 3 and networks[-1] is networks[2]
        model.conv.weight.mul_(2)  # which is still a constant
        torch.testing.assert_close(compiled(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
    assert len(graphs[0]._binding.inputs.fixed) == 2


def test_a_call_runs_by_its_own_tensors_while_another_one_binds_others(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(ct.compiling, "CHANGES", 9)
    first, second = Returns(lambda m, x: m.conv(x)).eval(), Returns(lambda m, x: m.conv(x)).eval()
    x, graphs, meanwhile = torch.randn(2, 3, 8, 8), [], []

    class Graph(ct.compiling.CompiledGraph):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "_binding" and meanwhile:
                meanwhile.pop()()  # as another thread may

    def backend(graph, example):
        graphs.append(Graph(graph))
        return graphs[-1]

    compiled = torch.compile(lambda model, x: model.conv(x), backend=backend)
    with torch.no_grad():
        compiled(first, x)
        meanwhile.append(lambda: compiled(first, x))
        torch.testing.assert_close(compiled(second, x), second(x), rtol=1e-4, atol=1e-5)
        assert not meanwhile and len(graphs) == 1
