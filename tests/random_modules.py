"""Random modules of torch: what networks are written with, in an order that nobody chose.

A module is a list of steps, each of values that are there; `random_module` draws one from a seed by running
it on an example, so that what does not fit is left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_ELEMENTS = 100_000


class RandomModule(nn.Module):
    """The values of its steps, one after the other; it returns some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self.outputs: list[int] = []

    def forward(self, *inputs: Tensor) -> Any:
        values = list(inputs)
        for step, read in self.steps:
            values.append(step(*(values[i] for i in read)))
        found = tuple(values[i] for i in self.outputs)
        return found if len(found) > 1 else found[0]


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, F.relu, F.relu6, lambda x: F.leaky_relu(x, 0.2), torch.sigmoid, F.silu, F.hardswish, F.gelu,
    lambda x: F.gelu(x, approximate="tanh"), F.hardsigmoid, torch.tanh, F.elu, F.mish,
    lambda x: x.clamp(-0.5, 2),
    lambda x: x * torch.sigmoid(x), lambda x: F.softmax(x, 1), lambda x: F.relu_(x * 2),
)  # fmt: skip


class _Drawing:
    def __init__(self, rng: random.Random, inputs: list[Tensor]):
        self.rng, self.module = rng, RandomModule().eval()
        self.values = list(inputs)
        self.open = True  # whether other sizes of maps go, too

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def layer(self, made: nn.Module) -> nn.Module:
        self.module.layers.append(made.eval())
        return made

    def add(self, step: Callable[..., Any], *read: int) -> int:
        with torch.no_grad():
            found = step(*(self.values[i].clone() for i in read))
        if found.numel() > MOST_ELEMENTS or not found.numel():
            raise RuntimeError("too large")
        self.values.append(found)
        self.module.steps.append((step, read))
        return len(self.values) - 1

    def map(self) -> int:
        return self.rng.choice([i for i, v in enumerate(self.values) if v.dim() >= 3][-4:])

    def channels(self, i: int) -> int:
        return self.values[i].shape[1]


