"""Modules of torch that write into slices, and arrays of one number: steps of ours, for any size."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from test_network_torch import Does, checked, kinds  # noqa: E402
from torch import nn  # noqa: E402

from convalgos.network.torch_reader.export import any_sizes  # noqa: E402
from convalgos.network.torch_reader.graph import from_torch, graph_of_module  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def channels_in_front(m, x):
    y = x * 2
    y[:, :2] = m.conv(y[:, :2])
    return y


def rows_between(m, x):
    y = x + 1
    y[:, :, 2:4] = y[:, :, :1] * 3
    y[:, :, :, 3] = 7.0
    y[:, :, :3, 5] = 8.0
    return y


def one_channel_and_the_end(m, x):
    y = x - 1
    y[:, 1] = y[:, 3] + y[:, 0]
    y[:, 3:] = m.last(x)
    y[:] = y * y.new_full((1,), 3)
    return y.clip(max=2.0).clamp_max(1.5)


def numbers(m, x):
    zeros, ones = torch.zeros(x.shape[0], 3, 2), torch.ones_like(x)
    full = x.new_full((x.shape[0], 1, 1, 1), 2.5)
    return (
        zeros.mT + x[:, :2, 1:3, :3].mean(1),
        ones * x,
        (full > 1).to("cpu", torch.float32) + x,
        torch.full_like(x, -1) * x,
    )


FUNCTIONS = [channels_in_front, rows_between, one_channel_and_the_end, numbers]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_writes_into_slices_and_arrays_of_one_number(function):
    module = Does(function, conv=nn.Conv2d(2, 2, 3, padding=1), last=nn.Conv2d(4, 1, 1))
    assert "Foreign" not in kinds(checked(module))
    x = torch.randn(2, 4, 9, 7)
    graph = graph_of_module(module, (x,), {}, any_sizes([x]))
    assert not graph.left
    net = from_torch(module, torch.randn(2, 4, 9, 7), any_size=True)
    for shape in ((2, 4, 9, 7), (3, 4, 8, 10), (1, 4, 7, 6)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(net(x), module(x), rtol=1e-4, atol=1e-5)


def test_last_elements_and_pieces_that_lie_between_operators_of_torch():
    def ends(m, x):
        y = x * 2
        y[:, :, :3, -1] = 2.0
        y[-1] = 5.0
        return y

    checked(Does(ends))

    def pieces(m, x):  # what is copied is made by torch, and is read by torch
        y = x * 2
        y[:, :, ::2] = torch.cos(y[:, :, ::2])
        y[y > 1.5] = 0.25
        return y.sin()

    net = from_torch(Does(pieces).eval(), torch.randn(2, 4, 9, 7), any_size=True)
    for shape in ((2, 4, 9, 7), (3, 4, 8, 10)):
        torch.testing.assert_close(net(x := torch.randn(shape)), pieces(None, x), rtol=1e-4, atol=1e-5)


def test_steps_between_written_elements_are_left():
    def every_other_row(m, x):
        y = x + 1
        y[:, :, ::2] = 0.0
        return y

    checked(Does(every_other_row))
    left = graph_of_module(Does(every_other_row).eval(), (torch.randn(2, 4, 9, 7),), {}).left
    assert left["slice_scatter"] == "slice_scatter writes every other element"


def test_one_element_from_the_end_of_open_sizes():
    """What is written is a number, which is no part of what torch is given."""

    def one(m, x):
        y = x * 2
        y[-1, -3, 0] = 1.5
        return y + 1

    net = from_torch(Does(one).eval(), torch.randn(2, 3, 5), any_size=True)
    for shape in ((2, 3, 5), (4, 3, 6)):
        torch.testing.assert_close(net(x := torch.randn(shape)), one(None, x))
