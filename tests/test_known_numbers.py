"""Modules that ask for numbers while they are exported: those of shapes are known, of inputs not."""

import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from torch import nn

from convalgos.network.torch_reader.graph import from_torch

pytestmark = pytest.mark.usefixtures("one_thread")


class Does(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def scaled_by_all_but_the_first(x):
    return x - x.mean(torch.arange(1, x.dim()).tolist(), keepdim=True)


def branches(x):
    lengths = torch.full((3,), x.shape[1])
    most = int((lengths * 2 - lengths.new_tensor(1)).max().item())
    return x[:, :most] * 3 if lengths.ne(0).all() else x


def of_a_copy(x):
    numbers = torch.arange(3)
    first = numbers.clone()
    numbers[0] = 5
    return x.mean(first[1:].tolist())


@pytest.mark.parametrize("function", [scaled_by_all_but_the_first, branches])
def test_numbers_of_shapes(function):
    module = Does(function).eval()
    net = from_torch(module, torch.randn(2, 4, 6), any_size=True)
    for shape in ((2, 4, 6), (3, 4, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(net(x), function(x), rtol=1e-5, atol=1e-6)


def written(x):
    numbers = torch.arange(2)
    view = numbers[:1]
    view += 1
    return x * (numbers[0].item() + 1)


def written_by_a_function(x):
    numbers = torch.arange(-2.0, 2.0)
    F.relu(numbers, inplace=True)
    return x * (numbers[0].item() + 3)


def written_by_an_input(x):
    numbers = torch.zeros(2)
    numbers.add_(x[0, 0, :2])
    return x * 2 if numbers[0].item() > 0 else x


def drawn(x):
    return x * torch.rand_like(torch.zeros(1)).item()


@pytest.mark.parametrize("function", [of_a_copy, written, written_by_a_function, written_by_an_input, drawn])
def test_what_is_written_or_drawn_is_not_taken_for_what_it_was(function):
    x = torch.randn(2, 3, 4)
    try:
        net = from_torch(Does(function).eval(), x)
    except ValueError as error:
        assert "cannot be exported" in str(error)
        return
    state = torch.get_rng_state()
    found = net(x)
    torch.set_rng_state(state)
    torch.testing.assert_close(found, function(x))


def test_numbers_of_inputs_are_asked_in_vain():
    with pytest.raises(ValueError, match="cannot be exported"):
        from_torch(Does(lambda x: x * 2 if (torch.ones(2) * x[0, 0, :2])[0].item() > 0 else x).eval(),
                   torch.randn(2, 3, 4))  # fmt: skip


class Holds(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("numbers", torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x):
        return self.function(self, x)


def rectifies_what_it_holds(m, x):
    return x * F.relu(m.numbers, inplace=True)[1]


def shortens_rows_that_it_holds(m, x):
    return x * F.embedding(torch.arange(1), m.numbers[None], max_norm=0.5).sum()


@pytest.mark.parametrize("function", [rectifies_what_it_holds, shortens_rows_that_it_holds])
def test_reading_writes_to_nothing_that_a_module_holds(function):
    module = Holds(function).eval()
    with pytest.raises(ValueError, match="it writes into numbers"):
        from_torch(module, torch.randn(2, 3, 4))
    assert module.numbers.tolist() == [1, -2, 3]


def test_what_is_written_through_parts_of_open_sizes_or_data_is_not_taken_for_what_it_was():
    def through_parts(m, x):
        numbers = torch.arange(-2.0, 2.0)
        F.relu(numbers[: x.shape[0]], inplace=True)
        return x * (numbers[0].item() + 3)

    def through_data(m, x):
        numbers = torch.zeros(2)
        F.relu_(numbers.data.sub_(1))
        return x * (numbers[0].item() + 3)

    def behind_other_writes(m, x):
        y = x + 1
        y[:, 0] = m.numbers[0]
        return y * m.numbers[2].item()

    for function in (through_parts, through_data, behind_other_writes):
        module = Holds(function).eval()
        try:
            net = from_torch(module, torch.randn(2, 3, 4), any_size=True)
        except ValueError as error:
            assert function is not behind_other_writes and "cannot be exported" in str(error)
            continue
        for shape in ((2, 3, 4), (3, 3, 5)):
            x = torch.randn(shape)
            torch.testing.assert_close(net(x), function(module, x))


def test_state_is_refused_and_what_is_laid_down_is_not():
    def keeps_state(m, x):
        m.numbers = torch.tanh(m.numbers + x[0, 0, :3])
        return x * m.numbers[0]

    def counts(m, x):
        m.numbers = m.numbers + 1
        return x * m.numbers[0].item()

    def lays_down(m, x):
        m.numbers = x.softmax(-1)
        return m.numbers * 2

    def grows(m, x):
        longer = m.numbers.shape[0] < x.shape[2]
        m.numbers = torch.arange(x.shape[2]) if longer else m.numbers.to("cpu")
        return x + m.numbers[: x.shape[2]]

    x = torch.randn(2, 3, 4)
    for function in (keeps_state, counts):
        with pytest.raises(ValueError, match="another tensor in the place of numbers"):
            from_torch(Holds(function).eval(), x)
    for function in (lays_down, grows):
        for given in (x, x[:, :, :2].contiguous()):
            module = Holds(function).eval()
            net = from_torch(module, given)
            assert module.numbers.tolist() == [1, -2, 3]
            torch.testing.assert_close(net(given), module(given))
