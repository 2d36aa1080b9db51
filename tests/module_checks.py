"""One random module of torch, frozen, read as a network and compiled, with picks by chance, against torch."""

from __future__ import annotations

import copy
import random
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from network_checks import MOVED
from network_ways import CLOSE, LAYOUTS, Found, never_refined, poison
from random_modules import random_module
from random_picks import picked_at_random, picks_of
from torch import Tensor

import convalgos as ca
import convalgos.torch as ct


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _wrong(found: Any, right: Any, limits: list[float]) -> str | None:
    found, right = _listed(found), _listed(right)
    if len(found) != len(right):
        return f"{len(found)} outputs, not {len(right)}"
    for i, (y, expected, limit) in enumerate(zip(found, right, limits, strict=True)):
        y = torch.as_tensor(y)
        if y.shape != expected.shape or y.dtype != expected.dtype:
            return f"output {i} is {y.dtype} {tuple(y.shape)}, not {expected.dtype} {tuple(expected.shape)}"
        off = (y.double() - expected.double()).abs()
        if y.numel() and not off.max() <= limit:
            bad = int((~(off <= limit)).sum())
            return f"output {i}, {bad} of {y.numel()} elements, by {off.max():.3g} (limit {limit:.3g})"
    return None


def check_module(seed: str, ways: int, compiles: bool = False) -> Iterator[Found]:
    """(what was checked, what was wrong or None, picks) of a module."""
    with torch.no_grad():
        module, feeds = random_module(seed)
        right = [module(*(x.clone() for x in feed)) for feed in feeds]
        moved = [module(*(x * (1 + MOVED * torch.randn_like(x)) for x in feed)) for feed in feeds]
        limits = [
            [
                float(max(CLOSE * a.abs().max(), 40 * (a - b).abs().max()))
                for a, b in zip(_listed(y), _listed(z), strict=True)
            ]
            for y, z in zip(right, moved, strict=True)
        ]
        for number in range(ways):
            rng = random.Random(f"way {seed} {number}")
            layout = rng.choice(LAYOUTS)
            with picked_at_random(f"{seed} {number}", layout), never_refined():
                try:
                    yield from _way(module, feeds, right, limits, rng, compiles and number == 0)
                except Exception as error:
                    yield (
                        f"way {number}",
                        f"{type(error).__name__}: {str(error)[:500]} {traceback.format_exc()[-900:]}",
                        {},
                    )


def _way(
    module: Any,
    feeds: list[tuple[Tensor, ...]],
    right: list[Any],
    limits: list[Any],
    rng: random.Random,
    compiles: bool,
) -> Iterator[Found]:
    first = rng.randrange(len(feeds))
    frozen = ct.freeze(module, *(x.clone() for x in feeds[first]))
    for run in [*range(len(feeds)), *rng.choices(range(len(feeds)), k=2)]:
        given = tuple(x.clone() for x in feeds[run])
        if given[0].dim() == 4 and rng.random() < 0.3:
            given = tuple(x.to(memory_format=torch.channels_last) for x in given)
        nets = [read.network for read in frozen._calls.networks]
        for net in nets:
            poison(net)
        found = frozen(*given)
        failure = _wrong(found, right[run], limits[run])
        if any(not torch.equal(a, b) for a, b in zip(given, feeds[run], strict=True)):
            failure = failure or "an input was written"
        picks = picks_of(nets[-1].plans()[-1]) if nets and nets[-1].plans() else {}
        yield f"frozen, run {run}", failure, picks
        if found is not None and not failure:  # results are the caller's: written over, they leave no trace
            for y in _listed(found):
                y.fill_(7)
            yield f"frozen again, run {run}", _wrong(frozen(*given), right[run], limits[run]), picks
    told = frozen.report()
    yield f"frozen: {told[-200:]}", "the model itself ran" if "the model itself ran" in told else None, {}
    try:
        net = ca.network.from_torch(module, *(x.clone() for x in feeds[first]))
    except ca.Unsupported:
        return
    found = net(*(x.numpy() for x in feeds[first]))
    yield "from_torch", _wrong(found, right[first], limits[first]), {}
    if compiles:
        torch._dynamo.reset()
        compiled = torch.compile(copy.deepcopy(module), backend="convalgos")
        for run in [*range(len(feeds)), first]:
            yield (
                f"compiled, run {run}",
                _wrong(compiled(*(x.clone() for x in feeds[run])), right[run], limits[run]),
                {},
            )
