"""Modules of torch that switch lower precision or gradients off or on within, which changes nothing here."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

from test_network_torch import Does, checked, kinds  # noqa: E402
from torch import nn  # noqa: E402


def without_lower_precision(m, x):
    with torch.autocast("cuda", enabled=False):
        y = m.conv(x.float())
        with torch.autocast("cpu", enabled=False):
            z = y.exp() + torch.arange(7.0)
        y = y * z
    with torch.enable_grad():
        return y * 2, z


def writes_within(m, x):
    y = m.conv(x)
    part = y[:, :2]
    with torch.autocast("cpu", enabled=False):
        part.add_(1)
        z = y * 3
    y.mul_(2)
    return y, z, part


@pytest.mark.parametrize("function", [without_lower_precision, writes_within])
def test_contexts_that_change_nothing(function):
    steps = checked(Does(function, conv=nn.Conv2d(4, 4, 1)))
    if function is without_lower_precision:
        assert "Foreign" not in kinds(steps)


def test_lower_precision_that_is_on_is_left():
    def lower(m, x):
        with torch.autocast("cpu", enabled=True):
            y = m.conv(x)
        return y.float()

    checked(Does(lower, conv=nn.Conv2d(4, 4, 1)), error=2e-2)
