"""Kernels come from a countable set: no size, stride, dilation or padding needs one of its own."""

import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from convalgos import cpu
from convalgos.core.machine import vector_bytes
from convalgos.cpu.tiled.short_schedule import sums_words
from convalgos.tools.cli import kernel_set, split_kernels
from convalgos.tools.cli.main import main

# Programs that compile nothing: what they ask for is noted instead, and does nothing where it is run.
NOTING = """
import json, random, sys
from itertools import product
import numpy as np
import convalgos as ca
from convalgos import ConvProblem, select; from convalgos.api import planning as api
from convalgos.core.errors import Unsupported
from convalgos.cpu.runtime import array_calls, jit, record_launch

def note(function, result=None):
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    parameters = dict(zip(function.__code__.co_freevars, inside))
    asked.add((function.__module__, *sorted((k, v) for k, v in parameters.items() if isinstance(v, int)),
               function.__qualname__.split(".")[0]))
    return 1 << 20  # no address: nothing is run

asked = set()
jit.compile_kernel = note
jit.launch = lambda *arguments: None
jit.data_address = lambda: lambda array: array.ctypes.data
array_calls.array_call = lambda: None
record_launch.launch_record = lambda: lambda *arguments: None
"""
TELLING = "\nprint(json.dumps(sorted(map(list, asked), key=str)))"

# Plans problems of random sizes. Those of 16 bits are run, too: only a call widens and narrows.
PROBLEMS = """
def problem(r):
    ndim = r.choice((1, 1, 2, 2, 2, 3))
    most = {1: 300, 2: 70, 3: 14}[ndim]
    kernel = [r.choice((1, 2, 3, 3, 4, 5, 7, 9, 31)[: 9 if ndim < 3 else 4]) for _ in range(ndim)]
    if r.random() < 0.5:
        kernel = kernel[:1] * ndim
    groups = r.choice((1, 1, 1, 2, 5, 24))
    dense = r.randint(1, 40), r.randint(1, 70)
    channels, filters = r.choice(((1, 1), (1, 1), (1, 2), (4, 4), (3, 5), dense))
    return ConvProblem(
        (r.randint(1, 3), groups * channels, *(r.randint(1, most) + k for k in kernel)),
        (groups * filters, channels, *kernel),
        stride=[r.choice((1, 1, 1, 2, 3, 5, 17)) for _ in kernel],
        dilation=[r.choice((1, 1, 1, 2, 3)) for _ in kernel],
        padding=[(r.choice((0, k // 2, k - 1)), r.choice((0, k // 2, k + 2))) for k in kernel],
        groups=groups, dtype=r.choice(("float32",) * 5 + ("float64",) * 4 + ("float16",)),
        layout=r.choice(("channels_first", "channels_first", "channels_last")),
        direction=r.choice(("forward", "forward", "backward_data", "backward_weights")),
    )

count = 0
r = random.Random(13)
while count < int(sys.argv[1]):
    try:
        p = problem(r)
        if p.is_empty:
            continue
        if count % 4 == 0:  # 500 by what is chosen, 1,000 by all
            api.plan(p, workspace_limit=1 << 26)
    except (ValueError, Unsupported):
        continue
    count += 1
    if p.dtype == "float16":
        plan = api.plan(p)
        plan(*(np.zeros(shape, p.dtype) for shape in p.array_shapes[:2]))
        continue
    if count % 2:
        continue
    ways = select.algorithms_on("cpu", p.direction)
    if p.layout == "channels_last":
        ways += select.between_reorders(p.direction)
    for algorithm in ways:
        if ".fft." not in algorithm.id and algorithm.why_not(algorithm.computed(p)) is None:
            algorithm.serve(p)  # of FFTs only those that were chosen above: FFTW's planning takes long
"""

# Filters and pooling of every type.
ROOMS = """
kinds = "?bBhHiIqQfd"
for kind in kinds:
    x = (np.arange(40 * 70) % 7).reshape(40, 70).astype(kind)
    for output, w in product(kinds[1:], ([1, 2, 3], [0.3, 0.5, 0.3], [-0.7, 0, 0.7])):
        ca.ndimage.correlate1d(x, w, output=output)
        ca.ndimage.correlate(x, np.outer(w, w) + np.eye(3), output=output)
    for each in (ca.ndimage.minimum_filter, ca.ndimage.maximum_filter, ca.ndimage.uniform_filter):
        each(x, 5)
for kind, stride in product(("f", "d", "e", "b", "B"), (1, 2, 3)):
    maps = np.ones((1, 3, 9, 40), kind)
    for layout in ("channels_first", "channels_last"):
        y = ca.max_pool(maps, 3, stride=stride, layout=layout)
        if kind in "fd":
            ca.max_pool_backward(y, maps, 3, stride=stride, layout=layout)
            ca.avg_pool(maps, 3, stride=stride, layout=layout)
"""


