"""Whether the driver accepts TMA descriptors (tensor maps) whose box is wider than the input has channels.

NVIDIA's documents neither allow nor forbid them. Where the driver accepts them, wgmma reads inputs of few
channels through them; otherwise it pads the channels to a full step of its sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import Device
from convalgos.gpu.device.tma import Im2colView
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.results import Result, told
from convalgos.tools.gpu_check.steps import NOTHING, Begun, Skip

CHANNELS, STRIDES = (8, 16, 64), (1, 2)
STEP, PIXELS = 64, 128  # channels of 16 bits that a copy brings, and pixels
SPACES = {1: "w40 k8 s3 p1", 2: "h12 w10 k8 r3 s3 p1", 3: "d6 h8 w10 k8 t3 r3 s3 p1"}
HOPPER = (9, 0)


@dataclass(frozen=True)
class Answered:
    """A question to the driver, and its answer."""

    question: str
    answer: str


def tensor_maps(device: Device, skip: Skip = NOTHING) -> Iterator[Begun | Result | Answered]:
    """Ask for maps of each kind; a refused one with its channels filled up."""
    if device.figures.capability < HOPPER:
        return
    refused = 0
    for space, channels, stride in product(SPACES, CHANNELS, STRIDES):
        text = f"n2 c{channels} {SPACES[space]} stride{stride}"
        problem = ConvProblem.parse(text).replace(dtype="float16", layout="channels_last")
        case = Case("tensor map", text, problem)
        if skip.problem(problem):
            continue
        yield Begun(case)
        answer = _asked(device, problem, channels)
        if answer != "encoded" and channels < STEP:
            refused += 1
            answer += f"; filled up to {STEP} channels: {_asked(device, problem, STEP)}"
        elif answer != "encoded":
            yield Result(case.title, str(problem), "", "tensor map", failure=answer)
        yield Answered(f"a box of {STEP} channels over {channels}, {space}-D, stride {stride}", answer)
    wide = device.takes_wide_box()
    if wide == bool(refused):  # the library asks once, and decides by that
        unlike = f"wide boxes: {refused} refused here, but the device says {wide}"
        yield Result("tensor map", "", "", "wide boxes", failure=unlike)
    yield Answered("channels are filled up to the step of wgmma", "no" if wide else "yes")


def _asked(device: Device, problem: ConvProblem, channels: int) -> str:
    memory = device.xp.zeros(math.prod((problem.N, channels, *problem.spatial)), "float16")
    try:
        device.tensor_map(Im2colView.of(problem, channels, STEP, PIXELS), device.address(memory))
    except Exception as error:  # whatever the driver's library raises
        return f"refused: {told(error)}"
    return "encoded"
