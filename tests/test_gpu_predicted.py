"""The predictions beside the aims of a check of a GPU, without a device."""

import pytest

from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.vendor import cost
from convalgos.tools.bench.suites import suites
from convalgos.tools.gpu_check import predicted
from convalgos.tools.gpu_check.targets import targets_reached

SOME = [*suites()["vgg16"][2:4], *suites()["mobilenet_v2"][1:2], *suites()["mamba"]]


@pytest.mark.parametrize("name", ["sm_90", "sm_80"])
def test_every_aim_stands_beside_a_prediction_or_has_no_model(name):
    found = {t.what: t for t in predicted.predicted(gpu.named(name), SOME)}
    known = {t.what for t in targets_reached([], [], [], [])}
    assert found.keys() - known == {f"long causal 1-D, 1k to 128k, beside {predicted.FFTS}"}
    winograd = found["Winograd, 3x3 with C, K >= 64 and N <= 8"]
    assert winograd.count == 2 and winograd.reached > 1
    assert found["depthwise 3x3, float16"].count == 1
    assert 0 < found["depthwise 1-D of at most 5 taps: share of a copy's bandwidth"].reached < 1
    assert found["tf32, channels last: the pick"].reached >= 1, "cuDNN itself may be the pick"
    assert {t.what for t in found.values() if t.reached is None} >= {
        "host time of a call, our own",
        "host time of a captured call",
    }


def test_cudnn_takes_what_was_recorded_where_it_was():
    h200, a100 = (gpu.named(name).figures for name in ("sm_90", "sm_80"))
    depthwise = ConvProblem.parse("n8 c384 h14 w14 k384 r3 s3 p1 groups384 float16")
    assert predicted.cudnn_seconds(depthwise, h200) == pytest.approx(4e-6)
    assert predicted.cudnn_seconds(depthwise, a100) == cost.predicted_seconds(depthwise, a100)
    signal = ConvProblem.parse("n4 c64 w131072 k64 s131072 p131071:0 groups64")
    assert predicted.fft_seconds(signal, h200) > signal.bytes / h200.bandwidth


def test_the_command_prints_a_line_for_each_aim(capsys, monkeypatch):
    monkeypatch.setattr(predicted, "suites", lambda: {"some": SOME})
    predicted.main([])
    first, _, head, *lines = capsys.readouterr().out.strip().splitlines()
    assert first == "predicted on sm_90 (nothing measured)" and head.split()[-3:] == [
        "predicted",
        "furthest",
        "behind",
    ]
    assert len(lines) > 30 and any(line.startswith("host time") and "no model" in line for line in lines)
    assert any(line.startswith("strict float32") and ">= 1.6x" in line for line in lines)
    with pytest.raises(SystemExit):
        predicted.main(["sm_75"])
