"""Vectors (N, C) between fully connected layers: batch norms and sums next to these become part of them."""

import random

import numpy as np
import pytest
from test_network_onnx import Builder, check, numbers

from convalgos.network.graph import Convolution, Elementwise, View

RNG = np.random.default_rng(5)


def linear(b, x, c, k):
    return b.node("Gemm", x, numbers((k, c)) / np.float32(c) ** 0.5, numbers(k), transB=1)


def norm(b, x, c):
    return b.node("BatchNormalization", x, *(np.float32(RNG.uniform(0.5, 2, c)) for _ in range(4)))


def computed(net):
    return [step for step in net.graph.steps if not isinstance(step, View)]


def test_batch_norms_become_part_of_fully_connected_layers():
    b = Builder(("n", 17))
    x = b.node("Relu", norm(b, linear(b, norm(b, "x", 17), 17, 33), 33))
    y = b.node("Tanh", norm(b, b.node("Add", b.node("MatMul", x, numbers((33, 8))), numbers(8)), 8))
    net = check(b.model(linear(b, y, 8, 3)), numbers((5, 17)))
    check(b.model(linear(b, y, 8, 3)), numbers((0, 17)))
    assert [type(step) for step in computed(net)] == [Convolution] * 3


def test_fully_connected_layers_read_plain_rows():
    """In blocks of channels, as other maps may lie, products of rows took up to six times as long."""
    b = Builder(("n", 40))
    net = check(b.model(linear(b, b.node("Tanh", linear(b, "x", 40, 203)), 203, 784)), numbers((16, 40)))
    planned = net.plans()[0].planned
    assert {planned.layouts.get(name, "channels_first") for name in planned.shapes} == {"channels_first"}


def test_sums_of_vectors_become_residuals_of_fully_connected_layers():
    b = Builder(("n", 24))
    x = linear(b, "x", 24, 24)
    for _ in range(3):
        inner = b.node("Relu", linear(b, norm(b, x, 24), 24, 40))
        x = b.node("Add", x, linear(b, inner, 40, 24))
    x = b.node("Relu", norm(b, b.node("Add", "x", x), 24))
    net = check(b.model(linear(b, x, 24, 1), x), numbers((7, 24)))
    last = [Elementwise] * 3  # a sum of no layer, and its norm: a scale and a shift
    assert [type(step) for step in computed(net)] == [*[Convolution] * 7, *last, Convolution]


@pytest.mark.parametrize("shift", [False, True])
def test_scales_and_sums_of_vectors_go_by_elements(shift):
    """A convolution of each channel by itself took 340 us for 400 rows of 64 channels, these steps 20."""
    b = Builder(("n", 33))
    scaled = norm(b, "x", 33) if shift else b.node("Mul", "x", np.float32(1.3))
    y = b.node("Add", scaled, b.node("Sigmoid", "x"))
    for rows in (5, 1, 0):
        net = check(b.model(y), numbers((rows, 33)))
    made = [step.operation for step in computed(net) if isinstance(step, Elementwise)]
    assert len(made) == len(computed(net))
    assert made == ["identity", "multiply", *["shift"] * shift, "add"]


def test_maps_that_are_flattened_are_not_taken_for_maps_of_one_pixel():
    b = Builder((2, 3, 4, 4))
    flat = linear(b, b.node("Flatten", "x"), 48, 48)
    y = b.node("Relu", b.node("Add", b.node("Reshape", flat, np.int64([2, 3, 4, 4])), "x"))
    z = b.node("Add", b.node("Flatten", y), norm(b, flat, 48))
    check(b.model(z, linear(b, z, 48, 5), y, flat), numbers((2, 3, 4, 4)))


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_of_vectors(seed):
    draw, b = random.Random(seed), Builder(("n", 12))
    values = {"x": 12}
    for _ in range(draw.randint(3, 12)):
        x = draw.choice(list(values))
        kind, c, k = draw.choice(("linear", "norm", "sum", "numbers", "activation")), values[x], values[x]
        if kind == "linear":
            y = linear(b, x, c, k := draw.choice((12, 12, 37, 1, 64)))
        elif kind == "norm":
            y = norm(b, x, c)
        elif kind == "sum":
            other = draw.choice([name for name, size in values.items() if size == c])
            y = b.node(draw.choice(("Add", "Mul", "Sub")), x, other)
        elif kind == "numbers":
            y = b.node(draw.choice(("Add", "Mul")), x, numbers(draw.choice(((c,), (1, c), (1,)))))
        else:
            y = b.node(draw.choice(("Relu", "Sigmoid", "HardSwish")), x)
        values[y] = k
    last, *rest = [name for name in list(values)[::-1] if name != "x"]
    model = b.model(last, *draw.sample(rest, min(len(rest), draw.randint(0, 2))))
    for n in (1, 6, 70):
        check(model, numbers((n, 12)))