def asked_for(program: str, *arguments: str) -> list[tuple]:
    """Kernels that a program asks for: (module, (parameter, value), ..., factory)."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOTING + program + TELLING, *arguments],
        env=os.environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return [tuple(row) for row in json.loads(found.stdout.splitlines()[-1])]


def assert_listed(asked: list[tuple]) -> None:
    listed: dict[tuple[str, str], list[dict[str, int]]] = {}
    for k in kernel_set.kernels():
        names = inspect.signature(getattr(importlib.import_module(k.module), k.name)).parameters
        listed.setdefault((k.module, k.name), []).append(dict(zip(names, k.parameters, strict=True)))
    for module, *parameters, name in asked:
        same = listed[module, name]
        values = {key: value for key, value in parameters if key in same[0]}  # those that its code depends on
        assert any(values.items() <= k.items() for k in same), (module, name, parameters)


def test_2000_random_problems_need_no_kernel_that_is_not_listed():
    asked = asked_for(PROBLEMS, "2000")
    assert len({(module, name) for module, *_, name in asked}) > 30
    widening = [row for row in asked if any(part[0] == "FORM" and part[1] for part in row)]  # maps of 16 bits
    assert len(widening) < 100
    assert len(asked) - len(widening) < 1070  # of 80 factories; 1,568 where code depended on sizes
    assert_listed(asked)


# Factories that are not listed: no problem needs them.
MEASURING = "they measure the machine, which `tune`, `bench` and `find` do"
APART = dict.fromkeys(("convalgos.cpu.runtime.calibrate", "convalgos.cpu.runtime.word_peaks"), MEASURING)

BYTES = ("convalgos.cpu.tiled.quantised_products", "sum_bytes")  # by instructions that add up products


def factories() -> list[Any]:
    """What `jit.specialise` makes, in all modules of the CPU."""
    found = {}
    for info in pkgutil.walk_packages(cpu.__path__, "convalgos.cpu."):
        for name, value in vars(importlib.import_module(info.name)).items():
            code = getattr(value, "__code__", None)
            if code is not None and code.co_qualname == "specialise.<locals>.address":
                found[id(value)] = value
                assert info.name != value.__module__ or name == value.__name__  # the list goes by names
    return list(found.values())


def test_every_factory_of_kernels_is_listed():
    """A new one cannot be forgotten."""
    listed = {(k.module, k.name) for k in kernel_set.kernels(kernel_set.DTYPES)}
    found = {(factory.__module__, factory.__name__) for factory in factories()}
    assert len(found) > 50
    apart = {(module, name) for module, name in found if module in APART}
    assert {module for module, _ in apart} == APART.keys()
    for form, drivers in split_kernels.DRIVERS.items():
        if reason := form.engine.missing():
            split = {(f.__module__, f.__name__) for f in (*drivers, *split_kernels.TILE_SUMS[form])}
            assert not split & listed, reason
            listed |= split | {(f.__module__, f.__name__) for f in split_kernels.PACKING}
    if not sums_words():
        assert BYTES not in listed
        listed.add(BYTES)
    assert found - apart == listed - {
        ("convalgos.cpu.runtime.jit", name)
        for name in ("of_borrowed", "of_threads", "table_address", "data_address")
    } - {("convalgos.cpu.runtime.array_calls", name) for name in ("array_call", "integer_call")} - {
        ("convalgos.cpu.filtering.small_windows", "filter_small"),
        ("convalgos.cpu.filtering.separable_calls", "filter_separable"),
    } - {("convalgos.cpu.filtering.small_rates", "filter_rates")} - {
        ("convalgos.cpu.runtime.record_launch", "launch_record")
    } - {("convalgos.cpu.runtime.recent_calls", "find_call")}


def test_filters_and_pooling_ask_for_listed_kernels():
    asked = [row for row in asked_for(ROOMS) if ".runtime." not in row[0]]  # but what starts threads
    assert {row[0].split(".")[2] for row in asked} >= {"filtering", "sliding", "pooling"}
    assert len(asked) > 100
    assert_listed(asked)


def test_nothing_else_is_compiled():
    """`compile_kernel` is called by `specialise`, and for what threads run, which is listed, too."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in Path(cpu.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if "compile_kernel(" in line and "def " not in line
    ]
    assert len(lines) == 6 and {line.partition(":")[0] for line in lines} == {"jit.py"}, lines


def test_the_set_is_small():
    """Of a dtype: about 1,350 kernels, and those for the channels and filters of groups, in three layouts."""
    usual, grouped = (len(kernel_set.kernels(["float32"], groups)) for groups in (False, True))
    assert 400 < usual < 1400
    assert grouped < 2650
    told = re.search(r"float32: (\d+) kernels", (Path(__file__).parents[1] / "docs/install.md").read_text())
    assert vector_bytes() < 64 or abs(usual - int(told[1])) < 50  # of AVX-512
    assert len(set(kernel_set.kernels())) == len(kernel_set.kernels())


def test_warm_compiles_what_is_missing_and_tells_what_there_is(tmp_path, monkeypatch):
    kernels = kernel_set.kernels(["float32"], groups=False)
    few = [k for k in kernels if k.name in ("pack", "flush")][:2]
    monkeypatch.setattr(kernel_set, "kernels", lambda dtypes, groups: few)
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    for processes, new in (2, len(few)), (1, 0):
        result = CliRunner().invoke(main, ["warm", "--processes", str(processes)])
        assert result.exit_code == 0, result.output
        assert f"{len(few)} kernels in" in result.output
        assert f", {new} new files" in " ".join(result.output.split())
