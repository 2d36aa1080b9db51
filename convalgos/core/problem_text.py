"""The short text form of a problem, such as 'n8 c64 h56 w56 k64 r3 s3 p1': writing it, and reading it back.

`ConvProblem.parse` says which words there are. What is left to its default is not written.
"""

from __future__ import annotations

import re
from typing import Any

from convalgos.core.arguments import DIRECTIONS, MODES, NAMED_PADDING, Pads, Shape, shown
from convalgos.core.boundaries import BOUNDARIES, ZERO
from convalgos.core.element_types import (
    COMPUTE_DTYPES,
    FLOAT8_DTYPES,
    INTEGERS,
    SCALES,
    X_DTYPES,
    Y_DTYPES,
    defaults,
)
from convalgos.core.layouts import LAYOUTS
from convalgos.core.sparsity import checked_zeros

INTS = r"\d+(?:[,x]\d+)*"  # one number, or one per dimension
PADS = r"\d+(?::\d+)?(?:[,x]\d+(?::\d+)?)*"  # the same, of numbers or low:high
MOST_DIGITS = 100  # of a number, which is then found too large
WORDS = {
    "mode": MODES,
    "layout": LAYOUTS,
    "y_layout": tuple(f"y_{name}" for name in LAYOUTS),
    "direction": DIRECTIONS,
    "dtype": X_DTYPES,
    "w_dtype": tuple(f"w_{d}" for d in (*INTEGERS, *FLOAT8_DTYPES)),
    "y_dtype": tuple(f"y_{d}" for d in Y_DTYPES),
    "compute_dtype": tuple(f"compute_{d}" for d in COMPUTE_DTYPES),
    "scales": SCALES,
    "pattern": ("unstructured",),
}
PREFIX = {"w_dtype": "w_", "y_dtype": "y_", "compute_dtype": "compute_", "y_layout": "y_"}  # of words
PATTERN = r"\d+:\d+|block\d+x\d+|rank\d+(?:~[\d.e-]+)?|box|gaussian"
DENSITY = r"density(\d*\.?\d+(?:e-?\d+)?)"
BOUNDARY = rf"(?:{'|'.join(BOUNDARIES)})(?:,(?:{'|'.join(BOUNDARIES)}))*"  # one name, or one per dimension
FILL = r"fill(-?(?:\d*\.?\d+(?:e[+-]?\d+)?|inf|nan))"


def written(problem: Any) -> str:
    """The text of a `ConvProblem`, which `read` understands."""
    p = problem
    words = [f"n{p.N}", f"c{p.C}"]
    words += [f"{a}{v}" for a, v in zip("dhw"[-p.ndim :], p.spatial, strict=True)]
    words += [f"k{p.K}"]
    words += [f"{a}{v}" for a, v in zip("trs"[-p.ndim :], p.kernel, strict=True)]
    if any(pair != (0, 0) for pair in p.padding):
        words.append("p" + _write_pads(p.padding))
    for name in ("stride", "dilation"):
        values = getattr(p, name)
        if any(v != 1 for v in values):
            words.append(name + _write_ints(values))
    if p.groups != 1:
        words.append(f"groups{p.groups}")
    default = defaults(p.dtype) | {"y_layout": p.layout}
    words += [
        word
        for word, default in (
            (p.mode, MODES[0]),
            (p.layout, LAYOUTS[0]),
            (p.direction, DIRECTIONS[0]),
            (p.dtype, "float32"),
            *((prefix + getattr(p, k), prefix + default[k]) for k, prefix in PREFIX.items()),
            (p.scales, SCALES[0]),
            (p.pattern, "unstructured"),
        )
        if word != default
    ]
    if p.density != checked_zeros(None, p.pattern)[0]:
        words.append(f"density{p.density!r}")
    if any(name != ZERO for name in p.boundary):
        words.append(p.boundary[0] if len(set(p.boundary)) == 1 else ",".join(p.boundary))
    if p.fill_value:
        words.append(f"fill{p.fill_value!r}")
    return " ".join(words)


