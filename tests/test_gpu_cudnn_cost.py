"""What cuDNN is thought to take: the recorded times of an H200, and the model where there are none."""

from dataclasses import replace

import pytest

from convalgos.core.problem import ConvProblem
from convalgos.gpu import device as gpu
from convalgos.gpu.vendor import cost
from convalgos.gpu.vendor.recorded import is_recorded, recorded_seconds
from convalgos.select import choose
from convalgos.tools.bench.results import geometric_mean
from convalgos.tools.bench.suites import suites

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
    h200, other = gpu.named("sm_90").figures, replace(gpu.named("sm_90").figures, name="NVIDIA H200 NVL")
    assert is_recorded(h200) and is_recorded(replace(h200, name="NVIDIA H200"))
    assert not is_recorded(gpu.named("sm_80").figures) and not is_recorded(other)
    half = LAYER.replace(dtype="float16")
    assert cost.predicted_seconds(half, h200) == recorded_seconds(half)
    assert cost.predicted_seconds(half, other) == cost.model_seconds(half, other)
    small = ConvProblem.parse(
        "n8 c64 h56 w56 k64 r1 s1 channels_last float16"
    )  # 12 us with torch's host time
    assert cost.predicted_seconds(small, h200) == cost.model_seconds(small, h200) < recorded_seconds(small)


def large_layers():
    """(problem, recorded seconds) of dense layers on tensor cores, over 5 GFLOP."""
    for layer in (la for of in suites().values() for la in of):
        p = layer.problem
        if p.groups == 1 and p.C >= 16 and p.flops > 5e9:
            for layout in ("channels_first", "channels_last"):
                for changes in (TYPES["tf32"], TYPES["float16"]):
                    problem = p.replace(layout=layout, **changes)
                    if (known := recorded_seconds(problem)) is not None:
                        yield problem, known


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("kind", ["tf32", "float16"])
def test_the_model_is_near_the_recorded_times(kind, layout):
    machine = gpu.named("sm_90").figures
    ratios = {
        str(p): cost.model_seconds(p, machine) / known
        for p, known in large_layers()
        if p.layout == layout and (p.compute_dtype == "tf32") == (kind == "tf32")
    }
    assert len(ratios) > 20
    assert 0.95 < geometric_mean(ratios.values()) < 1.05
    assert {name: ratio for name, ratio in ratios.items() if not 1 / 1.3 < ratio < 1.3} == {}


@pytest.mark.parametrize(
    ("text", "tf32", "half"),
    [
        ("n8 c128 h28 w28 k128 r3 s3 p1", (19.4, 11.9), (16.1, 8.4)),
        ("n16 c32 h14 w14 k128 r5 s5 p2", (14.6, 8.1), (12.2, 7.0)),
        ("n8 c256 h56 w56 k64 r1 s1", (10.2, 8.7), (5.1, 5.1)),
    ],
)
def test_small_layers_it_was_not_fitted_to_are_near_what_the_gpu_alone_took(text, tf32, half):
    machine = gpu.named("sm_90").figures
    for name, times in (("tf32", tf32), ("float16", half)):
        for layout, us in zip(("channels_first", "channels_last"), times, strict=True):
            p = ConvProblem.parse(text).replace(layout=layout, **TYPES[name])
            assert 1 / 1.5 < cost.model_seconds(p, machine) * 1e6 / us < 1.5, p


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_depthwise_layers_take_what_the_gpu_alone_took(kind):
    machine = gpu.named("sm_90").figures
    layers = [la.problem.replace(**TYPES[kind]) for of in suites().values() for la in of]
    chosen = [p for p in layers if p.is_depthwise and p.ndim == 2 and max(p.kernel) <= 7]
    ratios = [cost.predicted_seconds(p, machine) / recorded_seconds(p) for p in chosen]
    assert len(ratios) > 10 and 0.85 < geometric_mean(ratios) < 1.2
    assert all(1 / 2 < ratio < 2 for ratio in ratios)


def best_of_ours(problem):
    chosen = gpu.named("sm_90")
    with gpu.use(chosen):
        found, _ = choose.survey(problem, "sm_90", chosen.figures)
    assert found and not any(c.id.startswith("gpu.cudnn") for c in found)
    return min(c.seconds for c in found)


def test_ours_is_picked_only_where_it_is_predicted_to_beat_what_cudnn_took():
    machine = gpu.named("sm_90").figures
    problems = [la.problem for of in suites().values() for la in of if not la.problem.is_depthwise]
    picked, wrong, by_model = 0, [], []
    for plain in problems:
        for changes in TYPES.values():
            for layout in ("channels_first", "channels_last"):
                problem = plain.replace(layout=layout, **changes)
                known = recorded_seconds(problem)
                if known is None:
                    continue
                ours = best_of_ours(problem)
                if ours < cost.predicted_seconds(problem, machine):
                    picked += 1
                    wrong += [str(problem)] if ours > known else []
    for problem, known in large_layers():  # and without knowing what was recorded
        ours = best_of_ours(problem)
        if cost.model_seconds(problem, machine) > ours > 1.1 * known:
            by_model.append(str(problem))
    assert picked > 100 and wrong == [] and by_model == []
