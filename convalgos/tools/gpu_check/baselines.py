"""What our algorithms are compared with on a GPU: the first of these that is installed.

1. cuDNN through its front end (`gpu.cudnn`), of which the first plans are timed. Its wheel may lie in a
   folder that CONVALGOS_WHEELS names.
2. torch, which calls cuDNN as its users do.
3. What was recorded on an H200.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convalgos.core.errors import Unsupported
from convalgos.core.problem import ConvProblem
from convalgos.gpu.vendor.recorded import DEVICE, recorded_seconds

FOLDER = "CONVALGOS_WHEELS"  # the variable of the environment
WHEEL = "nvidia_cudnn_frontend"
TORCH, RECORDED = "torch", f"recorded on an {DEVICE}"  # as the report calls them


class Baseline(NamedTuple):
    """What a layer's times stand beside."""

    name: str
    seconds: float


def recorded(problem: ConvProblem) -> Baseline | None:
    """What cuDNN took on an H200, where that is known."""
    found = recorded_seconds(problem)
    return None if found is None else Baseline(RECORDED, found)


# --- torch ---------------------------------------------------------------------------------------


def torch_call(name: str, problem: ConvProblem, first: np.ndarray, second: np.ndarray) -> Callable[[], Any]:
    """A call of torch's convolution, on its default stream, which is CuPy's, too; it returns a tensor.

    Args:
        name: of the device.
        first, second: arrays that a run reads, as they lie in memory.

    Returns:
        What gives the result, logical, with a spatial dimension of one more where the problem has only one.

    Raises:
        Unsupported: torch does not compute this. ImportError: there is no torch.
    """
    import torch

    backend = torch.backends.cudnn
    backend.benchmark, backend.allow_tf32 = True, problem.compute_dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = backend.allow_tf32
    low, even = [low for low, _ in problem.padding], all(low == high for low, high in problem.padding)
    if not even and problem.direction != "forward":
        raise Unsupported("torch knows no gradients of paddings that differ from side to side")
    if problem.mode == "convolution":
        raise Unsupported("torch computes cross-correlations")
    flat = [1] * (problem.ndim == 1)
    a, b = (_tensor(torch, name, problem, which, array) for which, array in enumerate((first, second)))
    padding = [0] * len(flat) + (low if even else [0] * problem.ndim)
    stride, dilation = [*flat, *problem.stride], [*flat, *problem.dilation]
    around = [side for pads in reversed(problem.padding) for side in pads]
    zeros = [0] * len(padding)

    if problem.direction == "forward":

        def forward() -> Any:
            x = a if even else torch.nn.functional.pad(a, around)
            settings = stride, padding, dilation, False, zeros, problem.groups
            return torch.convolution(x, b, None, *settings)

        return forward
    backward = torch.ops.aten.convolution_backward
    settings = None, stride, padding, dilation, False, zeros, problem.groups
    if problem.direction == "backward_data":
        like = torch.empty((*problem.x_shape[:2], *flat, *problem.spatial), dtype=a.dtype, device=a.device)
        if problem.layout == "channels_last":
            like = like.contiguous(memory_format=_last(torch, like.ndim))
        return lambda: backward(a, like, b, *settings, [True, False, False])[0]
    like = torch.empty(
        (*problem.w_shape[:2], *flat, *problem.kernel), dtype=a.dtype, device=a.device
    )  # of which only the shape counts
    return lambda: backward(b, a, like, *settings, [False, True, False])[1]


def _tensor(torch: Any, name: str, problem: ConvProblem, which: int, array: np.ndarray) -> Any:
    """One of the two arrays, logical, of at least two spatial dimensions, in torch's form of the layout."""
    half = array.dtype.itemsize == 2 and array.dtype != np.float16
    made = torch.from_numpy(array.view(np.int16) if half else array).to(name)
    made = made.view(torch.bfloat16) if half else made
    last = problem.layout == "channels_last"
    if last and problem.arrays[which][-1] != "w":
        made = made.movedim(-1, 1)
    if problem.ndim == 1:
        made = made.unsqueeze(2)
    return made.contiguous(memory_format=_last(torch, made.ndim)) if last else made


def _last(torch: Any, ndim: int) -> Any:
    return torch.channels_last if ndim == 4 else torch.channels_last_3d


# --- cuDNN's front end in a folder ---------------------------------------------------------------


def unpack_wheels(wheels: Path, target: Path) -> str:
    """Unpack the front end's wheel that fits this Python, to be imported from `target`; its name.

    Compiled modules cannot be imported out of an archive. What a wheel holds must be what its own list says.

    Raises:
        ValueError: there is none, or it is not what it says; nothing is unpacked.
    """
    found = sorted(wheels.glob(f"{WHEEL}-*.whl"))
    fitting = [path for path in found if fits(path.name)]
    if not fitting:
        others = f", only {', '.join(p.name for p in found)}" if found else ""
        raise ValueError(f"{FOLDER}={wheels} has no wheel of {WHEEL} for this Python{others}")
    chosen = fitting[-1]
    try:
        with zipfile.ZipFile(chosen) as archive:
            names = _listed(archive, chosen.name)
            for name in names:
                archive.extract(name, target)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{chosen} is no wheel: {type(error).__name__}: {error}") from None
    return chosen.name


def fits(name: str) -> bool:
    """Whether a wheel of this file name is for this Python and machine."""
    import platform
    import sys

    *_, python, _, systems = name.removesuffix(".whl").split("-")
    ours = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = platform.machine().lower()
    on = any(s == "any" or (s.startswith("manylinux") and s.endswith(machine)) for s in systems.split("."))
    return on and any(p in (ours, "py3") for p in python.split("."))


def _listed(archive: zipfile.ZipFile, name: str) -> list[str]:
    """The files of a wheel, each of which is as its list (RECORD) says, and lies within its folder."""
    project, version, *_ = name.split("-")
    folder = f"{project}-{version}.dist-info"
    told = archive.read(f"{folder}/METADATA").decode().splitlines()
    fields = dict(line.split(": ", 1) for line in reversed(told) if ": " in line)
    if (fields.get("Name", "").lower().replace("-", "_"), fields.get("Version")) != (WHEEL, version):
        raise ValueError(f"{name} says that it is {fields.get('Name')} {fields.get('Version')}")
    digests = {}
    for line in archive.read(f"{folder}/RECORD").decode().splitlines():
        path, digest, _ = line.rsplit(",", 2)
        digests[path.strip('"')] = digest
    for path in (entry for entry in archive.namelist() if not entry.endswith("/")):
        if path == f"{folder}/RECORD":
            continue
        found = base64.urlsafe_b64encode(hashlib.sha256(archive.read(path)).digest()).decode().rstrip("=")
        if path.startswith("/") or ".." in Path(path).parts or digests.get(path) != f"sha256={found}":
            raise ValueError(f"{name}: {path} is not what its RECORD says")
    return archive.namelist()