def read(text: str) -> dict[str, Any]:
    """The arguments of `ConvProblem` that a text stands for.

    Raises:
        ValueError: says which word is not understood, given twice or missing.
    """
    sizes: dict[str, int] = {}
    options: dict[str, Any] = {}

    def once(where: dict[str, Any], key: str, value: Any, word: str) -> None:
        if key in where:
            raise ValueError(f"problem {shown(text)}: {shown(word)} gives {key} a second time")
        where[key] = value

    if not isinstance(text, str):
        raise ValueError(f"text={shown(text)} must be a string, such as 'n8 c64 h56 w56 k64 r3 s3 p1'")
    for word in text.lower().split():
        named = next((k for k, v in WORDS.items() if word in v), None)
        if named:
            once(options, named, word.removeprefix(PREFIX.get(named, "")), word)
        elif re.fullmatch(PATTERN, word):
            once(options, "pattern", word, word)
        elif re.fullmatch(BOUNDARY, word):
            once(options, "boundary", tuple(word.split(",")), word)
        elif m := re.fullmatch(FILL, word):
            once(options, "fill_value", float(m[1]), word)
        elif m := re.fullmatch(DENSITY, word):
            once(options, "density", float(m[1]), word)
        elif m := re.fullmatch(r"([ncdhwktrs])(\d+)", word):
            once(sizes, m[1], _read_int(m[2]), word)
        elif m := re.fullmatch(r"groups(\d+)", word):
            once(options, "groups", _read_int(m[1]), word)
        elif m := re.fullmatch(rf"(stride|dilation)({INTS})", word):
            once(options, m[1], _read_ints(m[2]), word)
        elif m := re.fullmatch(rf"p(?:adding)?(valid|same|full|{PADS})", word):
            once(options, "padding", _read_pads(m[1]), word)
        else:
            raise ValueError(
                f"problem {shown(text)}: {shown(word)} is not understood; an example is "
                "'n8 c64 h56 w56 k64 r3 s3 p1 stride2 dilation1 groups1 channels_last float32'"
            )
    ndim = 3 if {"d", "t"} & sizes.keys() else 2 if {"h", "r"} & sizes.keys() else 1
    axes, taps = "dhw"[-ndim:], "trs"[-ndim:]
    if absent := [a for a in ("c", *axes, "k", *taps) if a not in sizes]:
        raise ValueError(f"problem {shown(text)}: missing size {', '.join(absent)} of a {ndim}-D problem")
    groups = options.get("groups", 1)
    if groups < 1 or sizes["c"] % groups:
        raise ValueError(f"problem {shown(text)}: groups={groups} must divide c={sizes['c']}")
    for name in ("stride", "dilation", "padding", "boundary"):
        given = options.get(name)
        if isinstance(given, tuple) and len(given) == 1:
            options[name] = given * ndim
    return {
        "x_shape": (sizes.get("n", 1), sizes["c"], *(sizes[a] for a in axes)),
        "w_shape": (sizes["k"], sizes["c"] // groups, *(sizes[a] for a in taps)),
        **options,
    }


def _read_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"{shown(digits)} has {len(digits)} digits, of which {MOST_DIGITS} are allowed")
    return int(digits)


def _read_ints(text: str) -> Shape:
    return tuple(_read_int(v) for v in re.split("[,x]", text))


def _read_pads(text: str) -> Any:
    if text in NAMED_PADDING:
        return text
    pads = [tuple(_read_int(v) for v in part.split(":")) for part in re.split("[,x]", text)]
    return tuple(p[0] if len(p) == 1 else p for p in pads)


def _write_ints(values: Shape) -> str:
    return str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values))


def _write_pads(pads: Pads) -> str:
    parts = [str(low) if low == high else f"{low}:{high}" for low, high in pads]
    return parts[0] if len(set(parts)) == 1 else ",".join(parts)
