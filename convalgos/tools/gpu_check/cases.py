"""What is checked and timed: problems that are awkward for kernels, and the layers of the suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Any, TypeVar

from convalgos.core.element_types import BINARY, FLOAT8_DTYPES, INTEGERS, OF_ML_DTYPES
from convalgos.core.errors import missing
from convalgos.core.problem import DIRECTIONS, LAYOUTS, ConvProblem
from convalgos.tools.bench.suites import Layer

T = TypeVar("T")
DEPTHWISE = "all depthwise"  # as a kind of layers
TYPES: dict[str, dict[str, Any]] = {  # what each is called in the report
    "float32": {"dtype": "float32"},
    "tf32": {"dtype": "float32", "compute_dtype": "tf32"},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "float64": {"dtype": "float64"},
    "int8": {"dtype": "int8"},
    "uint8": {"dtype": "uint8", "w_dtype": "int8", "y_dtype": "uint8"},
    "float8_e4m3fn": {"dtype": "float8_e4m3fn", "y_dtype": "float16"},
    "float8_e5m2": {"dtype": "float8_e5m2", "w_dtype": "float8_e4m3fn", "y_dtype": "bfloat16"},
    "binary": {"dtype": BINARY},
    "float16 2:4": {"dtype": "float16", "density": 0.5, "pattern": "2:4"},
    "bfloat16 2:4": {"dtype": "bfloat16", "density": 0.5, "pattern": "2:4"},
}
SPARSE = tuple(name for name, kind in TYPES.items() if "pattern" in kind)
FORWARD = (*INTEGERS, BINARY, *FLOAT8_DTYPES, *SPARSE)  # of which gradients are none, or those of others
FOUR = 4  # input channels of a group, of whose multiples sparse types are
AWKWARD = (
    "n1 c1 h1 w1 k1 r1 s1",
    "n2 c3 h7 w5 k17 r3 s3 p1",
    "n5 c32 h17 w23 k48 r3 s3 p1",
    "n1 c64 h28 w30 k64 r3 s3 p1",
    "n1 c130 h9 w9 k70 r1 s1",
    "n3 c17 h9 w11 k5 r1 s1 stride2",
    "n1 c3 h23 w31 k8 r11 s11 p2 stride4",
    "n1 c3 h20 w19 k16 r7 s7 p3 stride2",
    "n1 c3 h14 w13 k4 r3 s3 p1:2,3:0 stride2 dilation2",
    "n1 c2 h3 w2 k3 r2 s2 p7:0,1:6 stride3",
    "n1 c2 h16 w15 k3 r3 s3 p6 dilation6",
    "n2 c6 h8 w9 k10 r3 s3 p1 groups2",
    "n1 c32 h9 w8 k64 r1 s1 groups4",
    "n1 c64 h11 w12 k64 r3 s3 p1 groups2",
    "n1 c4 h10 w7 k12 r3 s3 p1 groups4",
    "n2 c64 h56 w56 k64 r3 s3 p1 groups64",
    "n1 c17 h12 w13 k17 r5 s5 p2 stride2 groups17",
    "n1 c8 h20 w33 k8 r31 s31 p15 groups8",
    "n2 c16 h64 w48 k16 r7 s7 p3 groups16",
    "n1 c3 h8 w9 k4 r3 s3 p1 convolution",
    "n1 c8 w1000 k8 s4 p3:0 groups8",
    "n2 c16 w1024 k16 s5 p2 groups16",
    "n1 c2 w301 k3 s65 p32",
    "n1 c20 w67 k36 s3 p1",
    "n2 c17 w37 k3 s3 p2 dilation2",
    "n1 c8 w3000 k8 s3000 p2999:0 groups8",
    "n2 c3 w5000 k6 s700 p9:0 groups3 stride2",
    "n1 c2 w40000 k2 s9000 p8999:0 groups2",
    "n1 c256 h7 w7 k256 r3 s3 p1",
    "n1 c3 d5 h6 w7 k4 t3 r3 s3 p1",
    "n1 c16 d6 h9 w10 k24 t3 r3 s3 p1",
    "n1 c4 d6 h5 w5 k4 t3 r1 s1 p1,0,0 groups4",
    "n1 c2 d9 h9 w9 k2 t2 r3 s2 p2 dilation2,1,3",
    "n0 c3 h5 w5 k4 r3 s3",
    "n2 c0 h5 w5 k4 r3 s3 p1",
)
USED = (  # for all that users do with a plan: sums that are split, planes, rows, spectra
    "n1 c64 h28 w30 k64 r3 s3 p1",
    "n1 c256 h7 w7 k256 r3 s3 p1",
    "n2 c64 h56 w56 k64 r3 s3 p1 groups64",
    "n1 c16 h40 w33 k16 r13 s13 p6 groups16",
    "n2 c32 w2048 k32 s4 p3:0 groups32",
    "n1 c8 w3000 k8 s3000 p2999:0 groups8",
    "n1 c2 w20000 k2 s20000 p19999:0 groups2",
    "n1 c16 d6 h9 w10 k24 t3 r3 s3 p1",
)
USED_BACKWARD = (*USED[:4], "n2 c32 h28 w28 k32 r3 s3 p1 stride2 groups32")  # of these the gradients
CAUSAL = tuple(
    f"n4 c64 w{n} k64 s{n} p{n - 1}:0 groups64" for n in (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 17)
)
TRAINED = ("resnet50", "vgg16")  # suites of whose dense layers the gradients are timed
DENSE = 64  # channels and filters from which on Winograd and tensor cores must win
FEW_IMAGES = 8
HUGE = 16  # taps in a row from which on a depthwise kernel counts with those of 31x31


@dataclass(frozen=True)
class Case:
    """A problem, where it comes from, and how often its network has it."""

    suite: str
    name: str
    problem: ConvProblem
    count: int = 1

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}"

    @property
    def type(self) -> str:
        """Its element type, or "tf32", or the type with the pattern of its zeros."""
        p = self.problem
        zeros = f" {p.pattern}" if p.density < 1 else ""
        return "tf32" if p.compute_dtype == "tf32" else p.dtype + zeros


def types(names: Iterable[str]) -> list[str]:
    """Those that NumPy has here: some come from a package of their own."""
    return [name for name in names if name.split()[0] not in OF_ML_DTYPES or not missing("ml_dtypes")]


def types_facing(direction: str) -> list[str]:
    """Those of a direction: of one byte there are no gradients, those of sparse filters are like any."""
    return [name for name in types(TYPES) if direction == DIRECTIONS[0] or name not in FORWARD]


def of_texts(suite: str, texts: Iterable[str], directions: Iterable[str] = DIRECTIONS[:1]) -> list[Case]:
    """Every type and layout of some problems, forward or in other directions."""
    return [
        Case(suite, text, problem.replace(layout=layout, direction=direction, **TYPES[name]))
        for direction in directions
        for text in texts
        for problem in [ConvProblem.parse(text)]
        for layout, name in product(LAYOUTS, types_facing(direction))
        if name not in SPARSE or problem.w_shape[1] % FOUR == 0
    ]


def gradient_cases(layers: Iterable[Layer]) -> list[Case]:
    """The gradients that are timed: those of `by_importance`, to be checked before."""
    return [case for case in by_importance(layers) if case.problem.direction != "forward"]


def by_importance(layers: Iterable[Layer]) -> list[Case]:
    """What is timed: what targets name, then gradients, then the rest; a layer of each kind in turn."""
    every = tuple(layers)
    first, last = LAYOUTS
    named, gradients, rest = _named(every), _gradients(every), (_some(every, _any, *kind) for kind in (
        (first, ("float32",)), (last, ("float32",)), (last, ("float16",)), (last, ("tf32",)),
        (first, ("float16",)), (first, ("tf32",)),
    ))  # fmt: skip
    thin = _some(every, is_depthwise, first, ("bfloat16",)), _some(every, is_depthwise, last, ("float16",))
    whole = tuple(
        _some(every, kind, layout, names)
        for kind, names in ((is_dense, ("int8", "float8_e4m3fn")), (is_depthwise, ("int8",)))
        for layout in LAYOUTS
    )
    signs = tuple(_some(every, is_dense, layout, (BINARY,)) for layout in LAYOUTS)
    others = in_turn((*whole, *signs, *thin, *rest))
    ordered = in_turn(named.values()) + in_turn(gradients.values()) + others
    return list(dict.fromkeys(ordered))


def telling(layers: Iterable[Layer], count: int) -> list[Case]:
    """So many of each kind that targets name, of gradients of filters, and of long filters, in turn."""
    every = tuple(layers)
    filters = [
        case for case in in_turn(_gradients(every).values()) if case.problem.direction == DIRECTIONS[2]
    ]
    long = _some(every, is_long, LAYOUTS[0], ("float32",))
    named = (kind for name, kind in _named(every).items() if name != DEPTHWISE)
    return in_turn(kind[:count] for kind in (*named, filters, long))


def _named(layers: Sequence[Layer]) -> dict[str, list[Case]]:
    """Forward, by the words of the targets."""
    first, last = LAYOUTS
    return {
        "Winograd": _some(layers, is_winograd, first, ("float32",)),
        "depthwise 3x3": _some(layers, lambda p: is_depthwise(p) and max(p.kernel) == 3, first, ("float32",)),
        "depthwise 31x31": _some(
            layers, lambda p: is_depthwise(p) and max(p.kernel) > HUGE, first, ("float32",)
        ),
        "float16, channels last": _some(layers, is_dense, last, ("float16",)),
        "TF32, channels last": _some(layers, is_dense, last, ("tf32",)),
        "float16, channels first": _some(layers, is_dense, first, ("float16",)),
        "TF32, channels first": _some(layers, is_dense, first, ("tf32",)),
        DEPTHWISE: _some(layers, is_depthwise, first, ("float32", "float16")),
    }


def _gradients(layers: Sequence[Layer]) -> dict[str, list[Case]]:
    trained = [layer for layer in layers if layer.suite in TRAINED]
    first, last = LAYOUTS
    backward = DIRECTIONS[:0:-1]
    return {
        "float32": _some(trained, is_dense, first, ("float32",), backward),
        "float16, channels last": _some(trained, is_dense, last, ("float16",), backward),
        "TF32, channels last": _some(trained, is_dense, last, ("tf32",), backward),
        "depthwise": _some(layers, is_depthwise, first, ("float32", "float16"), backward),
        "channels first": _some(trained, is_dense, first, ("float16", "tf32"), backward),
        "depthwise, channels last": _some(layers, is_depthwise, last, ("float32", "float16"), backward),
    }


def _some(
    layers: Iterable[Layer],
    wanted: Callable[[ConvProblem], bool],
    layout: str,
    names: Sequence[str],
    directions: Sequence[str] = DIRECTIONS[:1],
) -> list[Case]:
    """The layers of a kind, one of each suite in turn, and of each all types and directions."""
    by_suite: dict[str, list[Layer]] = {}
    for layer in layers:
        if wanted(layer.problem):
            by_suite.setdefault(layer.suite, []).append(layer)
    return [
        Case(la.suite, la.name, la.problem.replace(layout=layout, direction=d, **TYPES[name]), la.count)
        for la, name, d in product(in_turn(by_suite.values()), types(names), directions)
    ]


def in_turn(kinds: Iterable[Sequence[T]]) -> list[T]:
    """The first of each, then the second of each, and so on, each thing once."""
    rows = zip_longest(*kinds)
    return list(dict.fromkeys(found for row in rows for found in row if found is not None))


def causal() -> list[Case]:
    """Long causal convolutions of 1-D signals, with filters as long as they are."""
    return [
        Case("causal", f"{ConvProblem.parse(text).spatial[0]}", ConvProblem.parse(text)) for text in CAUSAL
    ]


# --- kinds of layers that the targets name -------------------------------------------------------


def is_winograd(p: ConvProblem) -> bool:
    """3x3 of stride 1, dense and of few images: where strict float32 is a matter of Winograd."""
    plain = p.stride == p.dilation == (1, 1) and p.kernel == (3, 3) and p.groups == 1
    return plain and min(p.C, p.K) >= DENSE and p.N <= FEW_IMAGES


def is_depthwise(p: ConvProblem) -> bool:
    return p.is_depthwise and max(p.kernel) <= 128


def is_long(p: ConvProblem) -> bool:
    """Filters for which transforms are made."""
    return p.ndim == 1 and max(p.kernel) > 128


def _any(p: ConvProblem) -> bool:
    return True


def is_dense(p: ConvProblem) -> bool:
    """Layers for tensor cores."""
    return p.groups == 1 and min(p.C, p.K) >= 16 and max(p.kernel) <= 16
