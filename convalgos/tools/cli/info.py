"""`convalgos info`: what a maintainer asks for in a bug report.

`machine_facts` collects it as data, in bytes and seconds; `show_facts` prints it. It does not tell whose
machine it is, except by folders and by values of environment variables.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from convalgos.core.algorithm import Algorithm
from convalgos.core.cache_files import cache_folder
from convalgos.core.errors import Unsupported, missing
from convalgos.core.machine import cache_sizes, cpu_count
from convalgos.core.processor import cpu_flags, cpu_name, cpuinfo
from convalgos.gpu import device as gpu
from convalgos.gpu.device.measured import LIMITS
from convalgos.select import devices
from convalgos.select.wisdom_file import folder as wisdom_folder
from convalgos.tools.bench import results as bench_results
from convalgos.tools.history import asv
from convalgos.tools.report import model_constants, terminal

VARIABLES = (  # beginnings of the names of those that change what runs, or where, or how fast
    *("CONVALGOS_", "NUMBA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "TBB_"),
    *("CUDA_", "CUPY_", "CUDNN_", "NVIDIA_", "LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES"),
)
FEATURES = (  # of instruction sets, that kernels or libraries choose by
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512vl", "avx512bw", "avx512dq"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve"),
)
SOURCES = {"machine": terminal.MACHINE_SOURCES, "gpu": terminal.GPU_SOURCES}  # of the figures of a section
CPU = Path("/sys/devices/system/cpu/cpu0")


def machine_facts(algorithms: Iterable[Algorithm], *, with_constants: bool = False) -> dict[str, Any]:
    """All of it, for `json.dumps`: sections of names and values."""
    from convalgos.cpu.runtime import jit  # imports llvmlite

    machine = devices.current_machine()
    found: dict[str, Any] = {
        "versions": bench_results.versions() | {"source": _source()},
        "system": _system(),
        "cpu": _cpu(),
        "threads": {"threads": jit.thread_count(), "layer": jit.thread_layer()},
        "machine": asdict(machine),
        "gpu": _gpu(),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)},
        "kept": _kept(),
        "algorithms": {
            a.id: {"dtypes": list(a.dtypes), "missing": list(filter(None, map(missing, a.needs)))}
            for a in algorithms
        },
    }
    if with_constants:
        known = None if "none" in found["gpu"] else gpu.current().figures
        found["constants"] = [asdict(c) for c in model_constants.constants(known)]
    return found


def show_facts(found: dict[str, Any], console: Console) -> None:
    """Print it, a table for each section."""
    for title, section in found.items():
        if title == "constants":
            terminal.show_constants([model_constants.Constant(**c) for c in section], console)
            continue
        if title == "algorithms" and "none" in found["gpu"]:  # said once, in the section on the GPU
            there = {name: value for name, value in section.items() if not name.startswith("gpu.")}
            absent = [name for name in section if name not in there]
            section = there | ({", ".join(absent): "no GPU"} if absent else {})
        rows = [(name, _words(title, name, value), "") for name, value in section.items()]
        if (sources := SOURCES.get(title)) and "source" in section:
            if found_by_check := section.keys() & LIMITS.keys():
                sources = terminal.gpu_sources(found_by_check, section["measured_on"])
            measured = section["source"]
            rows = [(n, words, sources.get(n, measured)) for n, words, _ in rows if n not in terminal.UNTOLD]
        terminal.print_pairs(title, rows or [("none", "", "")], console)


# --- sections --------------------------------------------------------------------------------


def _source() -> str:
    """The commit of the source tree that runs, or that there is none."""
    try:
        root = asv.source_tree()
        commit = asv.git(root, "rev-parse", "HEAD")
        changed = asv.git(root, "status", "--porcelain", "--", *asv.MEASURED)
    except (ValueError, Unsupported):
        return "installed, no git commit known"
    return f"git commit {commit}{', with changes' if changed else ''}"


def _system() -> dict[str, Any]:
    pages = {"memory_bytes": "SC_PHYS_PAGES", "available_bytes": "SC_AVPHYS_PAGES"}
    return {
        "platform": platform.platform(),
        "python": f"{platform.python_implementation()}, {platform.python_compiler()}",
        **{name: os.sysconf(key) * os.sysconf("SC_PAGE_SIZE") for name, key in pages.items()},
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _cpu() -> dict[str, Any]:
    l1, l2, l3 = cache_sizes()
    siblings = _read(CPU / "topology" / "thread_siblings_list").replace("-", ",").split(",")
    return {
        "name": cpu_name(),
        "architecture": platform.machine(),
        "family, model, stepping": ", ".join(map(cpuinfo, ("cpu family", "model", "stepping"))),
        "microcode": cpuinfo("microcode") or "not told",
        "instruction sets": " ".join(f for f in FEATURES if f in cpu_flags()),
        "cores": os.cpu_count(),
        "cores this process may use": cpu_count(),
        "threads of a core": len(siblings),
        "quota of the container": _read(Path("/sys/fs/cgroup/cpu.max")) or "none",
        "governor": _read(CPU / "cpufreq" / "scaling_governor") or "not told",
        "virtual": "hypervisor" in cpu_flags(),
        "l1_bytes": l1,
        "l2_bytes": l2,
        "l3_bytes": l3,
    }


def _gpu() -> dict[str, Any]:
    """Of the current device, or why there is none."""
    if reason := gpu.why_none():
        return {"none": reason}
    device = gpu.current()
    figures = asdict(device.figures)
    constants_found = dict(figures.pop("measured"))
    return figures | constants_found | device.versions()


def _kept() -> dict[str, Any]:
    """The folders, what they take, and what is known."""
    folder = cache_folder()
    sizes = {f"{path.name}_bytes": _size(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    entries = devices.store().entries()
    return {
        "cache folder": str(folder),
        **sizes,
        "damaged files": len(list(folder.rglob("*.damaged"))),
        "wisdom folder": str(wisdom_folder()),
        "wisdom of this machine": f"{len(entries)} problems, {sum(map(len, entries.values()))} candidates",
    }


# --- inside ----------------------------------------------------------------------------------


def _words(section: str, name: str, value: Any) -> str:
    """A value as people read it."""
    if section == "algorithms" and isinstance(value, dict):
        return f"{', '.join(value['dtypes'])}; {'; '.join(value['missing']) or 'ready'}"
    return terminal.figure(name, value)


def _size(folder: Path) -> int:
    """Bytes of the files below a folder; one that vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _read(path: Path) -> str:
    """The first line of a small file of the system; empty where it cannot be read."""
    try:
        return path.read_text().strip().partition("\n")[0]
    except OSError:
        return ""
