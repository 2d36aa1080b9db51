"""Convbench, samples of many layers, and what a bench of them amounts to."""

import math
from collections import Counter

import pytest
from command_line import run
from test_bench import MACHINE, layer_result, row

from convalgos import ConvProblem
from convalgos.select.measure.timing import Timing
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench.suites import CONVBENCH, Layer, suite, suites
from convalgos.tools.bench.suites.sampling import layer_weight, sample
from convalgos.tools.report import kinds


def test_convbench_is_what_public_image_models_are_made_of():
    layers = suite(CONVBENCH)
    assert len({layer.problem for layer in layers}) == len(layers) == 8298
    assert {layer.problem.ndim for layer in layers} == {2} and {layer.problem.N for layer in layers} == {1}
    assert CONVBENCH not in suites(), "`all` would take hours"
    assert len({layer.name for layer in layers}) == len(layers)


def test_the_same_seed_draws_the_same_layers_in_their_order():
    layers = suite(CONVBENCH)
    drawn = sample(layers, 50, seed=3)
    assert drawn == sample(layers, 50, seed=3) != sample(layers, 50, seed=4)
    assert len(set(drawn)) == 50 and list(drawn) == [layer for layer in layers if layer in set(drawn)]
    assert [layer.name for layer in sample(layers, 2)] == ["dm_nfnet_f0_41", "efficientvit_m0_403"]


def test_layers_are_drawn_in_proportion_to_their_weight():
    layers = [Layer("", str(n), ConvProblem.parse(f"c{n} h1 w1 k1 r1 s1"), n) for n in (1, 2, 5)]
    for by, shares in (("unique", (1, 1, 1)), ("layers", (1, 2, 5)), ("macs", (1, 4, 25))):
        assert [layer_weight(layer, by) for layer in layers] == list(shares)
        drawn = Counter(sample(layers, 1, seed, by)[0].name for seed in range(3000))
        for layer, share in zip(layers, shares, strict=True):
            expected = 3000 * share / sum(shares)
            assert abs(drawn[layer.name] - expected) < 5 * math.sqrt(expected)


def test_a_sample_is_no_larger_than_there_is_and_leaves_out_what_weighs_nothing():
    layers = [Layer("", str(n), ConvProblem.parse(f"n{n} c1 h1 w1 k1 r1 s1"), 1) for n in (0, 1, 2)]
    assert [layer.name for layer in sample(layers, 9, by="macs")] == ["1", "2"]
    assert len(sample(layers, 9, by="unique")) == 3
    with pytest.raises(ValueError, match="by='most' must be one of layers, macs, unique"):
        sample(layers, 1, by="most")


def test_bench_takes_a_sample():
    how = "--sample", 2, "--seed", 1, "--peers", "none", "--rounds", 1, "--algorithm", "cpu.im2col.blas"
    text = run("bench", "convbench", *how).output
    for layer in sample(suite(CONVBENCH), 2, seed=1):
        assert layer.name in text


def test_kinds_and_weights_are_summed_up():
    def layer(text, ratio, count):
        found = [
            bench_results.PeerResult("torch", Timing((ratio,)), 0.0),
            bench_results.PeerResult("ort", Timing((9.0,)), 0.0),
        ]
        return layer_result(ConvProblem.parse(text), "cpu.a", [row("cpu.a", 1.0)], found=found, count=count)

    dense, pointwise = "c8 h9 w9 k8 r3 s3", "c16 h9 w9 k16 r1 s1"
    results = bench_results.Results(
        "", MACHINE, {}, layers=[layer(dense, 2.0, 1)] * 6 + [layer(pointwise, 0.5, 3)] * 6
    )
    _, rows = kinds.kinds_table(results)
    assert [(r[0], r[1], r[2], r[5]) for r in rows] == [
        ("dense", "6", "2.00", "0"), ("1x1", "6", "0.50", "6"), ("all", "12", "1.00", "6"),
    ]  # fmt: skip
    # by layers 1 to 3 at 2 and 1/2; by products (49 * 576 to 3 * 81 * 256)
    products = (49 * 576 - 3 * 81 * 256) / (49 * 576 + 3 * 81 * 256)
    assert kinds.weighted(results) == [
        f"time of the best peer / of the pick: by layers {2**-0.5:.2f}, by products {2**products:.2f}, "
        "every layer alike 1.00"
    ]
    assert kinds.kinds_table(bench_results.Results("", MACHINE, {}, layers=results.layers[:9])) is None, "few"
    assert [kinds.layer_kind(ConvProblem.parse(t)) for t in (
        "c8 h1 w1 k8 r1 s1", "c8 h9 w9 k8 r3 s3 groups8", "c8 h9 w9 k8 r3 s3 groups2", "c8 h9 w9 k8 r1 s3"
    )] == ["1x1 on one pixel", "depthwise", "grouped", "dense"]  # fmt: skip
