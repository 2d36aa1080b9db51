"""What NVRTC makes of each build: registers, spills, shared memory and warnings, and a record of them.

To compile every build takes ten minutes of a core, and gives the same figures until a source, a macro or
NVRTC changes. `cuda_resources.json` keeps them under a key of all three: what has no entry there is compiled,
which only another NVRTC may ask for, and so is a sample of the rest, with each source for each architecture
in it, which must come out as recorded. Its lines show in a review what a change of a kernel does to its
registers.

    python tests/cuda_resources.py          compile what has no entry, and write the record anew
    python tests/cuda_resources.py ahead    compile what the tests will, and keep it in the cache folder
    CONVALGOS_COMPILE_ALL=1 pytest tests/test_gpu_kernels.py        compile all, whatever is recorded
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

from cuda_shim.device import key_of

from convalgos.core.cache_files import cache_folder, write_atomic
from convalgos.gpu.compile import nvrtc
from convalgos.gpu.compile.module import OPTIONS, Build, source_text

RECORD = Path(__file__).with_name("cuda_resources.json")
SAMPLE = 16  # one in so many recorded builds is compiled by every run
Pair = tuple[Build, str]  # with an architecture


@cache
def recorded() -> dict[str, nvrtc.Compiled]:
    """By key. Nothing where all are to be compiled."""
    if os.environ.get("CONVALGOS_COMPILE_ALL"):
        return {}
    return {key: _compiled(*figures) for _, key, *figures in _record()["builds"]}


def unrecorded(pairs: Iterable[Pair]) -> list[Pair]:
    """Those without an entry, where the record was made with this NVRTC; of others it tells nothing."""
    record = _record()
    if record["nvrtc"] != str(nvrtc.library_version()):
        return []
    keys = {key for _, key, *_ in record["builds"]}
    return [pair for pair in pairs if key(*pair) not in keys]


@cache
def key(build: Build, arch: str) -> str:
    """Of all that decides what comes out: NVRTC, its options and the text, but for comments and blanks."""
    return key_of(str(nvrtc.library_version()), *OPTIONS, arch, source_text(build))


def compiled(build: Build, arch: str) -> nvrtc.Compiled:
    return recorded().get(key(build, arch)) or compiled_here(build, arch)


@cache
def compiled_here(build: Build, arch: str) -> nvrtc.Compiled:
    """By NVRTC on this machine, now or before: the cache folder keeps it."""
    path = cache_folder() / "nvrtc" / f"{key(build, arch)}.json"
    if path.exists():
        return _compiled(*json.loads(path.read_text()))
    result = nvrtc.compile_build(build, arch)
    write_atomic(path, json.dumps(_figures(result)))
    return result


def sample(pairs: Iterable[Pair]) -> list[Pair]:
    """Of those that are recorded, what every run compiles: some of each source for each architecture.

    Whose turn it is follows from the keys of all, so that each change of a kernel or of NVRTC brings others.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for build, arch in sorted(set(pairs), key=lambda pair: key(*pair)):
        if key(build, arch) in recorded():
            groups.setdefault((build.source, arch), []).append((build, arch))
    turn = int(key_of(*(key(*pair) for group in groups.values() for pair in group)), 16)
    return [pair for group in groups.values() for pair in group[turn % min(SAMPLE, len(group)) :: SAMPLE]]


def compile_all(pairs: Iterable[Pair], by=compiled) -> list[nvrtc.Compiled]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda pair: by(*pair), pairs))


def _record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def _figures(result: nvrtc.Compiled) -> list[object]:
    return [[list(astuple(kernel)) for kernel in result.kernels], list(result.warnings)]


def _compiled(kernels: list[list], warnings: list[str]) -> nvrtc.Compiled:
    return nvrtc.Compiled(tuple(nvrtc.Resources(*k) for k in kernels), tuple(warnings))


def write(pairs: Iterable[Pair]) -> None:
    """The record of these builds and no others: a line for each, those of a source side by side."""
    pairs = list(dict.fromkeys(pairs))
    lines = [
        json.dumps([f"{build} {arch}", key(build, arch), *_figures(result)])
        for (build, arch), result in zip(pairs, compile_all(pairs), strict=True)
    ]
    made_by = json.dumps(str(nvrtc.library_version()))
    write_atomic(RECORD, f'{{"nvrtc": {made_by}, "builds": [\n' + ",\n".join(sorted(lines)) + "\n]}\n")


if __name__ == "__main__":
    import test_gpu_kernels

    every = test_gpu_kernels.every_pair()
    if sys.argv[1:] == ["ahead"]:
        unknown = [pair for pair in every if key(*pair) not in recorded()]  # by another NVRTC
        compile_all([*sample(every), *unknown], compiled_here)
    else:
        write(every)
