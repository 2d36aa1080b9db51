"""What a first call compiles: the kernels that it runs, and no others."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("llvmlite", reason="compiles kernels")

# Every kernel that is compiled is made to note that it runs, at the address of a word of its own.
PROGRAM = """
import json, re, sys
import numpy as np, convalgos as ca
from convalgos.cpu.runtime import jit

ran, names, real = np.zeros(100, np.int64), [], jit.lower

def noted(function, returns):
    name, text = real(function, returns)
    address = ran.ctypes.data + 8 * len(names)
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    names.append(f"{function.__module__}.{function.__name__}{closed}".removeprefix("convalgos.cpu."))
    begin = "\\nvariables:\\n"
    text, found = re.subn(begin, f"{begin}  store i64 1, ptr inttoptr (i64 {address} to ptr)\\n", text)
    assert found == 1
    return name, text

def random(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)

jit.lower = noted
y = CALL
before = len(names)
again = CALL
print(json.dumps({
    "ran": {name: bool(word) for name, word in zip(names, ran)}, "compiled": len(names),
    "again": len(names) - before, "same": bool(np.array_equal(y, again)),
    "loaded": sorted({"numba", "torch", "scipy", "pyfftw"} & sys.modules.keys()),
}))
"""
IMAGE, FILTER = "random(1, 64, 56, 56)", "random(64, 64, 3, 3)"
CALLS = {  # how -> the most kernels that it may need
    f"ca.conv({IMAGE}, {FILTER}, padding=1)": 19,
    f"ca.conv_backward_weights({IMAGE}, {IMAGE}, (64, 64, 3, 3), padding=1)": 16,
    "ca.conv(random(1, 1, 100_000), random(1, 1, 1001), padding=500)": 10,
}
LATER = {
    "runtime.thread_pool.work[]",
    "runtime.thread_pool.stop[]",  # workers may come too late, and end with the process
    "runtime.array_calls._call_arrays[]",  # filters that are prepared, or known from a call before
}


@pytest.mark.parametrize("call", CALLS)
def test_a_first_call_compiles_what_it_runs(call, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CALL", call)],
        env={**os.environ, "CONVALGOS_CACHE_DIR": str(tmp_path), "CONVALGOS_WISDOM": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, ran in found["ran"].items() if not ran} <= LATER
    assert 5 <= found["compiled"] <= CALLS[call], found["ran"]
    assert found["again"] == 0 and found["same"]
    assert found["loaded"] == []