def _conv(d: _Drawing, x: int, filters: int = 0, kernel: int = 0, groups: int = 1, stride: int = 0) -> int:
    rng, ndim, c = d.rng, d.values[x].dim() - 2, d.channels(x)
    k = filters or rng.choice((1, 3, 4, 8, 16, 17, 24, 33))
    r, s = kernel or rng.choice((1, 1, 3, 3, 3, 5, 2)), stride or rng.choice((1, 1, 1, 2))
    e = rng.choice((1, 1, 1, 2)) if r > 1 and not stride else 1
    padding: Any = rng.choice((r // 2 * e, r // 2 * e, 0, 1)) if not stride else r // 2
    if s == 1 and d.chance(0.1):
        padding = rng.choice(("same", "valid"))
    mode = rng.choice(("zeros",) * 6 + ("reflect", "circular", "replicate"))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[ndim - 1]
    made = kind(c, k, r, s, padding, e, groups, d.chance(0.7), mode)
    return d.add(d.layer(made), x)


def _norm(d: _Drawing, x: int) -> int:
    kind: Any = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[d.values[x].dim() - 3]
    made = kind(d.channels(x))
    made.running_mean.normal_(0, 0.2)
    made.running_var.uniform_(0.5, 2)
    return d.add(d.layer(made), x)


def _finished(d: _Drawing, x: int) -> int:
    x = _norm(d, x) if d.chance(0.4) else x
    return d.add(d.rng.choice(ACTIVATIONS), x) if d.chance(0.6) else x


def _plain(d: _Drawing) -> None:
    x = d.map()
    c = d.channels(x)
    groups = d.rng.choice((1, 1, 1, *(n for n in (2, 3, 4, c) if c % n == 0)))
    _finished(d, _conv(d, x, groups * d.rng.choice((1, 2, 3, 8)) if groups > 1 else 0, groups=groups))


def _inverted(d: _Drawing) -> None:
    x = d.map()
    wide = d.rng.choice((16, 32, 48, 2 * d.channels(x)))
    y = _finished(d, _conv(d, x, wide, 1, stride=1))
    y = _finished(d, _conv(d, y, wide, d.rng.choice((3, 5)), wide, d.rng.choice((1, 1, 2))))
    if d.chance(0.5):
        y = _excited(d, y)
    y = _conv(d, y, d.rng.choice((d.channels(x), 16)), 1, stride=1)
    if d.values[y].shape == d.values[x].shape:
        d.add(lambda a, b: a + b, *d.rng.sample((x, y), 2))


def _excited(d: _Drawing, x: int) -> int:
    axes = tuple(range(2, d.values[x].dim()))
    mean = d.add(lambda v: v.mean(axes, keepdim=True), x)
    gate = d.add(F.relu, _conv(d, mean, 8, 1, stride=1))
    gate = d.add(d.rng.choice((torch.sigmoid, F.hardsigmoid)), _conv(d, gate, d.channels(x), 1, stride=1))
    return d.add(lambda a, b: a * b, *d.rng.sample((x, gate), 2))


def _transposed(d: _Drawing) -> None:
    x = d.map()
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[d.values[x].dim() - 3]
    r, s = d.rng.choice(((2, 2), (3, 1), (3, 2), (4, 2)))
    more = d.rng.randint(0, s - 1) if d.chance(0.3) else 0
    made = kind(
        d.channels(x), d.rng.choice((3, 8, 16)), r, s, d.rng.choice((0, (r - 1) // 2)), more, 1, d.chance(0.6)
    )
    _finished(d, d.add(d.layer(made), x))


def _pooled(d: _Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim = d.values[x].dim() - 2
    r, s, up = rng.choice((2, 3)), rng.choice((1, 2, 2)), d.chance(0.3)
    p = rng.choice((0, r // 2))
    most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[ndim - 1]
    mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[ndim - 1]
    few = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[ndim - 1]
    counted = d.chance(0.5)
    d.add(rng.choice((
        lambda v: most(v, r, s, p, ceil_mode=up), lambda v: mean(v, r, s, p, up, counted),
        lambda v: few(v, 1),
    )), x)  # fmt: skip


def _added(d: _Drawing) -> None:
    x = d.map()
    alike = [i for i, v in enumerate(d.values) if v.shape == d.values[x].shape]
    other = d.rng.choice(alike)
    ways: list[Callable[..., Any]] = [lambda a, b: a + b, torch.add, lambda a, b: a * b, lambda a, b: a - b,
                                      lambda a, b: (a * 1).add_(b), lambda a, b: F.relu(a + b)]  # fmt: skip
    d.add(d.rng.choice(ways), x, other)


def _joined(d: _Drawing) -> None:
    x = d.map()
    shape = d.values[x].shape
    alike = [i for i, v in enumerate(d.values) if v.dim() == len(shape) and v.shape[2:] == shape[2:]]
    parts = [x, *d.rng.choices(alike, k=d.rng.choice((1, 1, 2, 3)))]
    if d.chance(0.5):
        parts += [_finished(d, _conv(d, x, 0, r, stride=1)) for r in d.rng.choices((1, 3), k=2)]
        if any(d.values[i].shape[2:] != shape[2:] for i in parts):
            raise RuntimeError("sizes differ")
    d.rng.shuffle(parts)
    d.add(lambda *v: torch.cat(v, 1), *parts)


def _selected(d: _Drawing) -> None:
    x = d.map()
    c, way = d.channels(x), d.rng.randrange(5)
    if way == 0:
        first = d.rng.randrange(c)
        d.add(lambda v: v[:, first:], x)
    elif way == 1:
        last = d.rng.randint(1, c)
        d.add(lambda v: v[:, :last], x)
    elif way == 2:
        d.add(lambda v: v.chunk(2, 1)[-1], x)
    elif way == 3:
        groups = d.rng.choice([n for n in (1, 2, 3, 4, c) if c % n == 0])

        def shuffle(v: Tensor) -> Tensor:
            n, _, *sizes = v.shape
            return v.reshape(n, groups, c // groups, *sizes).transpose(1, 2).reshape(n, c, *sizes)

        d.add(shuffle, x)
    elif d.values[x].dim() == 4 and c % 4 == 0:
        d.add(lambda v: F.pixel_shuffle(v, 2), x)


def _resized(d: _Drawing) -> None:
    x, rng = d.map(), d.rng
    mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[d.values[x].dim()]
    factor, corners = rng.choice((2, 2, 3, 1.5)), d.chance(0.4)
    d.add(rng.choice((
        lambda v: F.interpolate(v, scale_factor=factor, mode="nearest"),
        lambda v: F.interpolate(v, scale_factor=factor, mode=mode, align_corners=corners),
    )), x)  # fmt: skip


def _padded(d: _Drawing) -> None:
    x, rng = d.map(), d.rng
    ndim = d.values[x].dim() - 2
    ends = [rng.randint(0, 2) for _ in range(2 * ndim)]
    mode = rng.choice(("constant", "constant", "reflect", "replicate", "circular"))
    y = d.add(lambda v: F.pad(v, ends, mode), x)
    if d.chance(0.7):
        _finished(d, _conv(d, y))


def _head(d: _Drawing) -> None:
    x = d.map()
    if d.chance(0.7):
        x = d.add(lambda v: v.mean(tuple(range(2, v.dim()))), x)
    else:
        d.open = False
        x = d.add(lambda v: v.flatten(1), x)
    y = d.add(d.layer(nn.Linear(d.values[x].shape[1], d.rng.choice((1, 10, 33)), d.chance(0.7))), x)
    if d.chance(0.5):
        d.add(d.rng.choice((F.relu, F.gelu, torch.sigmoid)), y)


def _last(d: _Drawing) -> None:
    x = d.map()
    rank, c = d.values[x].dim(), d.channels(x)
    layers = [nn.LayerNorm(c)] if c > 2 and d.chance(0.7) else []
    k = d.rng.choice((c, 20))
    body = d.layer(nn.Sequential(*layers, nn.Linear(c, k), nn.GELU()))
    to, back = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    y = d.add(lambda v: body(v.permute(to)).permute(back), x)
    if k == c and d.chance(0.6):
        d.add(lambda a, b: a + b, x, y)


def _other(d: _Drawing) -> None:
    x = d.map()
    c = d.channels(x)
    d.add(d.rng.choice((
        torch.sin, lambda v: v.transpose(-1, -2) if v.dim() > 3 else v, d.layer(nn.GroupNorm(1, c)),
        nn.Identity(),
        lambda v: F.dropout(v, 0.5, False), lambda v: v.amax(1, keepdim=True), lambda v: v * 0.5 + 1,
        d.layer(nn.PReLU()),
    )), x)  # fmt: skip


BLOCKS = {
    _plain: 6, _inverted: 3, _transposed: 2, _pooled: 3, _added: 4, _joined: 4, _selected: 3, _resized: 1,
    _padded: 2, _head: 1, _last: 1, _other: 2,
}  # fmt: skip


def random_module(seed: Any) -> tuple[RandomModule, list[tuple[Tensor, ...]]]:
    """(a module in eval, its inputs of some sizes)."""
    rng = random.Random(f"module {seed}")
    torch.manual_seed(rng.getrandbits(31))
    ndim = rng.choice((1, 2, 2, 2, 2, 3))
    most = {1: 80, 2: 30, 3: 8}[ndim]
    n, c = rng.choice((1, 1, 2, 3)), rng.choice((1, 3, 4, 8, 17))
    sizes = [rng.choice((rng.randint(3, 9), rng.randint(5, most))) for _ in range(ndim)]
    count = 2 if rng.random() < 0.2 else 1
    d = _Drawing(rng, [torch.randn(n, c, *sizes) for _ in range(count)])
    for turn in range(rng.randint(2, 8)):
        try:
            (rng.choices([*BLOCKS], [*BLOCKS.values()])[0] if turn else _plain)(d)
        except (RuntimeError, ValueError):  # what torch says where it does not fit
            continue
    read = {i for _, inputs in d.module.steps for i in inputs}
    made = range(count, len(d.values))
    outputs = [i for i in made if i not in read][-3:]
    outputs += [rng.choice(made) for _ in range(rng.choice((0, 0, 1))) if made]
    d.module.outputs = outputs or [0]
    runs = [(n, *sizes)]
    for _ in range(rng.randint(0, 2)):
        other = [max(3, round(s * rng.uniform(0.8, 1.6))) for s in sizes] if d.open else sizes
        runs.append((rng.choice((1, 2, 4)), *other))
    feeds = []
    for batch, *own in runs:
        inputs = tuple(torch.randn(batch, c, *own) for _ in range(count))
        try:
            with torch.no_grad():
                d.module(*inputs)
        except (RuntimeError, ValueError):
            continue
        feeds.append(inputs)
    return d.module, feeds or [tuple(d.values[:count])]
