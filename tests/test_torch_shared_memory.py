"""What compiled functions return shares memory as torch's does, so that later writes are seen."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import convalgos.torch  # noqa: E402, F401 # the backend

X = torch.arange(144.0).remainder(7).sub(3).reshape(2, 2, 6, 6)


def break_graph():
    torch._dynamo.graph_break()


def view_of_input(x):
    y = x.unsqueeze(0)[0]
    break_graph()
    y.add_(1)
    return x


def input_that_is_contiguous(x):
    y = x.contiguous().to(torch.float32)
    break_graph()
    y.mul_(2)
    return x


def view_of_input_beside_numbers(x):
    y, v = x.relu(), x[:, 0]
    break_graph()
    v.mul_(2)
    return x, y


def views_of_output(x):
    y = x.relu()
    v, (_, b) = y.select(2, 0), y.chunk(2, 1)
    break_graph()
    v.add_(1)
    b.mul_(3)
    return y, v, b


def views_of_what_is_not_returned(x):
    a, b = x.exp().unsqueeze(0), x.exp()
    a, c = a[0, :1], a.flatten(0, 1)
    break_graph()
    a.zero_()
    return a, b, c


def view_that_was_written(x):
    y = x.relu()
    v = y[:, 0]
    v.add_(2)
    break_graph()
    y.mul_(2)
    return y, v


def written_result(x):
    y = x.exp()
    z = F.relu(y, inplace=True)
    break_graph()
    z.add_(1)
    return y, z


def view_as_large_as_a_result(x):
    y = x.flatten(2).sum(-1)
    v = x[:, :, 0, 0].view_as(y)
    break_graph()
    v.add_(1)
    return x, y, v


def view_of_what_lies_in_another_order(x):
    y = x.exp()
    v, w = y.contiguous(memory_format=torch.channels_last), y.movedim(1, -1).reshape(-1)
    break_graph()
    v.add_(1)
    w.mul_(2)
    return y, v, w


def dropped_input(x):
    y = F.dropout(x, 0.5, False)
    z = x.exp()
    break_graph()
    y.add_(1)
    return x, y, z


FUNCTIONS = [
    view_of_input, input_that_is_contiguous, view_of_input_beside_numbers, views_of_output,
    views_of_what_is_not_returned, view_that_was_written, written_result, view_as_large_as_a_result,
    view_of_what_lies_in_another_order, dropped_input,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_after_a_break_are_seen(function, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="convalgos", dynamic=dynamic)
    for x in (X, X[:1], X.transpose(2, 3), X.to(memory_format=torch.channels_last)):
        theirs, ours = x.clone(), x.clone()
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(ours), function(theirs))
                torch.testing.assert_close(ours, theirs)


def test_views_of_parameters_and_of_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()

    def run(x):
        y = model(x)
        return y, y.flatten(1), model[0].weight.view(-1)

    torch._dynamo.reset()
    with torch.no_grad():
        y, flat, filters = torch.compile(run, backend="convalgos")(X)
        torch.testing.assert_close(y, model(X), rtol=1e-4, atol=1e-4)
        y.zero_()
        filters.zero_()
    assert not flat.any() and not model[0].weight.any()


def test_modes_and_options_of_torchs_compiler_are_taken():
    model = nn.Conv2d(2, 4, 3).eval()
    for how in ({"mode": "max-autotune"}, {"options": {"max_autotune": True}}):
        torch._dynamo.reset()
        with torch.no_grad():
            y = torch.compile(model, backend="convalgos", **how)(X)
            torch.testing.assert_close(y, model(X), rtol=1e-4, atol=1e-4)


def test_numbers_that_are_1_are_no_flags(caplog):
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: (y := x.exp(), y.permute(0, 2, 3, 1), y.narrow(0, 0, 1)), backend="convalgos"
    )
    with torch.no_grad(), caplog.at_level("INFO", "convalgos.torch"):
        y, turned, part = run(X)
    assert "left to torch" not in caplog.text
    assert turned.data_ptr() == part.data_ptr() == y.data_ptr()


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_views_of_sizes_that_data_decide():
    torch._dynamo.reset()

    def run(x):
        places = x.nonzero()
        return x.exp(), places, places[:, 0]

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(run, backend="convalgos")(X), run(X))
