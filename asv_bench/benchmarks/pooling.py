"""Pooling, forward and backward: how long it takes, and beside torch in the same process."""

import numpy as np

import convalgos as ca

from .library import module

WINDOWS = {  # of networks: (shape of x, windows); a mean of None is of whole maps
    "resnet50 max 3x3": ((8, 64, 112, 112), {"kernel": 3, "stride": 2, "padding": 1}),
    "vgg16 max 2x2": ((1, 64, 224, 224), {"kernel": 2}),
    "yolo max 5x5": ((1, 256, 20, 20), {"kernel": 5, "stride": 1, "padding": 2}),
    "densenet121 mean 2x2": ((1, 128, 56, 56), {"kernel": 2}),
    "resnet50 mean": ((8, 2048, 7, 7), {"kernel": None}),
}
DIRECTIONS = ["forward", "backward"]


class Pooling:
    params = (list(WINDOWS), DIRECTIONS, ["channels_first", "channels_last"])
    param_names = ("windows", "direction", "layout")

    def setup(self, windows, direction, layout):
        if not hasattr(ca, "max_pool"):
            raise NotImplementedError("this version does not pool")
        shape, given = WINDOWS[windows]
        reduction = "max" if " max" in windows else "avg"
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        self.x, self.last = x, layout == "channels_last"
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if self.last else x
        pool = getattr(ca, f"{reduction}_pool")
        y = pool(x, **given, layout=layout)
        self.dy = np.ones_like(y)
        self.given, self.reduction, self.backward = given, reduction, direction == "backward"
        if not self.backward:
            self.call = lambda: pool(x, **given, layout=layout, out=y)
            return
        gradient, dx = getattr(ca, f"{reduction}_pool_backward"), np.empty_like(x)
        of = x if reduction == "max" else x.shape
        self.call = lambda: gradient(self.dy, of, **given, layout=layout, out=dx)
        self.call()

    def time_pool(self, windows, direction, layout):
        self.call()

    def track_time_vs_torch(self, windows, direction, layout):
        """Our time / that of torch, in turns in one process; below 1 ours is faster."""
        timing = module("convalgos.select.measure.timing")
        found = timing.interleave({"pool": self.call, "torch": self._theirs()})
        return found["pool"].median / found["torch"].median

    track_time_vs_torch.unit = "times torch"

    def _theirs(self):
        """The same by torch, in the same layout; of a gradient, the backward pass alone.

        Raises:
            NotImplementedError: it is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise NotImplementedError("torch is not installed") from error
        torch.set_num_threads(ca.select.current_machine().threads)
        order = torch.channels_last if self.last else torch.contiguous_format
        x = torch.from_numpy(self.x).contiguous(memory_format=order)
        pool = getattr(torch.nn.functional, f"{self.reduction}_pool2d")
        given = {name: value for name, value in self.given.items() if name != "kernel"}
        kernel = self.given["kernel"] or self.x.shape[2:]
        if not self.backward:
            return torch.no_grad()(lambda: pool(x, kernel, **given))
        x.requires_grad_()
        y = pool(x, kernel, **given)
        dy = torch.ones_like(y)
        return lambda: torch.autograd.grad(y, x, dy, retain_graph=True)
