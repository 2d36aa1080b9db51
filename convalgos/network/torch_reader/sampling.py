"""Operators of torch that take maps at places between their pixels: other sizes, and grids of places."""

from __future__ import annotations

import numpy as np
from torch import fx

from convalgos.network.torch_reader.shapes import known_sizes, shape_of_tensor
from convalgos.network.torch_reader.translation import Arguments, Left, Translation, Value

INTERPOLATIONS = (b"linear", b"nearest")  # by torch's numbers of them
PADDINGS = (b"zeros", b"border", b"reflection")


def cubic_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """By cubic interpolation along each dimension."""
    images, *others = shape_of_tensor(node)
    maps, scales = known_sizes(others), [float(f) for f in a.get("scale_factors") or ()]
    if scales:
        given = [t.constant(np.array([1, 1, *scales], np.float32))]
    else:
        given = ["", t.constant(np.array([*known_sizes([images]), *maps], np.int64))]
    coordinates = b"align_corners" if a["align_corners"] else b"half_pixel"
    how = {"coordinate_transformation_mode": coordinates, "cubic_coeff_a": -0.75}
    return t.emit("Resize", [t.value(a["input"]), "", *given], mode=b"cubic", **how)


def grid_sampling_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Maps at places that an array tells."""
    if a["interpolation_mode"] >= len(INTERPOLATIONS):
        raise Left("interpolates by cubic curves")
    return t.emit(
        "GridSample", [t.value(a["input"]), t.value(a["grid"])],
        mode=INTERPOLATIONS[a["interpolation_mode"]], padding_mode=PADDINGS[a["padding_mode"]],
        align_corners=int(a["align_corners"]),
    )  # fmt: skip


def affine_grid_nodes(t: Translation, node: fx.Node, a: Arguments) -> Value:
    """Places of the pixels of maps that (N, 2, 3) matrices move: a product with the places as they are."""
    _, _, *sizes = a["size"]
    if len(sizes) != 2:
        raise Left("is of volumes")
    h, w = known_sizes(sizes)
    rows, columns = (_places(n, a["align_corners"]) for n in (h, w))
    places = np.stack([*np.broadcast_arrays(columns[None, :], rows[:, None], np.float32(1))], -1)
    theta = t.value(a["theta"])
    (first, *_) = t.shape(theta)
    turned = t.between("Transpose", [theta], (first, 3, 2), perm=[0, 2, 1])
    grid = t.between("MatMul", [t.constant(places.reshape(1, h * w, 3)), turned], (first, h * w, 2))
    return t.emit("Reshape", [grid, t.constant(np.array([0, h, w, 2], np.int64))])


def _places(n: int, corners: bool) -> np.ndarray:
    """From -1 to 1, at the middle of the first and last pixel, or at their outer edges."""
    places = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
    return (places if corners else places * ((n - 1) / n)).astype(np.float32)


def nearest_nodes(t: Translation, x: Value, before: tuple[int, ...], node: fx.Node) -> Value:
    """The pixel at or before each place, by factors that are not whole: rows and columns by their numbers."""
    after, shape = known_sizes(shape_of_tensor(node)[2:]), list(t.shape(x))
    numbers = [
        np.minimum((np.arange(m, dtype=np.float32) * np.float32(n / m)).astype(np.int64), n - 1)
        for n, m in zip(before, after, strict=True)
    ]
    for axis, places in enumerate(numbers[:-1], 2):
        shape[axis] = len(places)
        x = t.between("Gather", [x, t.constant(places)], shape, axis=axis)
    return t.emit("Gather", [x, t.constant(numbers[-1])], axis=len(shape) - 1)
