"""Shipped figures of kinds of machines, in `profiles.json`, each with where it was found.

Those of CPUs are for one core. Choices go by the nearest of them until the machine is measured, and
CONVALGOS_PROFILE=avx512 goes by them for good: choices are then the same on every machine with as many cores
and such caches. Those of GPUs rank algorithms for
hardware that is not at hand: `convalgos.explain(problem, device="sm_90")`.
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib import resources
from typing import Any

from convalgos.core.machine import NOMINAL, Machine, cache_sizes, vector_bytes
from convalgos.core.processor import cpu_name, cpuinfo

VARIABLE = "CONVALGOS_PROFILE"
SLOW_PACE = 0.75  # of products, `Machine.pace`: below, they take both halves of a vector one after the other
ZEN4 = "AuthenticAMD", "25"  # vendor and family; its members of before have no AVX-512


@cache
def profiles() -> dict[str, dict[str, Any]]:
    """name -> figures, and their `origin`."""
    found: dict[str, dict[str, Any]] = json.loads(
        resources.files("convalgos.core").joinpath("profiles.json").read_text("utf-8")
    )
    return found


def of_gpus() -> tuple[str, ...]:
    """The names of those of GPUs."""
    return tuple(name for name in profiles() if name.startswith("sm_"))


def chosen(threads: int) -> Machine | None:
    """This machine by the figures of the profile that CONVALGOS_PROFILE names, or None where it names none.

    Raises:
        ValueError: there is no such profile.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    valid = [n for n in profiles() if n not in of_gpus()]
    if name not in valid:
        raise ValueError(f"{VARIABLE}={name!r} must be one of {', '.join(valid)}")
    return _of_cores(name, threads, f"profile {name}: {profiles()[name]['origin']}")


def nominal(threads: int) -> Machine:
    """This machine by what can be read of it, and the rest from the profile that is nearest; nothing is
    timed."""
    name = "avx2" if vector_bytes() < 64 else "avx512"
    if name == "avx512" and cpuinfo("vendor_id") == "GenuineIntel":
        name = "avx512_intel"
    elif name == "avx512" and (cpuinfo("vendor_id"), cpuinfo("cpu family")) == ZEN4:
        name = "avx512_zen4"
    source = f"{NOMINAL}: profile {name}; convalgos tune --machine measures"
    return _of_cores(name, threads, source, share=min(1.0, vector_bytes() / 32))


@cache
def units_are_narrow() -> bool:
    """Whether vectors are wider than the units of this machine, as those of 64 bytes on Zen 4: half of one
    takes half the time."""
    return nominal(1).pace < SLOW_PACE


def _of_cores(name: str, threads: int, source: str, share: float = 1.0) -> Machine:
    """As many cores as threads; `share`: of the profile's vectors."""
    of_core = profiles()[name]
    scale, near = threads * share, of_core.get("l2_bandwidth")
    return Machine(
        cpu_name(),
        threads,
        vector_bytes(),
        *cache_sizes(),
        peak_float32=of_core["peak_float32"] * scale,
        peak_float64=of_core["peak_float64"] * scale,
        bandwidth=of_core["bandwidth"],
        cache_bandwidth=of_core["cache_bandwidth"] * threads,
        launch=of_core["launch"],
        source=source,
        clock=of_core.get("clock"),
        l2_bandwidth=near and near * threads,
        read_bandwidth=of_core.get("read_bandwidth"),
        **{name: of_core[name] * scale for name in ("peak_int8", "peak_bfloat16") if name in of_core},
    )
