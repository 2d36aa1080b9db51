"""The machine: what every cost model reads, and where each figure came from.

Vector width, caches and thread count are read from the system. Peak and bandwidth are nominal, of a shipped
profile, until something that takes its time anyway measures them (`convalgos.cpu.runtime.calibrate`); they
are kept in the user's cache folder, one file per machine fingerprint.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.cache_files import cache_folder, keep, set_aside, warn_once
from convalgos.core.errors import missing
from convalgos.core.processor import cpu_flags, cpu_name

FORMAT = 1  # of the stored file; raise it when a field changes its meaning
LEAST_DOUBLE, MOST_DOUBLE = 0.3, 0.75  # float64 over float32, whose vectors hold twice as many
LIMITS: dict[str, tuple[Any, Any]] = {  # of what a file may say; far beyond any machine
    "threads": (1, 1 << 16),
    "vector_bytes": (8, 1 << 12),
    "l1_bytes": (1 << 8, 1 << 40),
    "l2_bytes": (1 << 8, 1 << 40),
    "l3_bytes": (1 << 8, 1 << 40),
    "peak_float32": (1e6, 1e18),
    "peak_float64": (1e6, 1e18),
    "peak_int8": (1e6, 1e18),
    "peak_bfloat16": (1e6, 1e18),
    "bandwidth": (1e6, 1e16),
    "cache_bandwidth": (1e6, 1e16),
    "launch": (1e-9, 1.0),
    "clock": (1e6, 1e12),
    "l2_bandwidth": (1e6, 1e16),
    "read_bandwidth": (1e6, 1e16),
    "passes": (1, 1 << 16),
}
NOMINAL_SHORT = {"int8": 4.0, "bfloat16": 1.0}  # over float32, where nobody measured
LINE = 64  # bytes, of a cache
PACKED_ON = 3e10  # `cache_bandwidth` of a thread where the packing of filters was timed; Xeon
NOMINAL_L2 = 1.8  # times the bytes a second from the last cache; Xeon (Granite Rapids)
LONGEST_NAME = 1000  # characters
NOMINAL = "nominal"  # begins the source of figures that nobody measured
L3_OF_CORE = 16 << 20  # bytes: virtual machines of 2 cores were told of 480 MiB
LONGEST_REGION = 2e-4  # seconds, of a parallel region whose threads all have a core


@dataclass(frozen=True)
class Machine:
    """Figures of one machine. Bytes and seconds; flops count a fused multiply-add as two, as do operations.

    Peaks of short numbers are those of the best instruction of the processor. None where nobody measured.
    """

    name: str
    threads: int  # that our kernels run on
    vector_bytes: int  # 64 with AVX-512, 32 with AVX2, 16 otherwise
    l1_bytes: int  # data cache, per core
    l2_bytes: int  # per core
    l3_bytes: int  # shared
    peak_float32: float  # flop/s on all threads
    peak_float64: float
    bandwidth: float  # bytes/s read plus written by all threads, on arrays beyond the last cache
    cache_bandwidth: float  # the same on arrays that stay in the last cache
    launch: float  # seconds to start and join a parallel region
    source: str = "measured"
    peak_int8: float | None = None  # operations/s on all threads, with sums of 32 bits
    peak_bfloat16: float | None = None  # flop/s on all threads, with float32 sums
    clock: float | None = None  # cycles of a core in a second
    l2_bandwidth: float | None = None  # as `cache_bandwidth`, of arrays that stay in the L2 of their threads
    read_bandwidth: float | None = None  # bytes/s only read by all threads, beyond the last cache
    passes: int | None = field(default=None, compare=False)  # of which these are the best

    @property
    def is_nominal(self) -> bool:
        """Whether nothing was timed: peak and bandwidth are those of a shipped profile."""
        return self.source.startswith(NOMINAL)

    def peak(self, dtype: str) -> float:
        """flop/s on all threads in an element type; of integers operations/s.

        Those of float16, for which no instruction is used, are those of float32.
        """
        if dtype in ("int8", "uint8"):
            return self.peak_int8 or NOMINAL_SHORT["int8"] * self.peak_float32
        if dtype == "bfloat16":
            return self.peak_bfloat16 or NOMINAL_SHORT["bfloat16"] * self.peak_float32
        return self.peak_float64 if dtype == "float64" else self.peak_float32

    def peak_of(self, problem: Any) -> float:
        """flop/s of the units that compute a `ConvProblem`."""
        return self.peak(problem.dtype)

    @property
    def cycles(self) -> float:
        """Cycles a second of all threads: of shuffles, of what begins and ends, and all that is no vector."""
        return self.threads * self.clock if self.clock else self.paced_cycles

    @property
    def paced_cycles(self) -> float:
        """The same of a machine that sums two vectors of products in a cycle, as this one would at its peak.

        They pace loads, stores and sums of whole vectors. Where vectors are wider than the units, as those of
        64 bytes on Zen 4, each of them takes two cycles of the clock.
        """
        return self.peak_float32 / self.vector_bytes

    @property
    def pace(self) -> float:
        """Cycles of two vectors of products over those of the clock: 1, or 1/2 where each takes both units.

        What products wait for, their loads and the sums before them, goes by the clock.
        """
        return self.paced_cycles / self.cycles

    @property
    def _short_peaks(self) -> tuple[tuple[str, float | None], ...]:
        return ("bfloat16", self.peak_bfloat16), ("int8", self.peak_int8)

    @property
    def summary(self) -> str:
        """For the foot of a table."""
        nominal = "nominal " if self.is_nominal else ""
        return (
            f"{self.name}, {self.threads} threads, {nominal}peak "
            f"{self.peak_float32 / 1e9:.0f} GFLOP/s float32, {self.peak_float64 / 1e9:.0f} float64"
            + "".join(f", {peak / 1e9:.0f} {name}" for name, peak in self._short_peaks if peak is not None)
        )

    def stream(self, nbytes: float, footprint: float | None = None) -> float:
        """Seconds to move `nbytes`, read plus written, of arrays that take `footprint` bytes in all."""
        cached = (nbytes if footprint is None else footprint) < self.l3_bytes
        return nbytes / (self.cache_bandwidth if cached else self.bandwidth)

    def stream_near(self, nbytes: float) -> float:
        """Seconds to move arrays of so many bytes in all, which lie in L2 where they fit there."""
        if nbytes < self.threads * self.l2_bytes:
            return nbytes / self.near_bandwidth
        return self.stream(nbytes)

    @property
    def near_bandwidth(self) -> float:
        """bytes/s read plus written by all threads, on arrays that stay in the L2 of their threads."""
        return self.l2_bandwidth or NOMINAL_L2 * self.cache_bandwidth

    @property
    def filter_bandwidth(self) -> float:
        """bytes/s of what all threads only read, as filters, beyond the last cache.

        A copy may pass it: some memory is read and written at once.
        """
        return self.read_bandwidth or self.bandwidth

    @property
    def packing_pace(self) -> float:
        """How many times as fast filters are packed as where that was timed: they go from cache to cache.

        On Zen 5, with 3.6 times that bandwidth, transforms of filters took 0.27 to 0.4 of the time. What more
        threads gain was not timed, and is not counted.
        """
        return self.cache_bandwidth / (self.threads * PACKED_ON)

    @property
    def line_waits(self) -> float:
        """How much of what parts of lines cost is waited for: nothing where L2 gives a line in a cycle of the
        clock, as on Zen 5, and all of it where it gives half of one, as on Zen 4, or nobody measured."""
        if self.clock is None or self.l2_bandwidth is None:
            return 1.0
        return min(1.0, max(0.0, 2 * (1 - self.l2_bandwidth / (self.cycles * LINE))))


_assumed: Machine | None = None


def assume(figures: Machine) -> None:
    """Plan as on another machine from now on, in a process that has planned nothing before."""
    global _assumed
    _assumed = figures
    vector_bytes.cache_clear()
    cache_sizes.cache_clear()


@cache
def vector_bytes() -> int:
    """Bytes of the widest vector that the compiler may use here; NUMBA_CPU_NAME is honoured."""
    if _assumed is not None:
        return _assumed.vector_bytes
    chosen = os.environ.get("NUMBA_CPU_NAME", "")
    features = cpu_flags()
    if chosen and chosen != "host":
        wide = ("skylake-avx512", "icelake", "cascadelake", "sapphire", "znver4", "znver5", "v4")
        if any(w in chosen for w in wide):
            return 64
        return 32 if chosen in ("haswell", "broadwell", "skylake", "x86-64-v3") or "znver" in chosen else 16
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= features:
        return 64
    return 32 if {"avx2", "fma"} <= features else 16


def cpu_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def memory_bytes() -> int | None:
    """Of the machine, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


