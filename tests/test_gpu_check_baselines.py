"""What our times stand beside: torch, what was recorded, and cuDNN's front end out of a folder."""

import base64
import hashlib
import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gpu_check_stand_in import Simulated

import convalgos as ca
from convalgos.core.errors import Unsupported
from convalgos.cpu.reference import answer
from convalgos.select.measure.accuracy import repeating_arrays
from convalgos.tools.bench.suites import suites
from convalgos.tools.gpu_check import __main__ as command
from convalgos.tools.gpu_check import baselines, targets, timing
from convalgos.tools.gpu_check.cases import Case
from convalgos.tools.gpu_check.timing import LayerTimes, Timed

VGG = ca.ConvProblem.parse("n4 c64 h224 w224 k64 r3 s3 p1")

# --- torch -----------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("direction", ca.core.problem.DIRECTIONS)
@pytest.mark.parametrize("layout", ca.core.problem.LAYOUTS)
def test_torch_computes_the_same_convolution(layout, direction):
    texts = (
        "n2 c6 h9 w8 k4 r3 s2 p1 stride2 dilation2 groups2",
        "n2 c3 w20 k3 s5 p2 groups3",
        "n1 c2 d4 h5 w6 k3 t2 r3 s3 p1",
        "n1 c2 h6 w7 k3 r3 s3 p2:1,0:1",
    )
    for text in texts:
        problem = ca.ConvProblem.parse(text).replace(layout=layout, direction=direction)
        x, w = repeating_arrays(problem)
        even = all(low == high for low, high in problem.padding)
        if not even and direction != "forward":
            with pytest.raises(Unsupported, match="paddings that differ"):
                baselines.torch_call("cpu", problem, x, w)
            continue
        found = baselines.torch_call("cpu", problem, x, w)().numpy().reshape(problem.result_shape)
        right = answer(problem, problem.logical(0, x), problem.logical(1, w))
        assert np.abs(found - right).max() < 1e-5 * np.abs(right).max(), problem


# --- which of them ---------------------------------------------------------------------------------


def timed(*rows, others=None):
    rows = tuple(Timed(name, (us * 1e-6,), 1e-6, 0, 1e-5) for name, us in rows)
    return LayerTimes(Case("vgg16", rows[0].algorithm, VGG), "gpu.direct", rows, others or {})


def test_the_best_baseline_there_is_counts_and_is_named():
    ours = ("gpu.direct", 100)
    cudnn = timed(("gpu.cudnn.eng1", 50), ours, others={"torch": 30e-6})
    torch = timed(ours, others={"torch": 30e-6})
    alone = timed(ours)
    assert cudnn.baseline == ("gpu.cudnn.eng1", pytest.approx(50e-6))
    assert torch.baseline == ("torch", 30e-6)
    name, seconds = alone.baseline
    assert name == "recorded on an H200" and 1e-4 < seconds < 1e-2
    strict, *_ = targets.targets_reached([cudnn, alone], [], [], [])
    assert strict.beside == "cuDNN 1, recorded on an H200 1" and strict.count == 2


def test_with_nothing_installed_targets_are_timed_beside_what_was_recorded():
    """On the suites' layers, of which nearly all are known."""
    layers = [layer for found in suites().values() for layer in found]
    timed = [
        LayerTimes(Case(la.suite, la.name, p), "gpu.x", (Timed("gpu.x", (1e-5,), 1e-5, 0, 1e-5),))
        for la in layers
        for kind in ({"compute_dtype": "tf32"}, {"dtype": "float16"}, {})
        for layout in ca.core.problem.LAYOUTS
        for p in (la.problem.replace(layout=layout, **kind),)
    ]
    assert sum(la.baseline is not None for la in timed) > 0.9 * len(timed)
    reached = {t.what: t.reached for t in targets.targets_reached(timed, [], [], [])}
    for what in ("strict float32, channels first: the pick", "depthwise 31x31, float32",
                 "tf32, channels last: our own", "float16, channels first: the pick"):  # fmt: skip
        assert reached[what] is not None, what


def test_torch_is_asked_where_cudnn_is_not_and_not_for_what_takes_for_ever(monkeypatch):
    asked = []

    def torch_call(name, problem, x, w):
        asked.append(problem)
        return lambda: None

    monkeypatch.setattr(timing, "torch_call", torch_call)
    arrays = np.zeros(1), np.zeros(1)
    assert set(timing._torch_peer(Simulated(), VGG, *arrays)) == {"torch"} and asked == [VGG]
    endless = ca.ConvProblem.parse("n16 c768 w131072 k768 s131072 p131071 groups768")
    assert timing._torch_peer(Simulated(), endless, *arrays) == {} and asked == [VGG]
    monkeypatch.setattr(timing, "torch_call", lambda *_: 1 / 0)  # as where torch has no such device
    assert timing._torch_peer(Simulated(), VGG, *arrays) == {}


# --- the wheel -------------------------------------------------------------------------------------

TAGS = "py3-none-any"


def wheel(folder, tags=TAGS, spoil=None, name="nvidia-cudnn-frontend", version="1.2.3"):
    path = folder / f"nvidia_cudnn_frontend-1.2.3-{tags}.whl"
    info = "nvidia_cudnn_frontend-1.2.3.dist-info"
    files = {
        "cudnn/__init__.py": b"answer = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nwords\n".encode(),
    }
    lines = [
        f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(d).digest()).decode().rstrip('=')},{len(d)}"
        for n, d in files.items()
    ]
    if spoil:
        files |= spoil
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in files.items():
            archive.writestr(entry, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return path


def test_the_front_end_comes_out_of_its_wheel(tmp_path, monkeypatch):
    wheel(tmp_path)
    target = tmp_path / "unpacked"
    assert baselines.unpack_wheels(tmp_path, target) == f"nvidia_cudnn_frontend-1.2.3-{TAGS}.whl"
    assert (target / "cudnn" / "__init__.py").read_text() == "answer = 42\n"
    monkeypatch.setenv(baselines.FOLDER, str(tmp_path))
    assert command._front_end(tmp_path / "again") == [
        f"cuDNN's front end is nvidia_cudnn_frontend-1.2.3-{TAGS}.whl"
    ]
    monkeypatch.delenv(baselines.FOLDER)
    assert command._front_end(tmp_path / "none") == []


@pytest.mark.parametrize(
    "told, arguments",
    [
        ("has no wheel of nvidia_cudnn_frontend for this Python, only", {"tags": "cp27-cp27m-win32"}),
        ("cudnn/__init__.py is not what its RECORD says", {"spoil": {"cudnn/__init__.py": b"other"}}),
        ("../evil.py is not what its RECORD says", {"spoil": {"../evil.py": b"other"}}),
        ("says that it is requests 1.2.3", {"name": "requests"}),
        ("says that it is nvidia-cudnn-frontend 9.9", {"version": "9.9"}),
    ],
)
def test_a_wheel_that_is_not_what_it_says_is_not_unpacked(tmp_path, told, arguments, monkeypatch):
    wheel(tmp_path, **arguments)
    target = tmp_path / "unpacked"
    with pytest.raises(ValueError) as raised:
        baselines.unpack_wheels(tmp_path, target)
    assert told in str(raised.value) and not target.exists()
    monkeypatch.setenv(baselines.FOLDER, str(tmp_path))
    (note,) = command._front_end(target)
    assert told in note, "the check goes on without it"


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / f"nvidia_cudnn_frontend-1.2.3-{TAGS}.whl").write_text("words")
    with pytest.raises(ValueError, match="is no wheel: BadZipFile"):
        baselines.unpack_wheels(tmp_path, Path(tmp_path / "unpacked"))
