"""Kernels come from a countable set: no size, stride, dilation or padding needs one of its own."""

import importlib
import inspect
import json
import os
import subprocess
import sys

from click.testing import CliRunner

from convalgos import warm
from convalgos.cli import main

# Plans problems of random sizes without compiling anything: kernels that are asked for are noted instead.
PROGRAM = """
import json, random, sys
from convalgos import ConvProblem, api, machine, select
from convalgos.algorithm import Unsupported
from convalgos.cpu import jit

def note(function, result=None):
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    parameters = dict(zip(function.__code__.co_freevars, inside))
    asked.add((function.__module__, *sorted((k, v) for k, v in parameters.items() if isinstance(v, int)),
               function.__qualname__.split(".")[0]))
    return 1 << 20  # no address: nothing is run

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
        groups=groups, dtype=r.choice(("float32", "float32", "float64")),
        layout=r.choice(("channels_first", "channels_first", "channels_last")),
        direction=r.choice(("forward", "forward", "backward_data", "backward_weights")),
    )

asked, count = set(), 0
select.rank(ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3 p1"), "cpu")  # the figures of the machine are found
jit.compile_kernel = note
r = random.Random(13)
while count < int(sys.argv[1]):
    try:
        p = problem(r)
        if p.is_empty:
            continue
        api.plan(p, workspace_limit=1 << 26)
    except (ValueError, Unsupported):
        continue
    count += 1
    if count % 8 == 0:  # by all, too
        for algorithm in select.algorithms("cpu"):
            if ".fft." not in algorithm.id and algorithm.why_not(p) is None:
                algorithm.serve(p)
print(json.dumps(sorted(map(list, asked), key=str)))
"""


def asked_for(problems: int) -> list[tuple]:
    """Kernels that plans of random problems ask for: (module, (parameter, value), ..., factory)."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(problems)],
        env=os.environ, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return [tuple(row) for row in json.loads(found.stdout.splitlines()[-1])]


def test_2000_random_problems_need_no_kernel_that_is_not_listed():
    listed: dict[tuple[str, str], list[dict[str, int]]] = {}
    for k in warm.kernels():
        names = inspect.signature(getattr(importlib.import_module(k.module), k.name)).parameters
        listed.setdefault((k.module, k.name), []).append(dict(zip(names, k.parameters, strict=True)))
    asked = asked_for(2000)
    assert len({(module, name) for module, *_, name in asked}) > 30
    assert len(asked) < 800  # 1,568 where code depended on sizes
    for module, *parameters, name in asked:
        same = listed[module, name]
        values = {key: value for key, value in parameters if key in same[0]}  # those that its code depends on
        assert any(values.items() <= k.items() for k in same), (module, name, parameters)


def test_the_set_is_small():
    """Of a dtype: about 500 kernels, and those for the channels and filters of groups."""
    usual, grouped = (len(warm.kernels(["float32"], groups)) for groups in (False, True))
    assert 400 < usual < 600
    assert grouped < 1800
    assert len(set(warm.kernels())) == len(warm.kernels())


def test_warm_compiles_what_is_missing_and_tells_what_there_is(tmp_path, monkeypatch):
    kernels = warm.kernels(["float32"], groups=False)
    few = [k for k in kernels if k.name in ("pack", "flush")][:2]
    monkeypatch.setattr(warm, "kernels", lambda dtypes, groups: few)
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    for new in (len(few), 0):
        result = CliRunner().invoke(main, ["warm", "--processes", "2"])
        assert result.exit_code == 0, result.output
        assert f"{len(few)} kernels in" in result.output
        assert f", {new} of them new" in " ".join(result.output.split())
