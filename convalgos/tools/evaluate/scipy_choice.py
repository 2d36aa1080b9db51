"""How good choices are beside those of SciPy's `choose_conv_method`, on problems drawn as SciPy drew its own.

SciPy chooses between two methods, and publishes the time of its choice over that of the faster one. The same
ratio is taken here of our choice among all algorithms, on the same problems: one channel, float64, in one and
two dimensions, all modes. The times of ours include preparing the filter, as SciPy's do.

Source: the experiments behind https://github.com/scipy/scipy/pull/11031.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.signal
from rich.console import Console

from convalgos import signal
from convalgos.select import choose, registry
from convalgos.select.measure import capture, timing
from convalgos.select.measure.timing import Progress, silent
from convalgos.signal import convolution, modes, problems
from convalgos.tools.console.text_table import Column, print_table

METHODS = ("direct", "fft")
LENGTHS = (3, 5e4)  # of both signals; all ranges are of a log-uniform distribution
SIDES, KERNELS = (10, 500), (3, 75)  # the first side of an image, and of a kernel;
STRETCHED = 3.0  # times that the second may be as long
HOPELESS = 3.0  # times the best prediction; slower candidates are not timed
LONGEST = 0.5  # seconds; sums that SciPy leaves to the FFT are not timed where they would take longer
SUM = {1: 3e-10, 2: 2e-8}  # seconds of one product in SciPy's sums, by dimensions
COLUMNS = ("choice", "problems", "mean", "P95", "max", "within 1.5x", "within 2x")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ChoiceTimed:
    """One problem: what was chosen, and what everything took."""

    shape1: Shape
    shape2: Shape
    mode: str
    scipy_pick: str
    scipy_s: dict[str, float]  # seconds of each method,
    scipy_call_s: float  # and of `scipy.signal.convolve`, which chooses
    pick: str
    algorithms_s: dict[str, float]  # of each of ours,
    call_s: float  # and of `convalgos.signal.convolve`

    @property
    def theirs(self) -> float:
        """Regret of SciPy's choice."""
        return self.scipy_s[self.scipy_pick] / min(self.scipy_s.values())

    @property
    def ours(self) -> float:
        """Regret of our choice."""
        return self.algorithms_s[self.pick] / min(self.algorithms_s.values())

    @property
    def ours_of_two(self) -> float:
        """Regret of our answer to SciPy's question, sums or transforms: the fastest of that kind counts."""
        transforms = {a.id for a in registry.algorithms("cpu") if a.spreads_nan}
        kind = [
            t for name, t in self.algorithms_s.items() if (name in transforms) == (self.pick in transforms)
        ]
        return min(kind) / min(self.algorithms_s.values())


def draw_shapes(ndim: int, mode: str, rng: np.random.Generator) -> tuple[Shape, Shape]:
    """The shapes of a random signal or image, and of what it is convolved with."""

    def size(low: float, high: float) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    if ndim == 1:
        return (size(*LENGTHS),), (size(*LENGTHS),)
    side, kernel = size(*SIDES), size(*KERNELS)
    sides = side, kernel, *(int(n * rng.uniform(1, STRETCHED)) for n in (side, kernel))
    if mode == "valid":
        k1, k2, n1, n2 = sorted(sides)
        return (n1, n2), (k1, k2)
    return (sides[0], sides[2]), (sides[1], sides[3])


