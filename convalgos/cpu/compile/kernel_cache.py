"""Compiled kernels on disk: one file for each, with all that it depends on, checked before it is loaded.

An entry is the object code of one kernel behind its key: the function and the integers it closes over, the
text of its file and of the toolkit, the numbers and records that its file has from others, the versions of
what compiles, and the processor. The digest of the key is its name, and a checksum covers the rest. It is
written aside and renamed, so that processes that compile the same kernel at once write the same file, and a
reader sees one of them whole. Nothing in it is unpickled, and each is linked by itself.

An entry that does not match is removed and compiled again, with one warning. What was not used for a month
goes, and the oldest go where all together take too much.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core import cache_files
from convalgos.core.cache_files import NOWHERE, cache_folder, warn_once
from convalgos.core.cache_pruning import mark_used, prune
from convalgos.core.digests import hex_digest
from convalgos.cpu.compile.code_generation import compiler, link

MAGIC = b"convalgos kernel 1\n"  # of the form of an entry; raise it when that changes
ENDING = ".kernel"
MOST_BYTES = 64 << 20  # of all entries, of which one takes 7 KiB
TOOLKIT = (
    "cpu/runtime/jit.py",
    "cpu/compile/lowering.py",
    "cpu/compile/kernel_expressions.py",
    "cpu/compile/kernel_values.py",
    "cpu/compile/code_generation.py",
    "cpu/compile/kernel_cache.py",
    "cpu/compile/single_lanes.py",
    "cpu/vectors/blocks.py",
    "cpu/vectors/halves.py",
    "cpu/vectors/instructions.py",
    "cpu/vectors/integers.py",
    "cpu/vectors/matrix_tiles.py",
    "cpu/vectors/packing.py",
    "cpu/vectors/requantise.py",
    "cpu/vectors/simd.py",
    "cpu/vectors/microkernel.py",
    "cpu/vectors/atomics.py",
    "cpu/vectors/transpose.py",
    "cpu/runtime/array_calls.py",
    "cpu/runtime/new_arrays.py",
    "cpu/runtime/array_steps.py",
    "cpu/runtime/record_launch.py",
    "cpu/runtime/half.py",
    "cpu/runtime/plan.py",
    "cpu/runtime/worker_cores.py",
    "cpu/runtime/finish.py",
    "cpu/vectors/activations.py",
    "cpu/vectors/lanes.py",
    "cpu/vectors/logarithms.py",
    "cpu/layout/channel_vectors.py",
    "cpu/elementwise/matrix_rows.py",
    "cpu/elementwise/row_exponentials.py",
    "cpu/gemm/blocked_plan.py",
    "cpu/gemm/blocking.py",
    "cpu/gemm/reached_tiles.py",
    "cpu/gemm/block_copies.py",
    "cpu/gemm/weights_units.py",
    "cpu/gemm/row_copies.py",
    "cpu/gemm/split_terms.py",
    "cpu/gemm/split_blocks.py",
    "cpu/gemm/streamed_digits.py",
    "cpu/gemm/channel_scales.py",
    "cpu/gemm/digit_terms.py",
    "cpu/layout/copied_borders.py",
    "cpu/gemm/dealt_panels.py",
    "cpu/tiled/driver.py",
    "cpu/tiled/filters.py",
    "cpu/tiled/integer_points.py",
    "cpu/tiled/row_products.py",
    "cpu/tiled/split_rows.py",
    "cpu/filtering/flat_windows.py",
    "cpu/filtering/line_borders.py",
    "cpu/filtering/line_elements.py",
    "cpu/filtering/line_sums.py",
    "cpu/filtering/ordered_sums.py",
    "cpu/filtering/sample_mixes.py",
    "cpu/filtering/settling.py",
    "cpu/filtering/small_elements.py",
    "cpu/filtering/small_windows.py",
    "cpu/layout/strided_rows.py",
    "cpu/layout/strides.py",
    "cpu/layout/streaming.py",
    "cpu/dwconv/channel_forms.py",
    "cpu/dwconv/channel_lines.py",
    "cpu/dwconv/channel_taps.py",
    "cpu/dwconv/row_ends.py",
    "cpu/dwconv/row_lines.py",
    "cpu/dwconv/shifted_rows.py",
    "cpu/dwconv/tap_passes.py",
    "cpu/dwconv/window_sums.py",
    "cpu/elementwise/gathering_kernels.py",
    "cpu/elementwise/pixel_vectors.py",
    "cpu/pooling/elements.py",
    "cpu/pooling/maxima.py",
    "cpu/pooling/phase_maxima.py",
    "cpu/pooling/reductions.py",
    "cpu/sliding/kernels.py",
    "cpu/sliding/reductions.py",
    "cpu/vectors/fft_codelets.py",
    "core/cook_toom.py",
)  # a change in these recompiles all kernels


def kernel_key(function: Callable[..., Any], signature: str) -> dict[str, Any] | None:
    """All that the code of a kernel depends on; None where the text of its file cannot be read.

    Raises:
        TypeError: it closes over something that a key cannot tell apart.
    """
    code = function.__code__
    if not os.path.isfile(code.co_filename):
        return None
    cells = function.__closure__ or ()
    closed = {n: _plain(cell.cell_contents) for n, cell in zip(code.co_freevars, cells, strict=True)}
    return {
        "function": f"{function.__module__}.{function.__qualname__}:{code.co_firstlineno}",
        "closed": closed,
        "signature": signature,
        "sources": _sources(code.co_filename),
        "constants": _constants(function.__module__),
        **_compiler(),
    }


def load_kernel(wanted: dict[str, Any] | None) -> int | None:
    """The address of a kernel of this key, linked into this process, or None where it is not kept."""
    if wanted is None or (path := _path(wanted)) is None:
        return None
    try:
        entry = cache_files.read_trusted(path)
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warn_once(f"a compiled kernel could not be read, and is compiled anew: {error}")
        return None
    try:
        name, needs, code = _checked(entry, wanted)
        address = link(name, needs, code)
    except ValueError as error:
        warn_once(f"a compiled kernel was damaged ({error}), and is compiled anew: {path}")
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    mark_used(path, status.st_mtime)
    return address


def save_kernel(wanted: dict[str, Any] | None, name: str, needs: list[str], code: bytes) -> None:
    """Keep the object code of a kernel, in which `name` is the function, and `needs` are not defined.

    What cannot be kept costs one warning.
    """
    if wanted is None or (path := _path(wanted)) is None:
        return
    head = json.dumps({"key": wanted, "name": name, "needs": sorted(needs)}, sort_keys=True).encode()
    try:
        cache_files.write_private(path, MAGIC + cache_files.sealed(head + b"\n" + code))
    except OSError as error:
        warn_once(
            f"{path.parent} cannot be written ({error.strerror or error}): kernels are compiled anew in "
            "every process (set CONVALGOS_CACHE_DIR)"
        )
        return
    prune(path.parent, MOST_BYTES)


# --- inside ----------------------------------------------------------------------------------


def _path(wanted: dict[str, Any]) -> Path | None:
    """Where the entry of a key lies, or None where its folder is not to be trusted."""
    folder = cache_folder() / "kernels"
    if not _usable(folder):
        return None
    function = re.sub(r"\W+", "_", wanted["function"].rpartition(".cpu.")[2].replace("<locals>", ""))
    digest = hex_digest(json.dumps(wanted, sort_keys=True).encode())
    return folder / f"{function[:80]}-{digest[:32]}{ENDING}"


@functools.cache
def _usable(folder: Path) -> bool:
    return NOWHERE not in folder.parents and cache_files.private_folder(folder)


def _checked(entry: bytes, wanted: dict[str, Any]) -> tuple[str, list[str], bytes]:
    """(name, needs, code) of an entry.

    Raises:
        ValueError: it is not what was written under this key; says what is wrong.
    """
    if not entry.startswith(MAGIC):
        raise ValueError("not a kernel of this version")
    head, _, code = cache_files.unsealed(entry.removeprefix(MAGIC)).partition(b"\n")
    told = json.loads(head)
    if told["key"] != wanted:
        raise ValueError("it is another kernel")
    return told["name"], told["needs"], code


def _plain(value: Any) -> Any:
    """A closed-over value as JSON tells it apart."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    raise TypeError(f"a kernel may close over integers only, not over {value!r}")


@functools.cache
def _sources(file: str) -> str:
    """A digest of the text of a file and of the toolkit, under the names by which kernels know them."""
    return hex_digest(_told(Path(file)) + _toolkit().encode())[:32]


@functools.cache
def _toolkit() -> str:
    here = Path(__file__).parents[2]
    return hex_digest(b"".join(_told(here / name) for name in TOOLKIT))


def _told(path: Path) -> bytes:
    text = path.read_bytes() if path.exists() else b""
    return f"{path.name} {len(text)}\n".encode() + text


@functools.cache
def _constants(module: str) -> str:
    """A digest of the numbers and the records that a module knows, as some are from other files.

    What it has for itself alone, under names with an underscore, is in its text or is an address.
    """
    found = [
        f"{name} {value!r}"
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, bool | int | float | str | np.dtype) and not name.startswith("_")
    ]
    return hex_digest("\n".join(sorted(found)).encode())[:32]


@functools.cache
def _compiler() -> dict[str, Any]:
    """What turns a function into code, and for which processor."""
    return {
        **compiler(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
    }
