"""The driver that reads maps and volumes at places between their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, pointer

SIZE = 4  # bytes of a float32
ROUNDER, ROUNDER_BITS = 12582912.0, 0x4B400000  # what is added to it is rounded, and stands in its last bits

# x is (images, channels, depth, height, width), grid (images, places, 2 or 3), y (images, channels, places);
# words that begin with f_ have the bits of a float32
SAMPLING_FIELDS = fields(
    "x grid y images channels depth height width places dimensions nearest f_low f_depth f_height f_width "
    "f_scale_d f_scale_h f_scale_w f_middle_d f_middle_h f_middle_w tasks"
)


@jit.specialise
def sample_share() -> jit.Kernel:
    """The places of a task, a run of them; of volumes between the planes before and behind."""

    def sample_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SAMPLING_FIELDS)[0]
        total = a.images * a.places
        one, rounder = np.float32(1.0), np.float32(ROUNDER)
        plane = a.height * a.width
        volume = a.depth * plane
        of_volumes, deep = a.dimensions == 3, np.float32(0.0)
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            n = unit // a.places
            at = carray(pointer(a.grid + unit * a.dimensions * SIZE), a.dimensions, np.float32)
            j, right = pixel_of(at[0], a.f_scale_w, a.f_middle_w, a.f_low, a.f_width, a.nearest, rounder)
            i, down = pixel_of(at[1], a.f_scale_h, a.f_middle_h, a.f_low, a.f_height, a.nearest, rounder)
            above, below = i >= 0 and i < a.height, i + 1 < a.height and a.nearest == 0
            before, behind = j >= 0 and j < a.width, j + 1 < a.width and a.nearest == 0
            first = i * a.width + j
            near, far = 1, 0
            if of_volumes:
                k, deep = pixel_of(at[2], a.f_scale_d, a.f_middle_d, a.f_low, a.f_depth, a.nearest, rounder)
                near, far = int(k >= 0 and k < a.depth), int(k + 1 < a.depth and a.nearest == 0)
                first += k * plane
            for c in range(a.channels):
                x = carray(pointer(a.x + (n * a.channels + c) * volume * SIZE), volume, np.float32)
                y = carray(pointer(a.y + (n * a.channels + c) * a.places * SIZE), a.places, np.float32)
                up, low = near == 1 and above, near == 1 and below
                front = between_four(x, first, a.width, up, low, before, behind, right, down)
                if of_volumes:
                    up, low = far == 1 and above, far == 1 and below
                    back = between_four(x, first + plane, a.width, up, low, before, behind, right, down)
                    front = front * (one - deep) + back * deep
                y[unit % a.places] = front

    return sample_share


@jit.helper
def between_four(
    x: Any, first: int, width: int, above: Any, below: Any, before: Any, behind: Any, right: Any, down: Any
) -> Any:
    """What lies between four pixels of which `first` is the upper left one, zeros where there are none."""
    zero, one = np.float32(0.0), np.float32(1.0)
    ul, ur = first if above and before else 0, first + 1 if above and behind else 0
    dl, dr = first + width if below and before else 0, first + width + 1 if below and behind else 0
    upper = (x[ul] if above and before else zero) * (one - right) + (
        x[ur] if above and behind else zero
    ) * right
    lower = (x[dl] if below and before else zero) * (one - right) + (
        x[dr] if below and behind else zero
    ) * right
    return upper * (one - down) + lower * down


@jit.helper
def pixel_of(
    place: Any, scale: int, middle: int, low: int, high: int, nearest: int, rounder: Any
) -> tuple[int, Any]:
    """(pixel before a place from -1 to 1, share of the one behind it); what is no number lies lowest."""
    least, most = np.uint32(low).view(np.float32), np.uint32(high).view(np.float32)
    where = place * np.uint32(scale).view(np.float32) + np.uint32(middle).view(np.float32)
    where = where if where >= least else least
    where = most if where > most else where
    lifted = where + rounder
    whole = int(lifted.view(np.uint32)) - ROUNDER_BITS
    share = where - (lifted - rounder)
    if nearest:
        return whole, np.float32(0.0)
    if share < np.float32(0.0):
        return whole - 1, share + np.float32(1.0)
    return whole, share
