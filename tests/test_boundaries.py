"""What lies beyond the edges of a map: tables against `numpy.pad`, the reference against its definition,
every algorithm against the reference, and the public calls."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim

import convalgos as ca
from convalgos.core.borders.bordered import Bordered
from convalgos.core.boundaries import BOUNDARIES, OUTSIDE, padded, source_indices
from convalgos.core.problem import DIRECTIONS
from convalgos.core.quantization import Quantization
from convalgos.cpu.borders.gradient_ways import Way
from convalgos.cpu.reference import answer, answer_at
from convalgos.cpu.spectral import cost as spectral_cost
from convalgos.gpu import device
from convalgos.select import registry
from convalgos.testing import check
from convalgos.testing.problems import suited

PROBLEMS = (
    "n2 c3 h7 w5 k4 r3 s3 p1 reflect",
    "n1 c2 h6 w9 k2 r3 s3 p2:1,0:3 symmetric,wrap stride2",
    "n1 c4 h5 w4 k4 r3 s3 p3 edge,constant fill2.5 groups4 dilation2",
    "n1 c2 w11 k3 s4 p5 wrap convolution",
    "n1 c2 h3 w2 k3 r3 s3 p5 reflect",  # padding longer than the map
    "n1 c2 d4 h5 w6 k3 t3 r1 s3 p1,0,2 constant,zero,zero fill-1.5",
)


MORE = ("n2 c17 h12 w13 k17 r5 s5 p2 edge groups17", "n1 c16 h14 w15 k16 r3 s3 p1 reflect")


@pytest.mark.parametrize(("boundary", "size"), list(product(BOUNDARIES, (1, 2, 5))))
def test_tables_are_those_of_numpy(boundary: str, size: int) -> None:
    row = np.arange(10.0, 10 + size)
    for low, high in product((0, 1, 3, 12), repeat=2):
        at = source_indices(boundary, size, low, high)
        found = np.where(at == OUTSIDE, 7.0, row[at])
        if boundary in ("zero", "constant"):
            wanted = np.pad(row, (low, high), "constant", constant_values=7.0)
        else:
            wanted = np.pad(row, (low, high), boundary)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_reference_convolves_the_padded_map_and_its_gradients_are_adjoint(text: str) -> None:
    p = ca.ConvProblem.parse(text)
    assert ca.ConvProblem.parse(str(p)) == p
    rng = np.random.default_rng(0)
    x, w, dy = (rng.integers(-4, 5, shape).astype(float) for shape in (p.x_shape, p.w_shape, p.y_shape))
    y = answer(p, x, w)
    by_hand = p.replace(x_shape=padded(p, x).shape, padding=0, boundary="zero", fill_value=0.0)
    np.testing.assert_array_equal(y, answer(by_hand, padded(p, x), w))
    if not p.fill_value:  # y is linear in x
        dx = answer(p.replace(direction="backward_data"), dy, w)
        assert np.vdot(dx, x) == np.vdot(dy, y)
    dw = answer(p.replace(direction="backward_weights"), x, dy)
    assert np.vdot(dw, w) == np.vdot(dy, y)


@pytest.mark.parametrize("text", PROBLEMS)
def test_single_places_are_those_of_the_whole(text: str) -> None:
    rng = np.random.default_rng(1)
    for direction in ("forward", "backward_data", "backward_weights"):
        p = ca.ConvProblem.parse(text).replace(direction=direction)
        arrays = {"x": p.x_shape, "w": p.w_shape, "y": p.y_shape}
        first, second = (rng.integers(-4, 5, arrays[name[-1]]).astype(float) for name in p.arrays[:2])
        whole = answer(p, first, second)
        where = np.argwhere(np.ones(whole.shape, bool))[::3]
        np.testing.assert_array_equal(answer_at(p, first, second, where), whole[tuple(where.T)])


def test_alike_problems_are_one() -> None:
    p = ca.ConvProblem((1, 2, 5, 6), (3, 2, 3, 3), padding=(0, 1), boundary="reflect")
    assert p.boundary == ("zero", "reflect")
    assert str(p) == "n1 c2 h5 w6 k3 r3 s3 p0,1 zero,reflect"
    plain = ca.ConvProblem((1, 2, 5, 6), (3, 2, 3, 3), padding=1)
    assert ca.ConvProblem((1, 2, 5, 6), (3, 2, 3, 3), padding=1, boundary="constant") == plain


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"boundary": "mirror"}, "boundary='mirror' must be one of 'zero', 'constant'"),
        ({"boundary": ("wrap",) * 3}, "must be one name or 2 of them"),
        ({"boundary": None}, "boundary=None"),
        ({"boundary": "constant", "fill_value": "1"}, "fill_value='1' must be a number"),
        ({"boundary": "edge", "x_shape": (1, 2, 0, 6)}, "nothing to copy"),
        ({"boundary": "constant", "fill_value": 2, "x_shape": (1, 2, 0, 6)}, "fill_value=2: .* zeros only"),
    ],
)
def test_what_is_refused(given: dict[str, object], told: str) -> None:
    arguments = {"x_shape": (1, 2, 5, 6), "w_shape": (3, 2, 3, 3), "padding": 1} | given
    with pytest.raises(ValueError, match=told):
        ca.ConvProblem(**arguments)


# --- algorithms ------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", (*PROBLEMS, *MORE))
def test_every_algorithm_serves_every_border(text: str, direction: str) -> None:
    served = set()
    for layout, kind in (("channels_first", "integers"), ("channels_last", "reals")):
        problem = ca.ConvProblem.parse(text).replace(layout=layout, direction=direction)
        for algorithm in registry.ways(problem, "cpu"):
            of_it = suited(algorithm, problem)
            if algorithm.why_not(algorithm.computed(of_it)) is None:
                check(algorithm, of_it, kind, [(direction != "backward_weights", None)])
                served.add(algorithm.family)
    assert {"cpu.direct", "cpu.im2col", "cpu.reference"} <= served or direction == "backward_weights"
    assert len(served) > 3


@pytest.mark.parametrize(
    "text",
    [
        "n2 c17 h33 w41 k20 r3 s3 p1 wrap",  # several boxes, whose borders lie in others
        "n1 c12 h19 w23 k12 r3 s3 p1 symmetric groups3",
        "n1 c3 h30 w31 k17 r3 s3 p2:0,1:3 zero,edge stride2 dilation3,1",
        "n1 c3 h30 w31 k17 r3 s3 p2:0,1:3 constant fill2.5",
        "n2 c6 d4 h9 w9 k4 t3 r3 s3 p1 zero,wrap,reflect",
        "n2 c6 d4 h9 w9 k4 t3 r3 s3 p1:2,1,1 wrap,zero,edge",
        "n1 c6 d3 h9 w9 k4 t2 r3 s3 p2 constant fill-1.5 stride2,1,1",
        "n1 c2 w61 k3 s3 p9 reflect",
    ],
)
def test_tiles_read_borders_where_they_lie(text: str) -> None:
    for layout in ("channels_first", "channels_last"):
        problem = ca.ConvProblem.parse(text).replace(layout=layout)
        for name in ("cpu.winograd.f4x3", "cpu.winograd.f6x3", "cpu.fft_tiles.t16"):
            algorithm = registry.find_algorithm(name, problem)
            if algorithm.why_not(algorithm.computed(problem)) is None:
                assert not isinstance(algorithm, Bordered)
                check(algorithm, problem, "reals", [(True, "relu")])
        of_filter = problem.replace(direction="backward_weights")
        algorithm = registry.find_algorithm("cpu.winograd.weights.f3x4", of_filter)
        if algorithm.why_not(of_filter) is None:
            assert not isinstance(algorithm, Bordered)
            check(algorithm, of_filter, "reals", [(False, None)])


@pytest.mark.parametrize(
    "text",
    [
        "n2 c17 h33 w41 k20 r3 s3 p1 wrap",  # several blocks, whose borders lie in others
        "n1 c6 h19 w23 k12 r3 s4 p2:0,3:5 symmetric,edge stride3,2 dilation1,3 groups3",
        "n2 c3 d4 h5 w13 k5 t2 r1 s3 p3,5,4:1 reflect,zero,wrap stride1,2,3 dilation1,1,2",
        "n1 c2 h3 w2 k20 r3 s3 p5 reflect",
        "n1 c2 w900 k20 s9 p40 wrap",
    ],
)
def test_blocks_copy_borders_from_where_they_lie(text: str) -> None:
    for layout in ("channels_first", "channels_last"):
        for direction, names in (
            ("forward", ("cpu.direct", "cpu.direct.pixels")),
            ("backward_weights", ("cpu.direct.weights",)),
        ):
            problem = ca.ConvProblem.parse(text).replace(layout=layout, direction=direction)
            for name in names:
                algorithm = registry.find_algorithm(name, problem)
                if algorithm.why_not(problem) is None:
                    assert not isinstance(algorithm, Bordered)
                    check(algorithm, problem, "integers", [(direction == "forward", None)])


@pytest.mark.parametrize(
    "text",
    [
        "n2 c40 h12 w33 k40 r3 s3 p1 wrap groups40",  # several bands, whose borders lie in others
        "n1 c16 h14 w17 k16 r5 s5 p2 reflect groups16",
        "n1 c16 h9 w8 k16 r3 s3 p3 edge,constant fill2.5 groups16 dilation2",
        "n1 c16 h3 w2 k16 r3 s3 p5 reflect groups16",
        "n1 c16 d4 h9 w9 k16 t3 r3 s3 p1 zero,wrap,reflect groups16",
        "n1 c16 h17 w23 k16 r4 s6 p2:0,1:4 symmetric,wrap stride3,2 groups4",
        "n1 c18 h17 w37 k18 r9 s9 p4 constant fill3 groups18",
        "n1 c2 h40 w50 k4 r3 s3 p1:0,1 symmetric groups2 stride2",
        "n2 c2 h28 w61 k2 r5 s5 p2 wrap groups2",
        "n1 c2 w700 k2 s65 p60 wrap groups2",  # vectors that lie beyond an end as a whole
        "n1 c2 h9 w90 k2 r1 s20 p2,25 edge groups2 stride1,2",
    ],
)
def test_depthwise_kernels_read_borders_where_they_lie(text: str) -> None:
    served = 0
    cases = [("channels_first", "integers", "float32"), ("channels_last", "reals", "float32")]
    if "h14" in text:  # other types have kernels of their own, which take long to compile
        cases += [("channels_first", "reals", "float64"), ("channels_last", "integers", "float16")]
    for layout, kind, dtype in cases:
        problem = ca.ConvProblem.parse(text).replace(layout=layout, dtype=dtype)
        for name in ("cpu.depthwise.channels", "cpu.depthwise.rows"):
            algorithm = registry.find_algorithm(name, problem)
            if algorithm.why_not(algorithm.computed(problem)) is None:
                assert not isinstance(algorithm, Bordered) or "d4" in text
                check(algorithm, problem, kind, [(True, "relu")])
                served += 1
    assert served


@pytest.mark.parametrize(
    "text",
    [
        "n1 c3 h30 w32 k2 r9 s9 p4 wrap",  # goes round in blocks as long as the map
        "n2 c3 h12 w20 k2 r8 s5 p4:3,2:1 wrap,reflect stride2 dilation1,2",
        "n1 c2 h3 w50 k3 r3 s30 p5,31 symmetric",
        "n1 c2 h30 w25 k2 r9 s9 p4,0 constant,zero fill3",
        "n1 c1 w5000 k2 s100 p99:40 edge",
    ],
)
def test_spectra_of_maps_read_borders_where_they_lie(text: str) -> None:
    for layout in ("channels_first", "channels_last"):
        problem = ca.ConvProblem.parse(text).replace(layout=layout, dtype="float64")
        for name in ("cpu.fft.fftw", "cpu.fft.overlap"):
            algorithm = registry.find_algorithm(name, problem)
            if algorithm.why_not(problem) is None:
                assert not isinstance(algorithm, Bordered)
                check(algorithm, problem, "reals", [(True, None)])


def test_what_goes_round_is_transformed_in_its_own_length() -> None:
    problem = ca.ConvProblem.parse("n1 c1 h1000 w96 k1 r31 s31 p15 wrap")
    assert spectral_cost.one_block(problem).lengths == (1, 1000, 96)
    assert spectral_cost.one_block(problem.replace(boundary="edge")).lengths[2] >= 96 + 30
    # a prime would be slow, and a filter longer than the map meets elements twice
    assert spectral_cost.one_block(problem.replace(x_shape=(1, 1, 997, 30))).lengths[1:] != (997, 30)


@pytest.mark.parametrize(
    ("text", "name", "way"),
    [
        ("n1 c20 h30 w35 k20 r3 s3 p1 reflect groups20", "cpu.depthwise.channels", Way.ADDED),
        ("n2 c17 h60 w40 k17 r3 s3 p1:0,2:1 wrap,edge groups17 stride2", "cpu.depthwise.channels", Way.ADDED),
        ("n1 c33 w1500 k40 s5 p2 symmetric", "cpu.direct", Way.ADDED),
        ("n1 c5 h17 w23 k5 r4 s6 p2:0,1:4 symmetric,constant fill2 groups5", "cpu.depthwise.rows", Way.ADDED),
        ("n2 c35 h3 w2 k35 r3 s3 p5 reflect groups35", "cpu.depthwise.channels", Way.FOLDED),
        ("n1 c16 d4 h7 w9 k16 t3 r3 s3 p1 zero,wrap,reflect groups8", "cpu.depthwise.channels", Way.FOLDED),
        # outputs under padding alone, which no part of the map reaches
        ("n1 c10 h8 w12 k40 r1 s3 p1:0,3:5 zero,edge groups5", "cpu.depthwise.channels", Way.EXTENDED),
        ("n2 c8 h9 w6 k8 r3 s3 p2,0:3 wrap,zero groups8", "cpu.depthwise.channels", Way.ADDED),
        ("n1 c35 h14 w14 k8 r3 s3 p1 edge", "cpu.direct", Way.ADDED),
        ("n1 c35 h14 w14 k8 r3 s3 p1 edge", "cpu.fft_tiles.t16", Way.EXTENDED),
        ("n1 c8 h5 w5 k8 r3 s3 p1 edge", "cpu.direct", Way.EXTENDED),
    ],
)
def test_gradients_of_maps_get_their_border_in_every_way(text: str, name: str, way: Way) -> None:
    for layout in ("channels_first", "channels_last"):
        problem = ca.ConvProblem.parse(text).replace(layout=layout, direction="backward_data")
        algorithm = registry.find_algorithm(name, problem)
        if algorithm.why_not(algorithm.computed(problem)) is None:
            assert algorithm.way(problem) is way
            check(algorithm, problem, "integers", [(True, "relu"), (False, None)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_borders_of_integers_are_exact(dtype: str) -> None:
    rng = np.random.default_rng(2)
    for text in (
        "n2 c3 h7 w5 k4 r3 s3 p1:2,1 wrap,constant fill5",
        "n1 c4 h9 w8 k4 r3 s3 p2 reflect groups4",
    ):
        p = ca.ConvProblem.parse(text).replace(dtype=dtype)
        x, w = (rng.integers(0, 100, shape).astype(dtype) for shape in (p.x_shape, p.w_shape))
        wanted = answer(p.replace(dtype="float64"), x - 3.0, w - 1.0) if not p.fill_value else None
        quantization = Quantization(x_zero_point=3, w_zero_point=1)
        exact = registry.find_algorithm("cpu.reference", p).serve(p)
        y = exact(x, exact.prepare(w, quantization))
        if wanted is not None:
            np.testing.assert_array_equal(y, wanted)
        for algorithm in registry.ways(p, "cpu"):
            if algorithm.why_not(p) is None and not algorithm.approximates:
                plan = algorithm.serve(p)
                np.testing.assert_array_equal(plan(x, plan.prepare(w, quantization)), y, algorithm.id)


@pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_algorithms_of_a_gpu_serve_them(direction: str) -> None:
    with device.use(shim.ShimDevice()):
        for text, name in product((PROBLEMS[2], PROBLEMS[3]), ("gpu.direct", "gpu.depthwise", "gpu.im2col")):
            problem = ca.ConvProblem.parse(text).replace(direction=direction)
            for algorithm in registry.ways(problem, "cuda:0"):
                if algorithm.id.startswith(name) and algorithm.why_not(problem) is None:
                    assert isinstance(algorithm, Bordered)
                    check(algorithm, problem, "integers", [(direction == "forward", None)])


# --- public calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_public_calls_take_a_boundary(layout: str) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 4, 9, 8)), rng.standard_normal((6, 4, 3, 5))
    last = layout == "channels_last"
    how = {"padding": (1, 2), "boundary": ["reflect", "wrap"], "layout": layout}
    around = np.pad(np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)), "reflect"), ((0, 0),) * 3 + ((2, 2),), "wrap")
    wanted = ca.conv(around, w)
    given = np.moveaxis(x, 1, -1).copy() if last else x
    y = ca.conv(given, w, **how)
    np.testing.assert_allclose(np.moveaxis(y, -1, 1) if last else y, wanted, atol=1e-12)
    dy = rng.standard_normal(y.shape)
    dx = ca.conv_backward_data(dy, w, given.shape, **how)
    dw = ca.conv_backward_weights(given, dy, w.shape, **how)
    np.testing.assert_allclose([np.vdot(dx, given), np.vdot(dw, w)], np.vdot(dy, y))


def test_what_calls_refuse_and_what_is_asked_for_by_name() -> None:
    x, w = np.ones((1, 2, 6, 6), "f4"), np.ones((2, 2, 3, 3), "f4")
    y = ca.conv(x, w, padding=1, boundary="constant", fill_value=2, algorithm="cpu.winograd.f4x3")
    assert y[0, 0, 0, 0] == 2 * (4 + 5 * 2)
    with pytest.raises(ValueError, match="boundary='mirror' must be one of"):
        ca.conv(x, w, padding=1, boundary="mirror")
    with pytest.raises(ValueError, match="fill_value=True must be a number"):
        ca.conv(x, w, padding=1, boundary="constant", fill_value=True)
    with pytest.raises(ValueError, match=r"fill_value=2.5 must be a whole number from -128 to 127"):
        ca.ConvProblem.parse("n1 c2 h6 w6 k2 r3 s3 p1 constant fill2.5 int8")
    assert "cpu.direct" in str(ca.explain(ca.ConvProblem.parse("n1 c2 h6 w6 k2 r3 s3 p1 wrap")))
