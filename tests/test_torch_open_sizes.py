"""Frozen models that are called with other sizes: read again, held to what they decided by sizes."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import convalgos.torch as ct  # noqa: E402
from convalgos.network.torch_reader.graph import graph_of_module  # noqa: E402
from convalgos.torch import whole_networks  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Does(nn.Module):
    def __init__(self, forward, **modules):
        super().__init__()
        self._does = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *given):
        return self._does(self, *given)


def same_for(forward, shapes, **modules):
    """The networks that were read."""
    torch.manual_seed(0)
    model = Does(forward, **modules).eval()
    frozen = ct.freeze(model, torch.randn(shapes[0]))
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(frozen(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert "the model itself ran" not in frozen.report()
    return frozen._calls.networks


@pytest.fixture
def open_at_once(monkeypatch):
    """Other sizes are open from the second shape on."""
    monkeypatch.setattr(whole_networks, "FIXED", 1)


def test_branches_by_sizes_are_taken_for_the_sizes_that_come(open_at_once):
    def padded(m, x):
        return F.avg_pool2d(m.conv(F.pad(x, (0, 0, 0, 1)) if x.shape[2] % 2 else x), 2)

    shapes = [(1, 3, h, 8) for h in (8, 10, 11, 13, 9, 12)]
    networks = same_for(padded, shapes, conv=nn.Conv2d(3, 4, 3, padding=1))
    assert [net.is_open for net in networks] == [False, True, True]

    def doubled(m, x):
        return m.conv(x) * (2 if x.shape[2] > 10 else 1)

    same_for(doubled, [(1, 3, h, 8) for h in (8, 9, 12, 10, 14)], conv=nn.Conv2d(3, 4, 3))


def test_numbers_made_for_a_size_are_made_again_for_another(open_at_once):
    def weighted(m, x):
        return m.conv(x) * torch.linspace(0, 1, x.shape[3] - 2)

    same_for(weighted, [(1, 3, 8, w) for w in (8, 9, 12, 10)], conv=nn.Conv2d(3, 4, 3))


def test_a_batch_of_one_is_read_for_itself_where_dimensions_of_one_are_dropped():
    def squeezed(m, x):
        return m.conv(x).mean((2, 3), keepdim=True).squeeze()

    same_for(squeezed, [(n, 3, 6, 6) for n in (2, 3, 1)], conv=nn.Conv2d(3, 4, 3))


def test_only_sizes_that_differ_are_open(open_at_once):
    networks = same_for(lambda m, x: m.conv(x), [(n, 3, 6, 7) for n in (1, 3, 5)], conv=nn.Conv2d(3, 4, 3))
    assert [net.free for net in networks] == [(frozenset(),), (frozenset({0}),)]
    rows = same_for(lambda m, x: m.linear(x), [(2, t, 8) for t in (5, 6, 9)], linear=nn.Linear(8, 4))
    assert [net.free for net in rows] == [(frozenset(),), (frozenset({1}),)]


def test_what_is_repeated_as_often_as_there_are_images(open_at_once):
    def with_tokens(m, x):
        return torch.cat((m.tokens.weight.repeat(len(x), 1, 1), x.repeat(1, 2, 1)), 1)

    same_for(with_tokens, [(n, 5, 4) for n in (2, 3, 1, 4)], tokens=nn.Embedding(2, 4))
    model = Does(with_tokens, tokens=nn.Embedding(2, 4)).eval()
    assert not graph_of_module(model, (torch.randn(2, 5, 4),), {}, [{0}]).left


def test_a_few_sizes_are_read_for_each_and_more_are_open():
    sizes = [(2, t, 8) for t in range(3, 10)]
    networks = same_for(lambda m, x: m.linear(x), sizes, linear=nn.Linear(8, 4))
    assert [net.is_open for net in networks] == [False] * whole_networks.FIXED + [True]


def test_what_takes_long_to_read_for_open_sizes_is_read_once_that_pays(monkeypatch):
    monkeypatch.setattr(whole_networks, "LONGER", 0)
    monkeypatch.setattr(whole_networks, "SHORTEST", 0)
    torch.manual_seed(0)
    model = Does(lambda m, x: m.conv(x), conv=nn.Conv2d(3, 4, 3)).eval()
    sizes = [(1, 3, 6, w) for w in range(6, 8 + whole_networks.KEPT)]
    frozen = ct.freeze(model, torch.randn(sizes[0]))
    calls = frozen._calls

    def check(shape):
        x = torch.randn(shape)
        torch.testing.assert_close(frozen(x), model(x).detach(), rtol=1e-4, atol=1e-5)
        return {net.shapes[0] for net in calls.networks}

    for shape in sizes:
        read = check(shape)
    assert not any(net.is_open for net in calls.networks)
    assert read == set(sizes[: whole_networks.KEPT]), "those that came first"
    assert f"the model itself ran, in 2 calls: {whole_networks.MANY}" in frozen.report()
    calls._seconds = min(calls._spent.values())  # as long as one of them took
    read = check(next(key[1] for key, seconds in calls._spent.items() if seconds == calls._seconds))
    assert len(read) == whole_networks.KEPT and read - set(sizes[: whole_networks.KEPT])
    assert sizes[0] in read, "the example's stays"


def test_layers_whose_last_states_nobody_reads():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 6, bidirectional=True)

        def forward(self, x):
            return self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)

    model, x = Last().eval(), torch.randn(2, 5, 7)
    frozen = ct.freeze(model, x)
    torch.testing.assert_close(frozen(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert "the model itself ran" not in frozen.report()
