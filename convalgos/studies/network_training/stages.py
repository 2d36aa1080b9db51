"""A training step in six stages by its data flow, and the time of each."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import convalgos.torch as ct
from convalgos.studies.network_training.networks import TrainedNetwork
from convalgos.studies.network_training.words import OURS, StageSeconds

IMAGES = 4  # batches of images that lie in memory
RATE, MOMENTUM = 1e-4, 0.9


class Training:
    """A network that is trained, on a device.

    Args:
        batch: images of a step.
        channels_last: the order of its maps in memory.

    Shapes: images (IMAGES * batch, C, H, W) bytes, a step's input (batch, C, H, W) float32, labels (batch,)
    or with a class for each pixel (batch, H, W).
    """

    def __init__(self, network: TrainedNetwork, batch: int, device: str, *, channels_last: bool):
        random = torch.Generator().manual_seed(1)
        count, (_, *pixels) = IMAGES * batch, network.image
        labels = (count, *pixels) if network.of_pixels else (count,)
        self.samples: dict[str, list[StageSeconds]] = {}  # by library, of each step so far
        self._batch, self._device, self._next = batch, device, 0
        self._images = torch.randint(0, 256, (count, *network.image), generator=random, dtype=torch.uint8)
        self._labels = torch.randint(0, network.classes, labels, generator=random)
        self._order = torch.randperm(count, generator=random)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        torch.manual_seed(1)
        self.model = network.build().to(device, memory_format=self._format)  # type: ignore[call-overload] # torch's
        self._optimizer = torch.optim.SGD(self.model.parameters(), RATE, MOMENTUM)

    def step(self, library: str, given: Tensor | None = None) -> float:
        """Train on the next batch, convolutions by "torch" or "convalgos", and note its stages.

        Args:
            given: a batch that was loaded elsewhere, in place of the next one from memory.

        Returns:
            The loss.
        """
        (ct.replace if library == OURS else ct.restore)(self.model)
        stages = _Stopwatch(self._device)
        x, labels = self._input() if given is None else (given, self._labels[: len(given)])
        stages.next()
        x, labels = x.to(self._device), labels.to(self._device)
        stages.next()
        y = self.model(x)
        stages.next()
        loss = nn.functional.cross_entropy(y, labels)
        stages.next()
        loss.backward()  # type: ignore[no-untyped-call] # torch leaves it so
        stages.next()
        self._optimizer.step()
        self._optimizer.zero_grad()
        stages.next()
        self.samples.setdefault(library, []).append(tuple(stages.seconds))
        return loss.item()

    def median_step(self, library: str) -> StageSeconds:
        """The stages of the step whose total is in the middle, the first one left out: it plans."""
        ordered = sorted(self.samples[library][1:] or self.samples[library], key=sum)
        return ordered[len(ordered) // 2]

    def _input(self) -> tuple[Tensor, Tensor]:
        """The next batch: bytes gathered from memory, normalised to float32."""
        picked = self._order.roll(-self._next)[: self._batch]
        self._next = (self._next + self._batch) % len(self._order)
        x = self._images[picked].to(torch.float32, memory_format=self._format)
        return x.sub_(127.5).div_(64.0), self._labels[picked]


class _Stopwatch:
    """Seconds between its marks, at each of which the device has done all that was asked of it."""

    def __init__(self, device: str):
        self.seconds: list[float] = []
        self._wait: Callable[[], object] = torch.cuda.synchronize if device != "cpu" else lambda: None
        self._last = time.perf_counter()

    def next(self) -> None:
        self._wait()
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now
