"""The study of layer functions: every library computes the same, and ratios and floors are what they say."""

import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from convalgos.core.errors import Unsupported, missing
from convalgos.cpu.runtime import mkl
from convalgos.select.measure.timing import Timing
from convalgos.studies import chainer_process, chainer_runner, functions, gpu_functions
from convalgos.studies.layer_functions import FUNCTIONS, LayerData, LayerSizes, work_of
from convalgos.studies.library_functions import convalgos_calls, mkl_calls, torch_calls
from convalgos.studies.numba_functions import numba_calls
from convalgos.studies.numpy_functions import numpy_calls
from convalgos.studies.study import NotRun, StudySetting

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = LayerSizes(2, 6, 9, 5, 3, 10, 7)  # odd, so that windows leave a row of the map over


def interpreted(data, threads=1):
    return numba_calls(data, lambda loops: loops)


@pytest.fixture(scope="module")
def data():
    return LayerData(SIZES)


def test_all_libraries_compute_the_same_functions(data):
    right = numpy_calls(data)
    assert tuple(right) == FUNCTIONS
    others = {"Numba": interpreted(data), "convalgos": convalgos_calls(data)}
    others |= {} if mkl.why_no_mkl() else {"MKL": mkl_calls(data)}
    others |= {} if missing("torch") else {"torch": torch_calls(data, 1)}
    for library, calls in others.items():
        assert calls.keys() <= right.keys()
        for function, call in calls.items():
            functions._compare(f"{library} {function}", call(), np.array(right[function]()))
    with pytest.raises(ValueError, match="differs"):
        functions._compare("wrong", right["ReLU"]() + 0.1, right["ReLU"]())


def test_floors_are_of_the_definition(data):
    work = work_of(data)
    assert work.keys() == set(FUNCTIONS)
    assert work["convolution"].flops == 2 * 2 * 5 * 9 * 9 * 6 * 9
    assert work["convolution"].moved == 4 * (2 * 6 * 81 + 5 * 6 * 9 + 2 * 5 * 81)
    assert work["ReLU"].floor(1e9, 1e6) == 8 * 2 * 6 * 81 / 1e6


def test_the_study_sets_every_library_beside_numpy(monkeypatch, data):
    monkeypatch.setattr(functions, "_numba", interpreted)
    order = {"NumPy": 8e-3, "Numba": 4e-3, "MKL": 4e-3, "convalgos": 2e-3, "torch": 1e-3}

    def timed(calls, **_):
        for call in calls.values():
            call()
        return {name: Timing((order[name],)) for name in calls}

    monkeypatch.setattr(functions, "interleave", timed)
    monkeypatch.setattr(functions.FunctionsStudy, "quick_sizes", SIZES)
    monkeypatch.setenv(chainer_process.VARIABLE, sys.executable)
    answers = list(functions.STUDY.parts(StudySetting(quick=True)))
    told = [a.needs for a in answers if isinstance(a, NotRun)]
    assert any("No module named 'chainer'" in needs for needs in told)
    table, left = (a for a in answers if hasattr(a, "rows"))
    assert set(table.values("NumPy / convalgos")) == {4.0, None}
    assert left.values("GPU over NumPy")[0] / left.values("GPU over the fastest")[0] in (4.0, 8.0)


def test_chainer_is_asked_for_every_function(data):
    with pytest.raises(Unsupported, match="a working Chainer"):
        chainer_process.run_chainer("/no/python", data, threads=1, rounds=1, seconds=5)
    assert tuple(chainer_runner.chainer_calls(data.arrays(), MagicMock())) == FUNCTIONS
    calls = []
    assert len(chainer_runner.sampled(lambda: calls.append(1), 2)) == 6 and len(calls) == 8


def test_on_a_gpu_every_function_has_its_lead(monkeypatch, data):
    """The CPU stands in for the device: what runs there is the same."""
    monkeypatch.setattr(gpu_functions.devices, "current_device", lambda kind: "cpu")

    def timed(calls, **_):
        assert all(call() is not None for call in calls.values())
        return dict.fromkeys(calls, Timing((1e-3,)))

    monkeypatch.setattr(gpu_functions, "interleave", timed)
    part = gpu_functions.gpu_part(data, {"NumPy": dict.fromkeys(FUNCTIONS, 4e-3)}, StudySetting())
    assert part.values("convalgos")[:4] == [1e3, 1e3, 1e3, None]
    if not missing("torch"):
        assert part.values("over NumPy") == [4.0] * len(FUNCTIONS)
