"""What a Resize of ONNX says, as options of the function "resize" of whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
)  # fmt: skip
MODES = ("nearest", "linear", "cubic")


def resize_options(op: str, attributes: Mapping[str, Any], opset: int) -> dict[str, Any] | None:
    """The options; None of what that function does not do."""
    given = attributes.get
    mode, coordinates = (
        given(name, default).decode()
        for name, default in (("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"))
    )
    rounded = given("nearest_mode", b"round_prefer_floor").decode()
    if op == "Upsample" or opset < 11:
        coordinates, rounded = "asymmetric", "floor"
    odd = given("antialias", 0) or given("keep_aspect_ratio_policy", b"stretch") != b"stretch"
    if odd or coordinates not in COORDINATES or mode not in MODES:
        return None
    return {
        "mode": mode, "coordinates": coordinates, "rounded": rounded, "a": given("cubic_coeff_a", -0.75),
        "outside": bool(given("exclude_outside", 0)), "axes": tuple(given("axes", ())),
    }  # fmt: skip
