"""The study of neurons: every library and cut gives the same layers, and what is told of them is right."""

import numpy as np
import pytest

from convalgos.select.measure import backends
from convalgos.studies.neuron_layers import answers, decomposition, libraries, naive
from convalgos.studies.neuron_layers.decomposition import Decomposition, NeuronLayer, naive_layer
from convalgos.studies.neuron_layers.forms import FORMS, LINEAR, RBF, SUPPORT, NeuronData, reference_layer
from convalgos.studies.neuron_layers.whole_layers import whole_layers
from convalgos.studies.neurons import NeuronsStudy
from convalgos.studies.study import Finding, NotRun, Part, StudySetting

DATA = NeuronData.random(24, 16, 20, 3)
HERE = [library for library in libraries.LIBRARIES if not libraries.why_absent(library)]


@pytest.fixture
def loops_of_python(monkeypatch):
    """Loops stay as they are written: Numba would compile for seconds."""
    monkeypatch.setattr(libraries, "fast_loops", lambda: naive.naive_linear)
    monkeypatch.setattr(decomposition, "naive_loops", lambda form, _: naive.LOOPS[form])


@pytest.mark.parametrize("form", FORMS)
def test_every_way_gives_the_same_layer(form, loops_of_python):
    expected = reference_layer(form, DATA)
    cuts = (Decomposition(8, 2), Decomposition(8, 1, contiguous=False), Decomposition(24, 2, reused=False))
    layers = {f"{lib} {cut}": NeuronLayer(form, DATA, lib, cut) for lib in HERE for cut in cuts}
    layers["naive"] = naive_layer(form, DATA, compiled=False)
    for name, layer in layers.items():
        np.testing.assert_allclose(layer(), expected, rtol=0, atol=2e-6 * abs(expected).max(), err_msg=name)


def test_results_go_where_the_cut_says():
    kept, new = (NeuronLayer(LINEAR, DATA, "convalgos", Decomposition(8, 1, reused=r)) for r in (True, False))
    assert kept() is kept() and new() is not new()


def test_numba_compiles_the_loops():
    if libraries.why_absent("Numba"):
        pytest.skip("needs Numba")
    y = NeuronLayer(LINEAR, DATA, "Numba", Decomposition(12, 2))()
    np.testing.assert_allclose(y, reference_layer(LINEAR, DATA), atol=1e-5)


def test_a_whole_layer_is_the_product_without_its_bias():
    for name, call in whole_layers(DATA, backends.CPU).items():
        np.testing.assert_allclose(call(), DATA.x @ DATA.w.T, atol=1e-5, err_msg=name)


def test_flops_count_both_products_of_support_vectors():
    assert DATA.flops(LINEAR) == DATA.flops(RBF) == 2 * 24 * 16 * 20
    assert DATA.flops(SUPPORT) == 2 * 24 * (16 * 20 + 20 * 3)


def test_the_study_recommends_the_fastest(loops_of_python, monkeypatch):
    monkeypatch.setattr(backends.CPU, "idle", 0.0)
    monkeypatch.setattr(backends.CPU, "warm_up", 0.0)
    study = NeuronsStudy()
    sizes = {"vectors": 24, "dimension": 16, "neurons": 20, "outputs": 3, "quick_loads": (8, 12)}
    for name, value in sizes.items():
        monkeypatch.setattr(NeuronsStudy, name, value)
    given = list(study.parts(StudySetting(quick=True, threads=2)))
    loads, memory, threads, gains, whole = (part for part in given if isinstance(part, Part))
    assert len(loads.rows) == 2 * 2 * len(HERE) and len(memory.rows) == 4 * len(HERE)
    assert len(threads.rows) == 2 * len(HERE) and {row[1] for row in threads.rows} == {1, 2}
    for form, by, milliseconds, rate, _, over, _ in gains.rows:
        assert rate == pytest.approx(DATA.flops(form) / milliseconds / 1e6)
        if over is not None:
            naive_ms = next(row[2] for row in gains.rows if row[:2] == (form, "naive, Numba"))
            assert over == pytest.approx(naive_ms / milliseconds), by
    of_rbf = [row for row in gains.rows if row[0] == RBF and "naive" not in row[1]]
    fastest = min(of_rbf, key=lambda row: row[2])
    claim, recommended = (finding for finding in given if isinstance(finding, Finding))
    assert "100 to 250" in claim.claim and f"RBF: {fastest[1]}, " in recommended.here
    assert len(whole.rows) == 2 and any(isinstance(n, NotRun) and "GPU" in n.needs for n in given)


def test_a_claim_holds_by_the_loops_of_numba():
    cut = Decomposition(8, 2)
    finals = [answers.TriedLayer(form, "MKL", cut, 1.0) for form in FORMS]
    naive = ((answers.STRIDED, 150.0), (answers.PYTHON, 1e4))
    slow = {(form, by): seconds for form in FORMS for by, seconds in naive}
    finding = answers.gain_finding(finals, slow)
    assert "linear by MKL on 2 threads (Numba, strided 150; Python 10,000)" in finding.here
    assert finding.holds is True
    assert answers.gain_finding(finals, {key: s / 2 for key, s in slow.items()}).holds is False
