"""What the system tells of the processor."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction set flags as the kernel lists them; empty where it lists none."""
    return frozenset(cpuinfo("flags").split())


@cache
def cpu_name() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()


def cpuinfo(key: str) -> str:
    """What the kernel says of the first core; empty where it does not."""
    return _first_core().get(key, "")


@cache
def _first_core() -> dict[str, str]:
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    told = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in told}
