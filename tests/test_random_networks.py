"""A few random networks of every kind in ways by chance, and what runs many more: tests/network_fuzz.py."""

import json

import network_fuzz
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from network_checks import check_network

from convalgos.network.executor import Executor

FLOAT32, QUANTISED = (6, 7, 13), (1, 8, 9, 17)  # concatenations, sums, slices, transposed layers; cheap ones


@pytest.mark.parametrize(
    ("number", "quantise"), [*((n, False) for n in FLOAT32), *((n, True) for n in QUANTISED)]
)
def test_random_networks(number, quantise):
    found = [*check_network(f"test {number}", quantise, ways=1)]
    assert not [(what, wrong) for what, wrong, _ in found if wrong]
    assert len(found) > 8, "there is no such model"


@pytest.mark.usefixtures("one_thread")
def test_random_module():
    pytest.importorskip("torch")
    from module_checks import check_module

    found = [*check_module("test 2", ways=1)]
    assert len(found) > 5 and not [(what, wrong) for what, wrong, _ in found if wrong]


def test_a_slip_of_one_element_is_found(monkeypatch):
    """By whatever way it comes; the judge itself is held to ONNX Runtime."""
    run = Executor.run

    def slipping(self, inputs):
        found = run(self, inputs)
        found[0].reshape(-1)[-1:] += 1
        return found

    monkeypatch.setattr(Executor, "run", slipping)
    found = [*check_network("test 6", False, ways=1)]
    assert found[0][1].startswith("run 0 by the reference: output 0, 1 of ")


def test_a_long_run_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    def some(seed, batch, networks):
        failures = [{"network": 7, "seed": seed}] * (batch == 1)
        return {"networks": 4, "checks": 9, "picks": {"A": batch}, "failures": failures, "seconds": 1.0}

    monkeypatch.setattr(network_fuzz, "run_batch", some)
    out = tmp_path / "found.json"
    assert network_fuzz.main(["--networks", "3", "--out", str(out)]) == 0
    assert network_fuzz.main(["--networks", "9", "--out", str(out), "--jobs", "2"]) == 1
    record = json.loads(out.read_text())
    assert (record["networks"], record["checks"], record["batches"], record["picks"]) == (12, 27, 3, {"A": 3})
    assert "12 of 9 networks, 1 failed" in capsys.readouterr().out
    assert network_fuzz.main(["--networks", "9", "--seed", "8", "--out", str(out)]) == 2
    assert "has seed 0, not 8" in capsys.readouterr().err
