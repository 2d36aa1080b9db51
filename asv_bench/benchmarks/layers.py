"""Which layers of the suites are measured, by one rule.

Layers are of one kind where they agree in the number of dimensions, in how channels meet (first layers of at
most 4 channels, dense, grouped, depthwise) and in the size of the kernel (1; 2 and 3; larger). Of each kind
the layer with the middle count of operations is measured, among those of at most MOST_FLOPS, and once more
among those of LARGE kernels. `FEW` of them, those of 3x3 in two dimensions, stand for all where what is
measured hardly depends on the layer, and theirs are the gradients that are measured. Two versions are
compared by `QUICK`: all layers, both gradients of one.

CONVALGOS_HISTORY_LAYERS, a list of patterns such as "vgg16/*,resnet50/conv1", measures others instead.
"""

import os
from fnmatch import fnmatch

import convalgos as ca

from .library import module

MOST_FLOPS = 5e9  # a tenth of a second, or less, by any algorithm that is meant for the layer
FIRST = 4  # channels of a first layer, at most
LARGE = 25  # taps along an axis, from which on transforms of whole lines and planes win


def kind(problem: ca.ConvProblem) -> tuple[int, str, int]:
    """(dimensions, how channels meet, size of the kernel); layers of one kind are computed alike."""
    if problem.groups > 1:
        meet = "depthwise" if problem.groups == problem.C else "grouped"
    else:
        meet = "first" if problem.C <= FIRST else "dense"
    taps = max(problem.kernel)
    return problem.ndim, meet, 1 if taps == 1 else 3 if taps <= 3 else 5


def every() -> dict[str, ca.ConvProblem]:
    """All layers of all suites, under the name suite/name."""
    return {
        f"{la.suite}/{la.name}": la.problem
        for layers in module("convalgos.tools.bench.suites").suites().values()
        for la in layers
    }


def default() -> dict[str, ca.ConvProblem]:
    """One layer of each kind, and of each kind of large ones."""
    kinds: dict[tuple, list[str]] = {}
    found = every()
    for name, problem in found.items():
        if problem.flops <= MOST_FLOPS:
            kinds.setdefault(kind(problem), []).append(name)
            if max(problem.kernel) >= LARGE:
                kinds.setdefault((*kind(problem)[:2], LARGE), []).append(name)
    middle = set()
    for names in kinds.values():
        names.sort(key=lambda name: (found[name].flops, name))
        middle.add(names[(len(names) - 1) // 2])
    return {name: problem for name, problem in found.items() if name in middle}


def measured() -> dict[str, ca.ConvProblem]:
    """Those of CONVALGOS_HISTORY_LAYERS, or one of each kind."""
    patterns = os.environ.get("CONVALGOS_HISTORY_LAYERS", "").replace(",", " ").split()
    if not patterns:
        return default()
    found = {name: p for name, p in every().items() if any(fnmatch(name, pattern) for pattern in patterns)}
    if not found:
        raise ValueError(f"CONVALGOS_HISTORY_LAYERS={' '.join(patterns)!r} matches no layer of the suites")
    return found


LAYERS = measured()
_by_meeting = {kind(p)[1]: name for name, p in LAYERS.items() if (p.ndim, kind(p)[2]) == (2, 3)}
FEW = list(_by_meeting.values()) or list(LAYERS)
_gradients = {
    f"{FEW[0]} {direction}": LAYERS[FEW[0]].replace(direction=direction)
    for direction in ("backward_data", "backward_weights")
}
QUICK = LAYERS | _gradients
