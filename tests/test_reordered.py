"""The other layout: where it is the same memory, and where it is worth two reorders."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from helpers import PROBLEMS, check, check_all, example

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.core.layouts import PLAIN, laid
from convalgos.core.problem import DIRECTIONS
from convalgos.core.profiles import nominal
from convalgos.cpu.layout import reorder
from convalgos.cpu.layout.reordered import Reordered, is_promising
from convalgos.select import between_reorders, devices, find_algorithm, registry, ways
from convalgos.select.constraints import Constraints
from convalgos.select.search import search

pytestmark = pytest.mark.skipif(missing("llvmlite") is not None, reason="needs llvmlite")
CHOSEN = {  # one of each kind: whose filter is prepared, whose dy is copied, whose dy is read as it is
    "forward": ("cpu.depthwise.rows", "cpu.direct.pixels", "cpu.direct", "cpu.winograd.f2x3"),
    "backward_data": ("cpu.depthwise.rows", "cpu.direct.pixels", "cpu.direct"),
    "backward_weights": ("cpu.depthwise.weights", "cpu.direct.weights", "cpu.im2col.own"),
}


def parse(text, **changes):
    return ca.ConvProblem.parse(text).replace(**changes)


# --- the kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize(
    "shape",
    [
        *((2, 3, 7), (1, 2, 100), (3, 4, 31, 33), (1, 5, 4, 3), (2, 17, 40, 41), (1, 16, 16), (1, 40, 3)),
        *((2, 8, 5, 7, 31), (1, 3, 1025), (1, 9, 2050), (1, 35, 1)),
    ],
)
def test_reorders_are_numpys(shape, dtype):
    """Lanes of x beyond C hold anything, and those of y become 0."""
    logical = (np.random.default_rng(0).standard_normal(shape) * 1000).astype(dtype)
    for source, target in permutations((*PLAIN, "blocked8", "blocked16"), 2):
        if reorder.is_same(shape, source, target):
            continue
        x, y = (np.ascontiguousarray(laid(logical, layout)) for layout in (source, target))
        x[laid(np.ones_like(logical), source) == 0] = 99
        around = np.full(y.size + 64, 77, dtype)
        found = around[33 : 33 + y.size].reshape(y.shape)
        reorder.Reorder(shape, y.itemsize, source, target)(x, found)
        assert np.array_equal(found, y), (source, target)
        apart = np.full((len(y), 2, *y.shape[1:]), 77, dtype)
        reorder.Reorder(shape, y.itemsize, source, target).bind(x, apart[:, 1]).run()
        assert np.array_equal(apart[:, 1], y) and (apart[:, 0] == 77).all()
        assert (around[:33] == 77).all() and (around[33 + y.size :] == 77).all(), "wrote outside"


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 2, 100), (3, 4, 31, 33), (2, 17, 40, 41), (1, 16, 16)])
def test_reorders_of_bytes_are_numpys(shape):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    for source, target, given, wanted in ((*PLAIN, x, last), (*PLAIN[::-1], last, x)):
        found = np.full(wanted.shape, 77, np.uint8)
        reorder.Reorder(shape, 1, source, target)(given, found)
        assert np.array_equal(found, wanted), (source, target)
    with pytest.raises(ValueError, match="elements of 1 bytes"):
        reorder.Reorder(shape, 1, "channels_first", "blocked8")


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_a_single_channel_is_copied(dtype):
    """Nothing has to move, but a network may ask for it where a map moves."""
    for shape in ((2, 1, 37), (1, 1, 16, 20), (3, 1, 1)):
        x = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        for source, target, given, wanted in ((*PLAIN, x, last), (*PLAIN[::-1], last, x)):
            found = np.full_like(wanted, 77)
            reorder.Reorder(shape, x.itemsize, source, target)(given, found)
            assert np.array_equal(found, wanted), (source, target)


def test_maps_that_are_the_same_memory():
    for shape in ((1, 16, 3, 5), (2, 32, 1, 1), (3, 1, 4, 4), (1, 24, 1, 1), (2, 16, 1)):
        logical = np.arange(np.prod(shape)).reshape(shape)
        for source, target in permutations((*PLAIN, "blocked8", "blocked16"), 2):
            x, y = (np.ascontiguousarray(laid(logical, layout)).ravel() for layout in (source, target))
            assert reorder.is_same(shape, source, target) == np.array_equal(x, y), (shape, source, target)


# --- between reorders ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_answers(direction, dtype):
    for name in CHOSEN[direction]:
        algorithm = Reordered(registry.facing(find_algorithm(name), direction))
        problems = (
            parse(text, layout=layout, dtype=dtype, direction=direction)
            for i, text in enumerate(PROBLEMS[:: 2 if dtype == "float32" else 9])
            for layout in (("channels_last", "channels_first")[i % 5 == 0],)
        )
        assert check_all(algorithm, problems) >= 2, name


def test_the_bits_are_those_of_the_algorithm_in_the_other_layout():
    problem = parse("n2 c3 h33 w40 k3 r5 s1 p2,0 groups3 channels_last")
    x, w, bias, _ = example(problem.replace(layout="channels_first"), "reals")
    x = np.array(x)
    plain = ca.plan(problem.relaid, algorithm="cpu.depthwise.rows")
    between = ca.plan(problem, algorithm="cpu.depthwise.rows.reordered")
    y = between(np.ascontiguousarray(np.moveaxis(x, 1, -1)), w, bias=bias, activation="relu")
    assert np.array_equal(np.moveaxis(y, -1, 1), plain(x, w, bias=bias, activation="relu"))
    assert between.algorithm == "cpu.depthwise.rows.reordered"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "n1 c3 h512 w512 k3 r31 s1 p15,0 groups3",
        "n1 c3 h512 w512 k3 r31 s1 p15,0",
        "n1 c3 h512 w512 k3 r3 s3 p1 groups3",
        "n1 c2 w100000 k2 s64 groups2",
        "n1 c3 d64 h64 w64 k3 t3 r3 s3 p1 groups3",
    ],
)
def test_few_channels_cost_little_more_than_in_the_other_layout(wisdom, text, direction):
    """2.5 to 16 times as much before; x and y are read and written once more."""
    last = parse(text, layout="channels_last", direction=direction)
    free, machine = Constraints(weights_constant=False), devices.current_machine()
    best = {p.layout: search(p, "cpu", free)[0] for p in (last, last.relaid)}
    moved = sum(reorder.reorder_seconds(shape, 4, *PLAIN, machine) for shape in (last.x_shape, last.y_shape))
    assert best["channels_last"].estimate_s <= best["channels_first"].estimate_s + 1.2 * moved + 2e-5
    if text.endswith("groups3"):
        assert best["channels_last"].algorithm.id.endswith(".reordered")


def test_a_choice_names_it_and_a_name_forces_it(wisdom):
    problem = parse("n1 c3 h512 w512 k3 r31 s1 p15,0 groups3 channels_last")
    ranking = ca.explain(problem)
    first = ranking.candidates[0]
    assert first.id == "cpu.depthwise.rows.reordered" and "in channels_first" in str(ranking)
    assert first.workspace_bytes >= problem.x_bytes + problem.y_bytes
    assert not any(r.id.endswith(".reordered") for r in ranking.rejected)  # told once, of the plain one
    assert ca.plan(problem, algorithm=first.id).algorithm == first.id
    assert ca.explain(problem, deny="cpu.depthwise").candidates[0].algorithm.family != "cpu.depthwise"
    assert [c.id for c in ca.explain(problem, allow=first.id).candidates] == [first.id]
    small = ca.plan(problem, workspace_limit=1 << 20)
    assert small.workspace_bytes <= 1 << 20
    with pytest.raises(ca.Unsupported, match="reads rows of channels_first maps"):
        ca.plan(problem, algorithm="cpu.depthwise.rows")
    with pytest.raises(ca.Unsupported, match="every channel by itself"):
        ca.plan(parse("n1 c3 h9 w9 k4 r3 s3 channels_last"), algorithm="cpu.depthwise.rows.reordered")


def test_it_is_priced_only_where_vectors_of_channels_are_empty():
    assert is_promising(parse("n1 c3 h9 w9 k64 r3 s3 channels_last"))
    assert is_promising(parse("n1 c64 h9 w9 k1 r3 s3 channels_last"))
    assert not is_promising(parse("n1 c64 h9 w9 k64 r3 s3 channels_last"))
    assert not is_promising(parse("n1 c3 h9 w9 k64 r3 s3"))
    assert not is_promising(parse("n1 c1 h9 w9 k1 r3 s3 channels_last"))  # nothing need be moved
    assert ways(parse("n1 c64 h9 w9 k64 r3 s3 channels_last"), "cpu") == registry.algorithms("cpu")


def test_elements_of_other_sizes_are_left_alone():
    """Its kernels move 4 and 8 bytes."""
    layer = ca.ConvProblem.parse("n1 c3 h9 w9 k8 r3 s3 channels_last int8")
    assert not is_promising(layer)
    assert [a.why_not(layer) for a in between_reorders("forward") if a.inner.why_not(layer.relaid) is None]
    with pytest.raises(ca.Unsupported, match="moves maps of float32 and float64 only"):
        Reordered(find_algorithm("cpu.winograd.int16.f2x3")).serve(layer)


def test_bounds_are_bounds():
    machine = devices.current_machine()
    for direction in DIRECTIONS:
        for text in ("n1 c3 h65 w64 k3 r5 s5 p2", "n2 c2 w3000 k40 s33", "n1 c3 h40 w40 k3 r3 s3 groups3"):
            problem = parse(text, layout="channels_last", direction=direction)
            for a in between_reorders(direction):
                if a.why_not(problem) is None:
                    bound = max(a.least(problem, machine), a.closely(problem, machine))
                    assert bound <= a.cost(problem, machine) * (1 + 1e-9), (a.id, str(problem))


def test_16_bit_data_are_converted_around_it():
    problem = parse("n1 c3 h64 w50 k3 r9 s1 p4,0 groups3 channels_last", dtype="float16")
    x, w, _, y = example(problem.replace(layout="channels_first", dtype="float32"), "integers")
    plan = ca.plan(problem, algorithm="cpu.depthwise.rows.reordered")
    found = plan(np.ascontiguousarray(np.moveaxis(x, 1, -1)).astype("float16"), w.astype("float16"))
    assert np.array_equal(np.moveaxis(found, -1, 1), y)


# --- the same memory -------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "text", ["n3 c1 h20 w33 k1 r5 s3 p2", "n2 c1 w100 k1 s9 p4", "n1 c1 d5 h6 w7 k1 t3 r3 s3 p1"]
)
def test_one_channel_is_computed_channels_first(wisdom, text, direction):
    last = parse(text, layout="channels_last", direction=direction)
    here, there = (
        [c for c in ca.explain(p).candidates if c.id not in ("cpu.bf16x3", "cpu.int8x3")]  # no channels first
        for p in (last, last.relaid)
    )
    assert [(c.id, c.predicted) for c in here] == [(c.id, c.predicted) for c in there]
    for candidate in here:
        check(candidate.algorithm, last)
    if direction != "backward_weights":
        assert "cpu.depthwise.rows" in {c.id for c in here}  # which reads channels_first maps


def test_one_pixel_is_computed_channels_last(wisdom):
    first = parse("n64 c512 h1 w1 k512 r1 s1")
    here, there = (ca.explain(p).candidates for p in (first, first.relaid))
    only_first = (
        "cpu.direct.pixels",
        "cpu.fft.mkl",
        "cpu.fft.fftw",
        "cpu.fft.overlap",
    )  # serve that layout alone
    shared = [(c.id, c.predicted) for c in here if c.id not in only_first]
    assert len(shared) >= 4
    assert shared == [(c.id, c.predicted) for c in there if c.id not in only_first]
    for candidate in here:
        check(candidate.algorithm, parse("n5 c20 h1 w1 k36 r3 s3 p1"))


def test_half_precision_of_one_channel(shipped_figures):
    problem = parse("n1 c1 h12 w30 k1 r3 s3 p1 channels_last", dtype="float16")
    x, w, _, y = example(problem.replace(layout="channels_first", dtype="float32"), "integers")
    found = ca.plan(problem)(np.moveaxis(x, 1, -1).astype("float16"), w.astype("float16"))
    assert np.array_equal(np.moveaxis(found, -1, 1), y)


def test_calls_of_one_channel_answer_in_either_layout():
    x = np.random.default_rng(0).standard_normal((2, 1, 40, 50), dtype="f4")
    w = np.ones((1, 1, 7, 1), "f4")
    y = ca.conv(x, w, padding=(3, 0))
    last = ca.conv(np.moveaxis(x, 1, -1), w, padding=(3, 0), layout="channels_last")
    assert last.shape == (2, 40, 50, 1) and np.array_equal(np.moveaxis(last, -1, 1), y)


def test_shuffles_go_by_the_clock_and_squares_by_the_products():
    slow = nominal(2)
    fast = replace(slow, clock=2 * slow.cycles / slow.threads)

    def seconds(channels, machine):
        return reorder.reorder_seconds((1, channels, 112, 112), 4, *PLAIN, machine)

    assert seconds(3, fast) < seconds(3, slow) and seconds(64, fast) == seconds(64, slow)
