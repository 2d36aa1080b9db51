"""The CUDA sources that ship with the package."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def source(name: str) -> str:
    """The text of a CUDA source, such as "common.cuh".

    Raises:
        ValueError: there is none of that name; the message lists those there are.
    """
    known = sorted(entry.name for entry in _folder().iterdir() if entry.name.endswith((".cu", ".cuh")))
    if name not in known:
        raise ValueError(f"name={name!r} must be one of {', '.join(known)}")
    return (_folder() / name).read_text(encoding="utf-8")


def _folder() -> Traversable:
    """convalgos/kernels where the package was built; in a checkout, kernels/ beside the package."""
    shipped = resources.files("convalgos") / "kernels"
    return shipped if shipped.is_dir() else Path(__file__).parents[3] / "kernels"