@cache
def cache_sizes() -> tuple[int, int, int]:
    """(L1 data, L2, L3) bytes of core 0; usual sizes where the system does not say.

    Of an L3 whose other cores belong to other machines, a part that no processor's cores have more of: what
    is kept there for later calls.
    """
    if _assumed is not None:
        return _assumed.l1_bytes, _assumed.l2_bytes, _assumed.l3_bytes
    l1, l2, l3 = _told_sizes()
    return l1, l2, min(l3, L3_OF_CORE * cpu_count())


def whole_l3() -> int:
    """Bytes of L3 that the system tells of, also where others share it: what was just written may be there.

    Streaming stores go by it, which gain nothing there.
    """
    return _assumed.l3_bytes if _assumed is not None else _told_sizes()[2]


@cache
def _told_sizes() -> tuple[int, int, int]:
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size[-1:] in "KM" and size[:-1].isdigit():
            sizes[level] = int(size[:-1]) << (10 if size[-1] == "K" else 20)
    return sizes[1], sizes[2], sizes[3]


def doubts(machine: Machine) -> list[str]:
    """What cannot be true of any machine, and comes from measuring beside other programs."""
    found = []
    if machine.cache_bandwidth < machine.bandwidth:
        found.append(
            f"cache_bandwidth {machine.cache_bandwidth / 1e9:.1f} GB/s is less than that of memory, "
            f"{machine.bandwidth / 1e9:.1f} GB/s"
        )
    if not LEAST_DOUBLE < machine.peak_float64 / machine.peak_float32 < MOST_DOUBLE:
        found.append(
            f"peak_float64 {machine.peak_float64 / 1e9:.0f} GFLOP/s is not about half of peak_float32, "
            f"{machine.peak_float32 / 1e9:.0f} GFLOP/s"
        )
    if machine.launch > LONGEST_REGION:
        found.append(f"launch {machine.launch * 1e6:.0f} us is longer than a parallel region takes to start")
    return found


