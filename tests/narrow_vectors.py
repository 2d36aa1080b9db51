"""Programs of tests on the vectors of a narrower machine, which NUMBA_CPU_NAME says it is."""

import os
import subprocess
import sys
from pathlib import Path

BEGIN = """
from helpers import check
from convalgos import ConvProblem
from convalgos.cpu.vectors import simd

assert simd.lanes(4) == 8
"""


def run_on_haswell(program: str, features: str = "") -> None:
    """Run a program on AVX2 in a process of its own; `check` and `ConvProblem` are there.

    features: that `has` is to know of, as LLVM names them: "+f16c".
    """
    paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": features,
    }
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
