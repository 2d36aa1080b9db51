"""The arrays that a network is run on: a picture, or random numbers, of sizes that its model leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from convalgos.core.arguments import Shape
from convalgos.core.errors import Unsupported, missing
from convalgos.network.graph import NetworkGraph

OPEN_SIZE = 224  # of maps, where neither the model nor the caller says one
MEAN = np.array(
    [0.485, 0.456, 0.406], np.float32
)  # of the colours of ImageNet, by which networks are trained
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def input_shapes(graph: NetworkGraph, batch: int | None, size: tuple[int, ...] | None) -> dict[str, Shape]:
    """The shape of each input: what the model declares, and where it leaves sizes open batch and size.

    Raises:
        ValueError: the model declares another batch, or another number of sizes.
    """
    found = {}
    for name in graph.inputs:
        declared = graph.shapes.get(name)
        if declared is None:
            raise ValueError(f"the model does not declare the shape of its input {name!r}")
        shape = list(declared)
        if shape and isinstance(shape[0], int) and batch not in (None, shape[0]):
            raise ValueError(f"--batch {batch}: input {name!r} has a batch of {shape[0]} in the model")
        sizes = size or (OPEN_SIZE,) * max(0, len(shape) - 2)
        if size and len(size) != len(shape) - 2:
            raise ValueError(f"--size has {len(size)} numbers; input {name!r} has {len(shape) - 2} of pixels")
        given = (batch or 1, *sizes, 1) if _channels_last(declared) else (batch or 1, 1, *sizes)
        found[name] = tuple(
            n if isinstance(n, int) else given[i] for i, n in enumerate(shape)
        )  # channels that are open are one
    return found


def random_inputs(graph: NetworkGraph, shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    """Normal numbers; ones of other types than floats."""
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in shapes.items():
        dtype = np.dtype(graph.dtypes.get(name, "float32"))
        x = rng.standard_normal(shape, np.float32) if dtype.kind == "f" else np.ones(shape)
        found[name] = x.astype(dtype)
    return found


def image_input(path: Path, shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    """A picture as the only input, (N, 3, H, W) or (N, H, W, 3): scaled, and normalised as for ImageNet.

    Raises:
        ValueError: the network takes no picture, or the file is none. Unsupported: Pillow is not installed.
        OSError: the file cannot be read.
    """
    if reason := missing("PIL"):
        raise Unsupported(f"reading {path} {reason}")
    from PIL import Image, UnidentifiedImageError

    (name, shape), *others = shapes.items()
    if others or len(shape) != 4 or 3 not in (shape[1], shape[3]):
        told = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise ValueError(f"--image: the network takes {told}, not one picture (N, 3, H, W) or (N, H, W, 3)")
    is_last = shape[1] != 3
    height, width = shape[1:3] if is_last else shape[2:]
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((width, height)), np.float32)
    except UnidentifiedImageError:
        raise ValueError(f"{path} is no picture that Pillow reads") from None
    x = (pixels / 255 - MEAN) / DEVIATION  # (H, W, 3)
    ordered = x if is_last else x.transpose(2, 0, 1)
    return {name: np.ascontiguousarray(np.broadcast_to(ordered, shape))}


def _channels_last(declared: Sequence[int | str | None]) -> bool:
    """Whether channels are the last dimension of an input: the only one besides the batch that is fixed."""
    return len(declared) > 2 and not isinstance(declared[1], int) and isinstance(declared[-1], int)
