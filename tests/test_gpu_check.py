"""The command that checks a machine with a GPU, run on the stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_shim import device as shim

from convalgos import gpu_check
from convalgos.gpu.device import use
from convalgos.gpu.direct import Direct, DirectPlan

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
FEW = ("n2 c3 h7 w5 k17 r3 s3 p1", "n1 c4 w50 k4 s4 p3:0 groups4", "n0 c3 h5 w5 k4 r3 s3")


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(gpu_check, "AWKWARD", FEW)
    monkeypatch.setattr(gpu_check, "suites", lambda: {"none": ()})
    with use(shim.ShimDevice()) as device:
        yield device


def test_all_algorithms_pass_and_the_report_says_so(stand_in, tmp_path, capsys):
    assert gpu_check.main(["--out", str(tmp_path), "--no-times"]) == 0
    assert "0 wrong" in capsys.readouterr().out
    record = json.loads((tmp_path / "gpu-h200-132sm.json").read_text())
    ids = {r["algorithm"] for r in record["results"]}
    assert {"gpu.direct", "gpu.depthwise", "gpu.im2col", "gpu.winograd.f4x3", "gpu.implicit_gemm.tf32"} <= ids
    assert all(r["error"] <= r["bound"] for r in record["results"])
    assert "0 wrong" in (tmp_path / "gpu-h200-132sm.md").read_text()


def test_what_is_wrong_is_found_and_named(stand_in, tmp_path, monkeypatch, capsys):
    def run(self, x, w, bias, activation, y, workspace):
        y.fill(0)

    monkeypatch.setattr(DirectPlan, "run", run)
    assert gpu_check.main(["--out", str(tmp_path), "--no-times"]) == 1
    assert "WRONG gpu.direct on n2 c3 h7 w5" in capsys.readouterr().out
    assert "- WRONG: gpu.direct" in (tmp_path / "gpu-h200-132sm.md").read_text()


def test_times_and_failures_come_into_the_table(stand_in, monkeypatch):
    layer = gpu_check.Layer("net", "conv1", gpu_check.ConvProblem.parse(FEW[0]))
    monkeypatch.setattr(gpu_check, "AWKWARD", ())

    def broken(self, problem):
        raise RuntimeError("does not launch")

    monkeypatch.setattr(Direct, "plan", broken)
    calls = []

    def timer(call):
        calls.append(call())
        return 2e-6, 5e-6

    results = gpu_check.check(stand_in, [layer], timer, 60)
    assert calls and any(r.failure == "RuntimeError: does not launch" for r in results)
    text = gpu_check.table(results, stand_in.figures)
    assert "| net/conv1 |" in text and " 2.0 | 5.0 |" in text and "does not launch" in text


def test_an_unknown_suite_is_refused(stand_in, capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["nosuch"])
    assert "no suite nosuch; there are none" in capsys.readouterr().err


ALONE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split(","):
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Hide())
from cuda_shim import device as shim

from convalgos import gpu_check
from convalgos.gpu.device import use

gpu_check.AWKWARD = ("n2 c3 h7 w5 k4 r3 s3 p1",)
gpu_check.suites = lambda: {"none": ()}
with use(shim.ShimDevice()):
    sys.exit(gpu_check.main(["--out", sys.argv[1], "--no-times"]))
"""


def test_numpy_and_cupy_are_enough(tmp_path):
    """Nothing else that the package depends on may be needed on the machine of the GPU."""
    hidden = "numba,llvmlite,scipy,torch,pyfftw,rich,click,platformdirs,mkl,onnx,onnxruntime,ml_dtypes"
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path), hidden],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert " 0 wrong" in done.stdout
