"""The first call of a process in an empty cache folder: compiling, planning and all that is imported."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import convalgos

CALLS = {  # what is called -> how, with `random`, an array of a shape
    "1x1": "ca.conv(random(1, 64, 56, 56), random(64, 64, 1, 1))",
    "3x3": "ca.conv(random(1, 64, 56, 56), random(64, 64, 3, 3), padding=1)",
    "3x3 float16": (
        "ca.conv(random(1, 64, 56, 56).astype('f2'), random(64, 64, 3, 3).astype('f2'), padding=1)"
    ),
    "3x3 depthwise": "ca.conv(random(1, 64, 56, 56), random(64, 1, 3, 3), padding=1, groups=64)",
    "3x3 backward_weights": (
        "ca.conv_backward_weights(random(1, 64, 56, 56), random(1, 64, 56, 56), (64, 64, 3, 3), padding=1)"
    ),
    "FIR filter": "ca.conv(random(1, 1, 100_000), random(1, 1, 1001), padding=500)",
}
PROGRAM = """
import json, sys, time
import numpy as np, convalgos as ca
def random(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)
began = time.perf_counter()
{}
print(json.dumps(time.perf_counter() - began))
"""


class FirstCall:
    params = (list(CALLS),)
    param_names = ("call",)

    def called(self, call):
        """(seconds, kernels that were compiled)."""
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ,
                "CONVALGOS_CACHE_DIR": folder,
                "CONVALGOS_WISDOM": folder,
                "PYTHONPATH": str(Path(convalgos.__file__).parents[1]),
            }
            program = [sys.executable, "-c", PROGRAM.format(CALLS[call])]
            done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
            kernels = [p for p in Path(folder, "kernels").rglob("*") if p.suffix in (".kernel", ".nbc")]
            return json.loads(done.stdout.splitlines()[-1]), len(kernels)

    def track_first_call_seconds(self, call):
        """The least of three calls, each in a process and a cache folder of its own."""
        return min(self.called(call)[0] for _ in range(3))

    track_first_call_seconds.unit = "s"

    def track_first_call_kernels(self, call):
        """Kernels that it compiles."""
        return self.called(call)[1]

    track_first_call_kernels.unit = "kernels"
