"""What cuDNN is thought to take: the recorded times of an H200, and the model where there are none."""

import pytest

from convalgos.gpu import device as gpu
from convalgos.gpu.cudnn_recorded import is_recorded, recorded_seconds
from convalgos.problem import ConvProblem
from convalgos.suites import suites

LAYER = ConvProblem.parse("n64 c256 h56 w56 k256 r3 s3 p1")  # VGG's conv3_2
TYPES = {
    "float32": {"dtype": "float32"},
    "tf32": {"dtype": "float32", "compute_dtype": "tf32"},
    "float16": {"dtype": "float16"},
}


@pytest.mark.parametrize(
    "changes, microseconds",
    [
        ({"layout": "channels_last", "dtype": "float16"}, 315),
        ({"layout": "channels_first", "dtype": "float16"}, 489),
        ({"layout": "channels_last", "compute_dtype": "tf32"}, 574),
        ({"layout": "channels_last"}, 4955),
        ({"mode": "convolution"}, 4702.8),
        ({"direction": "backward_data"}, None),
        ({"dtype": "bfloat16"}, None),
        ({"x_shape": (63, 256, 56, 56)}, None),
    ],
)
def test_a_time_is_of_one_problem_precision_and_layout(changes, microseconds):
    found = recorded_seconds(LAYER.replace(**changes))
    assert found == (None if microseconds is None else pytest.approx(microseconds * 1e-6))


def test_every_layer_of_networks_was_timed():
    layers = [la for name, of in suites().items() if name not in ("longconv", "signal") for la in of]
    assert len(layers) > 100
    for layer in layers:
        for changes in TYPES.values():
            assert recorded_seconds(layer.problem.replace(**changes)) is not None, layer


def test_the_times_are_of_an_h200_alone():
    assert is_recorded(gpu.named("sm_90").figures)
    assert not is_recorded(gpu.named("sm_80").figures)
