"""`freeze`: a model for inference, run as a whole network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from convalgos.torch.whole_networks import WholeNetwork


class FrozenModule(nn.Module):
    """A model run as a network: made by `freeze`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self._calls = WholeNetwork(model, model)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """What the model computes; outputs have no gradient where a network computed them."""
        calls = self._calls
        if calls.module.training:
            return calls.leave("the model is in training", arguments, keywords)
        return calls(*arguments, **keywords)

    def report(self) -> str:
        """What is computed by convalgos, what torch is left to run, and why."""
        return self._calls.report()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_calls"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._calls = WholeNetwork(self.model, self.model)


def freeze(model: nn.Module, *example: Any, **keywords: Any) -> FrozenModule:
    """A module that computes what a model computes in eval, as one network of this library.

    Batch norms, activations and residual sums become part of the convolutions, filters are prepared, and
    layouts and memory are planned for the whole. The numbers of the parameters are taken now: freeze again
    after changing them. Operators that this library does not compute are left to torch, and calls that no
    network can serve to the model: in training, on a GPU, of other types than float32, with gradients.
    `report()` tells which and why. Other shapes than those of the example take a while when they first come.
    What a model writes into its arguments, as a ReLU in place does in front, is not written.

    Args:
        model: in eval; it is kept, and not changed, but by what it changes itself as it runs on the example.
        example: arguments of the model, or one tuple of them, as `torch.export` takes them.

    Raises:
        TypeError: model is no module. ValueError: it is in training.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> frozen = freeze(model.eval(), torch.ones(1, 3, 8, 8))
        >>> frozen(torch.ones(1, 3, 8, 8)).shape
        torch.Size([1, 4, 6, 6])
        >>> print(frozen.report())
        3 of 3 operators are computed by convalgos
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={type(model).__name__} must be a torch.nn.Module")
    if model.training:
        raise ValueError("model is in training: call model.eval() first")
    if len(example) == 1 and isinstance(example[0], tuple):
        (example,) = example
    frozen = FrozenModule(model).eval()
    with torch.no_grad():
        if any(map(is_lazy, model.parameters())):  # whose first call makes them
            model(*example, **keywords)
        frozen(*example, **keywords)
    return frozen
