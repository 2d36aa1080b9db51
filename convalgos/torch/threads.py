"""The threads of torch's own operators, which also run convolutions that are called through torch.

torch computes on the threads of an OpenMP, and these look for their next work for milliseconds before they
sleep. Convolutions between its operators would find the cores taken. As after any operator of torch, a child
of a fork can then run torch on one thread only; what is convolved there runs on threads of ours.

Where threads of that OpenMP sleep at once instead, it would have to wake them for each convolution, and a
frozen MobileNetV2 took 1.8 times as long: there ours are used, as everywhere else.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch

from convalgos.cpu.runtime import jit


def share() -> None:
    """Let what this thread convolves run on the threads that torch runs on, where they can be had."""
    if not _sleep_at_once() and (loop := _loop()):
        jit.borrow(loop)


@functools.cache
def _sleep_at_once() -> bool:
    """Whether threads of OpenMP were told not to look for their next work, as its GNU library reads that."""
    turns = os.environ.get("GOMP_SPINCOUNT", "").strip()
    return turns == "0" if turns else os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"


@functools.cache
def _loop() -> int:
    """The address of GOMP_parallel in the OpenMP that torch was linked with; 0: it was not, or has none."""
    if "OpenMP" not in torch.__config__.parallel_info().partition("ATen parallel backend")[2]:
        return 0
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:  # the library that is loaded already, and after it those that it needs
        found = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0