def record_choices(
    count: int, seed: int = 0, *, rounds: int = 2, progress: Progress = silent
) -> list[ChoiceTimed]:
    """Draw and time `count` problems, of each number of dimensions and each mode in turn.

    Example:
        >>> record(0)
        []
    """
    found = []
    for i in range(count):
        ndim, mode = 1 + i % 2, modes.MODES[i // 2 % 3]
        rng = np.random.default_rng((seed, i))
        shapes = draw_shapes(ndim, mode, rng)
        told = f"{'x'.join(map(str, shapes[0]))} with {'x'.join(map(str, shapes[1]))}, {mode}"
        progress(told, i / count)
        found.append(time_choice(*shapes, mode, rounds=rounds))
    return found


def time_choice(shape1: Shape, shape2: Shape, mode: str, *, rounds: int = 2) -> ChoiceTimed:
    """Choose and time everything on a problem."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape1), rng.standard_normal(shape2)
    with capture.capture() as ran:
        convolution.by_plan(x, w, mode, "auto")
    *_, problem = ran
    candidates = choose.rank(problem, "cpu", problems.limits_of_method("auto")).candidates
    pick = candidates[0].id
    inputs = [rng.standard_normal(shape) for shape in (problem.x_shape, problem.w_shape)]
    plans = {
        c.id: choose.serve(c.algorithm, problem)
        for c in candidates
        if c.estimate_s <= HOPELESS * candidates[0].estimate_s
    }
    theirs = str(scipy.signal.choose_conv_method(x, w, mode))
    hopeless = theirs == "fft" and x.size * w.size * SUM[x.ndim] > LONGEST
    methods = ("fft",) if hopeless else METHODS
    calls: dict[str, Callable[[], object]] = {
        "scipy": partial(scipy.signal.convolve, x, w, mode),
        "ours": partial(signal.convolve, x, w, mode),
    }
    calls |= {method: partial(scipy.signal.convolve, x, w, mode, method) for method in methods}
    calls |= {name: partial(plan, *inputs) for name, plan in plans.items()}
    times = {name: t.median for name, t in timing.interleave(calls, rounds=rounds).items()}
    return ChoiceTimed(
        shape1=shape1,
        shape2=shape2,
        mode=mode,
        scipy_pick=theirs,
        scipy_s={method: times[method] for method in methods},
        scipy_call_s=times["scipy"],
        pick=pick,
        algorithms_s={name: times[name] for name in plans},
        call_s=times["ours"],
    )


def write_choices(path: str | Path, found: Sequence[ChoiceTimed]) -> None:
    """Keep what was recorded, a problem on each line."""
    Path(path).write_text("[\n" + ",\n".join(json.dumps(asdict(j)) for j in found) + "\n]\n")


def read_choices(paths: Iterable[str | Path]) -> list[ChoiceTimed]:
    """What was recorded.

    Raises:
        ValueError: a file is none of these. OSError: it cannot be read.
    """
    found = []
    for path in paths:
        try:
            for values in json.loads(Path(path).read_text()):
                shapes = {name: tuple(values.pop(name)) for name in ("shape1", "shape2")}
                found.append(ChoiceTimed(**values | shapes))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is not a table of convalgos select scipy: {error}") from None
    return found


def show_choices(found: Sequence[ChoiceTimed], console: Console) -> None:
    """Print the regrets of both choices."""
    columns = [Column(name, right=i > 0, spare=i) for i, name in enumerate(COLUMNS)]
    rows = []
    for ndim in (1, 2):
        part = [j for j in found if len(j.shape1) == ndim]
        if not part:
            continue
        most = max(len(j.algorithms_s) for j in part)
        for name, regrets in (
            (f"{ndim}-D: SciPy's, of direct and fft", [j.theirs for j in part]),
            (f"{ndim}-D: ours, of sums and transforms", [j.ours_of_two for j in part]),
            (f"{ndim}-D: ours, of up to {most} algorithms", [j.ours for j in part]),
        ):
            rows.append((name, *_row(np.array(regrets))))
    print_table(columns, rows, console, "time of the choice / time of the fastest")


def _row(regrets: np.ndarray) -> tuple[str, ...]:
    return (
        str(len(regrets)),
        f"{np.exp(np.log(regrets).mean()):.3f}",
        f"{np.quantile(regrets, 0.95):.2f}",
        f"{regrets.max():.2f}",
        f"{(regrets <= 1.5).mean():.0%}",
        f"{(regrets <= 2).mean():.0%}",
    )


def speedups(found: Sequence[ChoiceTimed]) -> str:
    """How much faster our convolve is than SciPy's, in words."""
    told = []
    for ndim in (1, 2):
        ratios = np.array([j.scipy_call_s / j.call_s for j in found if len(j.shape1) == ndim])
        if len(ratios):
            told.append(f"{np.exp(np.log(ratios).mean()):.2f}x in {ndim}-D (least {ratios.min():.2f}x)")
    return f"convalgos.signal.convolve is faster than scipy.signal.convolve by {', '.join(told)}"