def fingerprint(threads: int) -> str:
    """A file name that tells machines apart by what their timings depend on."""
    parts = [cpu_name(), f"{threads}t", f"v{vector_bytes()}", platform.system()]
    if missing("llvmlite"):  # other code runs then, and other code is timed
        parts.append("no compiler")
    return "-".join("".join(c if c.isalnum() else "_" for c in p) for p in parts).lower()


def load_machine(threads: int) -> Machine | None:
    """The stored figures of this machine, or None; a damaged file is set aside with a warning."""
    path = _path(threads)
    try:
        stored = strict_json.of_format(path.read_text("utf-8"), FORMAT)
        del stored["format"]
        machine = checked_figures(stored)
        if machine.threads != threads:
            raise ValueError(f"threads={machine.threads} must be {threads}, as its name says")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warn_once(f"machine figures could not be read: {error}")
        return None
    except ValueError as error:
        set_aside(path, str(error))
        return None
    return machine


def checked_figures(stored: dict[str, Any]) -> Machine:
    """The figures that somebody wrote down.

    Raises:
        ValueError: names what is missing, unknown or no figure of a machine.
    """
    names = [f.name for f in fields(Machine)]
    later = {f.name for f in fields(Machine) if f.default is None}  # figures that old files do not have
    stored = {name: value for name, value in stored.items() if value is not None or name not in later}
    if not set(names) - later <= stored.keys() <= set(names):
        raise ValueError(f"the figures must be {', '.join(names)}")
    for name, value in stored.items():
        if name not in LIMITS:
            strict_json.text(name, value, LONGEST_NAME)
        elif Machine.__annotations__[name].startswith("int"):
            strict_json.count_of(name, value, *LIMITS[name])
        else:
            strict_json.number(name, value, *LIMITS[name])
    return Machine(**stored)


def save_machine(machine: Machine) -> None:
    """Keep the figures for later processes."""
    text = json.dumps({"format": FORMAT, **asdict(machine)}, indent=1)
    keep(_path(machine.threads), text, "machine figures")


def _path(threads: int) -> Path:
    return cache_folder() / "machine" / f"{fingerprint(threads)}.json"
