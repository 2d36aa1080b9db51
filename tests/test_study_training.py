"""The study of training: its networks are those published, stages add up, and counted memory is right."""

import pytest

pytest.importorskip("torch", reason="needs torch")

from torch import nn

from convalgos.core.problem import ConvProblem
from convalgos.select.measure import backends
from convalgos.studies.network_training import answers
from convalgos.studies.network_training.layer_efficiency import PASSES, LayerUse, Metered, measure_layer
from convalgos.studies.network_training.memory import layer_memory, problem_of, traced
from convalgos.studies.network_training.networks import NETWORKS, TrainedNetwork
from convalgos.studies.network_training.stages import Training
from convalgos.studies.network_training.words import STAGES
from convalgos.studies.study import Finding, NotRun, Part, StudySetting
from convalgos.studies.training import TrainingStudy
from convalgos.tools.bench.suites import suite

PARAMETERS = {"AlexNet": 60_965_224, "VGG-16": 138_357_544, "ResNet-50": 25_557_032, "U-Net": 31_030_658}


def tiny():
    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5))


TINY = TrainedNetwork("tiny", tiny, (3, 8, 8), 2, "resnet50", classes=5)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_networks_are_those_published(network):
    layers = layer_memory(network, 2, "cpu", ())
    assert sum(layer.weights for layer in layers) == 4 * PARAMETERS[network.name]
    if network.suite != "unet":  # whose suite has convolutions without padding
        problems = {problem_of(module, (1, *x.shape[1:])) for module, x, _ in traced(network, 2)}
        expected = {
            layer.problem.replace(x_shape=(1, *layer.problem.x_shape[1:])) for layer in suite(network.suite)
        }
        assert expected <= problems


def test_memory_is_counted_from_the_shapes():
    conv, relu, pool, flat, dense = layer_memory(TINY, 2, "cpu", ("auto", "cpu.im2col.own"))
    assert (conv.name, conv.weights, conv.maps) == ("Conv2d 4x3x3x3", 4 * (108 + 4), 4 * 2 * 4 * 64)
    assert relu.maps == flat.maps == 0 and pool.maps == 4 * 2 * 4 * 16
    assert (dense.weights, dense.maps) == (4 * (320 + 5), 4 * 2 * 5) and not dense.workspaces
    assert conv.workspaces["cpu.im2col.own"] > 0


@pytest.mark.parametrize("channels_last", [False, True])
def test_both_libraries_train_alike(channels_last):
    losses = {}
    for library in ("torch", "convalgos"):
        training = Training(TINY, 2, "cpu", channels_last=channels_last)
        losses[library] = [training.step(library) for _ in range(3)]
        assert [len(stages) for stages in training.samples[library]] == [len(STAGES)] * 3
        assert sum(training.median_step(library)) == sorted(map(sum, training.samples[library][1:]))[1]
    assert losses["torch"] == pytest.approx(losses["convalgos"], rel=1e-5)
    assert len(set(losses["torch"])) == 3, "each step has another batch and other weights"


def test_efficiency_is_flops_over_the_peak():
    problem = ConvProblem.parse("n1 c8 h8 w8 k8 r3 s3 p1")
    uses, missing = measure_layer(problem, backends.CPU, 1e11, 2, rounds=1, deadline=0.0)
    assert {(use.library, use.pass_) for use in uses} >= {("convalgos", p) for p in PASSES}
    assert len(uses) + 2 * len(missing) == 6
    for use in uses:
        assert use.efficiency * use.seconds * 1e11 == pytest.approx(problem.flops * len(PASSES[use.pass_]))
        assert 0 < use.busy < 2 and (use.workspace_bytes is None) == (use.library == "torch")


def test_a_call_that_sleeps_keeps_no_core_busy():
    import time

    metered = Metered(lambda: time.sleep(0.02), 1)
    metered()
    assert metered.busy < 0.5


def test_libraries_are_compared_where_both_serve():
    def use(library, pass_, seconds):
        return LayerUse(library, pass_, seconds, 0.5, 1.0, 0)

    uses = [
        [use("cuDNN", "forward", 1.0), use("im2col+GEMM", "forward", 2.0), use("cuDNN", "backward", 9.0)],
        [use("cuDNN", "forward", 1.0), use("im2col+GEMM", "forward", 8.0)],
    ]
    assert answers.mean_ratio(uses, "im2col+GEMM", "cuDNN") == pytest.approx(4)
    assert answers.mean_ratio(uses, "torch", "cuDNN") is None


def test_the_stages_of_the_study_add_up(monkeypatch):
    monkeypatch.setattr(backends.CPU, "idle", 0.0)
    monkeypatch.setattr(backends.CPU, "warm_up", 0.0)
    monkeypatch.setattr(TrainingStudy, "networks", lambda self: (TINY,))
    monkeypatch.setattr(TrainingStudy, "layers", {"mobilenet_v2": ("pw320_1280_7",)})
    monkeypatch.setattr(TrainingStudy, "quick_batches", (1,))
    given = list(TrainingStudy().parts(StudySetting(quick=True, threads=2)))
    stages, flow, layers, networks, efficiency, batches = (part for part in given if isinstance(part, Part))
    for row in stages.rows:
        *seconds, total, rate = row[3:]
        assert total == pytest.approx(sum(seconds)) and rate == pytest.approx(1e3 * row[2] / total)
    assert [row[1] for row in stages.rows] == ["torch, channels first", "convalgos, channels first"]
    for before, after in zip(flow.rows, flow.rows[1:], strict=False):
        assert after[2] == (before[3] if after[0] == before[0] else 0)
    assert networks.rows[0][2] == pytest.approx(sum(row[2] for row in layers.rows))
    assert [row[3] for row in efficiency.rows] == [*PASSES] and len(batches.rows) == len(PASSES)
    assert len([f for f in given if isinstance(f, Finding)]) == 3
    assert any(isinstance(n, NotRun) and "cuDNN" in n.what for n in given)
