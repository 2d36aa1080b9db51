"""What to measure: layers of a suite, a table, a model, a capture or the text of a problem."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convalgos.core.element_types import INTEGERS
from convalgos.core.near_names import did_you_mean
from convalgos.core.problem import ConvProblem
from convalgos.select.measure import capture
from convalgos.tools.bench.onnx_model import read_model
from convalgos.tools.bench.suites import Layer, names, read_table, suite, suites

SUFFIXES = (".csv", ".onnx", ".txt")  # of files that `read_target` reads


def read_target(target: str, batch: int | None = None) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """The layers of a suite, table, model, capture or problem, and the nodes of a model that are skipped.

    Args:
        target: "all" (but convbench), the name of a suite, a path that ends in .csv, .onnx or .txt (see
            `convalgos.select.measure.capture`), or the text of a problem.
        batch: the size of the batch dimension, in place of what the target says.

    Raises:
        ValueError: says what is wrong, and where. Unsupported: onnx is not installed. OSError: no such file.
    """
    skipped: dict[str, str] = {}
    suffix = Path(target).suffix.lower()
    if target == "all":
        layers = tuple(layer for found in suites().values() for layer in found)
    elif target in names():
        layers = suite(target)
    elif suffix == ".csv":
        layers = read_table(Path(target))
    elif suffix == ".onnx":
        return read_model(Path(target), batch)
    elif suffix == ".txt":
        layers = tuple(
            Layer("", f"captured_{i}", problem, count)
            for i, (problem, count) in enumerate(capture.read_capture(target).most_common(), 1)
        )
    elif " " in target:
        layers = (Layer("", "problem", ConvProblem.parse(target)),)
    else:
        hint = did_you_mean(target, ["all", *names()]) or "; convalgos suites lists the suites"
        raise ValueError(
            f"{target!r} is not a suite, a .csv, .onnx or .txt file, or a problem like "
            f"'c64 h56 w56 k64 r3 s3 p1'{hint}"
        )
    if batch is not None:
        layers = tuple(
            Layer(la.suite, la.name, la.problem.replace(x_shape=(batch, *la.problem.x_shape[1:])), la.count)
            for la in layers
        )
    return layers, skipped


def changed(
    layers: Iterable[Layer],
    *,
    dtype: str | None = None,
    compute_dtype: str | None = None,
    layout: str | None = None,
    direction: str | None = None,
) -> tuple[Layer, ...]:
    """The layers with what is not None changed; another dtype is computed in what is usual for it.

    Layers of dtype "int8" and "uint8" are those of quantised networks: filters are of int8, each with a scale
    of its own, and y is requantised to the type of x.
    """
    changes: dict[str, Any] = {"layout": layout, "direction": direction}
    changes = {name: value for name, value in changes.items() if value}
    if dtype or compute_dtype:
        changes["compute_dtype"] = compute_dtype
    if dtype:
        changes["dtype"] = dtype
        changes |= {"w_dtype": None, "y_dtype": None, "scales": "per_tensor"}
    if dtype in INTEGERS:
        changes |= {"w_dtype": "int8", "y_dtype": dtype, "scales": "per_channel"}
    return tuple(Layer(la.suite, la.name, la.problem.replace(**changes), la.count) for la in layers)
