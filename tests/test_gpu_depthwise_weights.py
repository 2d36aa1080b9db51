"""The gradient of depthwise filters on a GPU: every form, also those that the cost model would not pick."""

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, Guarded, check, example
from page_edges import EdgeDevice

from convalgos.core.allocator import aligned_empty
from convalgos.core.errors import Unsupported
from convalgos.core.plan import numpy_dtype
from convalgos.core.problem import ConvProblem
from convalgos.gpu import depthwise_weights
from convalgos.gpu.device import use

(ALGORITHM,) = depthwise_weights.ALGORITHMS
LAYOUTS = ("channels_first", "channels_last")
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))

PROBLEMS = [
    *(  # widths of whole vectors, of pairs, and odd ones
        f"n2 c3 h9 w{w} k3 r{r} s{r} p{r // 2} groups3 stride{stride} {layout}"
        for w, r, stride, layout in product((16, 14, 13), (3, 5, 7), (1, 2), LAYOUTS)
    ),
    *(  # rows that begin elsewhere, a multiplier, kernels that do not fill a form's
        f"n2 c3 h8 w{w} k6 r{r} s{s} p{pads} groups3 stride{stride} {layout}"
        for (w, r, s, pads, stride), layout in product(
            ((24, 3, 3, "0", 1), (18, 3, 3, "2:1,1:0", 1), (18, 2, 3, "1,3:2", 2), (16, 4, 5, "0,2", 1)),
            LAYOUTS,
        )
    ),
    *(  # rows of few taps, at every distance from a whole vector
        f"n2 c3 w{w} k3 s{taps} p{low}:{high} groups3 {layout}"
        for (w, taps, low, high), layout in product(
            ((48, 4, 3, 0), (37, 5, 2, 2), (70, 8, 5, 2), (40, 2, 0, 1)), LAYOUTS
        )
    ),
    *(  # strides and dilations that are taken apart, alone and together
        f"n2 c2 h11 w{w} k4 r3 s4 p2:3,4:1 stride{stride} dilation{dilation} groups2 {layout}"
        for (w, stride, dilation), layout in product(
            ((23, "3,2", "1,3"), (29, "1,4", "2,6"), (22, "2,3", "2,3"), (24, "1", "2"), (24, "3", "1")),
            LAYOUTS,
        )
    ),
    "n2 c2 d5 h7 w8 k2 t3 r3 s3 p1 groups2",
    "n2 c2 d6 h7 w8 k4 t2 r3 s3 p1:0,1,2 groups2 stride2,1,1 dilation2,1,1 channels_last",
    "n1 c2 h12 w11 k2 r13 s12 p6 groups2",  # kernels as large as the map
    "n1 c2 h6 w5 k2 r15 s15 p12 groups2",  # rows of x that no output sees
    "n2 c2 w300 k2 s129 p128:0 groups2",
    "n1 c1 w700 k1 s600 p599:0",  # several blocks of taps
    "n1 c1 w2300 k2 s9 p4 stride2",  # several segments of a row
    "n33 c70 h3 w3 k70 r3 s3 p1 groups70 channels_last",  # several blocks of filters
    "n2 c1 h1 w1 k3 r3 s3 p1 channels_last",
    "n1 c3 h4 w4 k3 r2 s2 p7:0,1:6 stride3 groups3",  # outputs that see no input
]


@pytest.fixture(autouse=True)
def on_the_shim(monkeypatch):
    """Arrays that start where a vector may, as CuPy's do: others would be copied first."""
    monkeypatch.setattr(Guarded, "BAND", 1024)
    with use(shim.ShimDevice()) as chosen:
        yield chosen


def parsed(text: str, **changes) -> ConvProblem:
    return ConvProblem.parse(text).replace(direction="backward_weights", **changes)


def forms(problem: ConvProblem) -> list[depthwise_weights.LaunchForm]:
    """The fastest of each build; in float32 also the smallest and largest blocks, fewest and most parts."""
    found: dict = {}
    for form in depthwise_weights.depthwise_weights_forms(problem, shim.H200):
        found.setdefault(form.build, []).append(form)
    keys = (
        lambda f: f.seconds,
        lambda f: (f.threads, f.params["rows"], f.params["parts"]),
        lambda f: (-f.threads, f.params["rows"], -f.params["parts"]),
    )
    keys = keys if problem.dtype == "float32" else keys[:1]
    chosen = [min(same, key=key) for same in found.values() for key in keys]
    return list({(f.build, f.threads, *f.params.values()): f for f in chosen}.values())


def gradient(
    problem: ConvProblem, form: depthwise_weights.LaunchForm, x: np.ndarray, dy: np.ndarray
) -> np.ndarray:
    out = np.full(problem.w_shape, np.nan, numpy_dtype(problem.dtype))
    return depthwise_weights.DepthwiseWeightsPlan(problem, ALGORITHM, form)(x, dy, out=out)


@needs_shim
def test_every_form_gives_exact_answers(on_the_shim):
    # float16 differs from bfloat16 in the conversions alone, which other tests see
    declared = {b for b in ALGORITHM.builds() if dict(b.macros)["element_t"] != "float16_t"}
    on_the_shim.compile(declared)
    launched, kernels = set(), set()
    for text, dtype in product(PROBLEMS, ("float32", "bfloat16", "float64")):
        problem = parsed(text, dtype=dtype)
        assert ALGORITHM.why_not(problem) is None
        x, dy, _, dw = example(problem.replace(dtype="float32", layout="channels_first"), "integers")
        if problem.layout == "channels_last":
            x, dy = (np.moveaxis(a, 1, -1) for a in (x, dy))
        x, dy, dw = (a.astype(numpy_dtype(dtype)) for a in (x, dy, dw))
        for form in forms(problem):
            launched.add(form.build)
            kernels.add((form.kernel, form.params["parts"] > 1))
            assert np.array_equal(gradient(problem, form, x, dy), dw), f"{problem}: {form}"
    assert kernels == set(product(("strips", "staged"), (False, True)))
    missed = declared - launched
    assert not missed, f"no problem runs {', '.join(map(str, missed))}"


@needs_shim
@pytest.mark.parametrize("edge", ["start", "end"])
def test_nothing_is_read_beyond_the_arrays(edge):
    """They end, or start, at pages that may not be touched; a kernel that does ends the process."""
    with use(EdgeDevice(edge)):
        for text, dtype in product(PROBLEMS[::4], ("float32", "bfloat16")):
            problem = parsed(text, dtype=dtype)
            shapes = problem.array_shapes[:2]
            x, dy = (np.ones(shape, numpy_dtype(dtype)) for shape in shapes)
            for form in forms(problem):
                assert np.isfinite(gradient(problem, form, x, dy).astype(np.float32)).all()


@needs_shim
def test_real_data_stay_within_the_bound():
    for text, kind in product((*PROBLEMS[::3], "n2 c3 h9 w8 k3 r3 s3 p1 groups3 convolution"), KINDS):
        check(ALGORITHM, parsed(text), kind)


@needs_shim
def test_the_bits_are_the_same_in_every_run():
    problem = parsed("n4 c2 h30 w30 k2 r3 s3 p1 groups2")
    x, dy, _, dw = example(problem, "reals")
    (form, *_) = (
        f for f in depthwise_weights.depthwise_weights_forms(problem, shim.H200) if f.params["parts"] > 1
    )
    first = gradient(problem, form, x, dy)
    assert np.abs(first - dw).max() <= ALGORITHM.error_bound(problem) * np.abs(dw).max()
    assert all(np.array_equal(gradient(problem, form, x, dy), first) for _ in range(2))


@needs_shim
def test_gradients_of_nothing_are_zero():
    for text in ("n0 c3 h5 w5 k3 r3 s3 groups3", "n2 c3 h0 w5 k3 r3 s3 p2,1 groups3"):
        problem = parsed(text)
        x, dy = (np.zeros(shape, np.float32) for shape in problem.array_shapes[:2])
        out = np.full(problem.w_shape, np.nan, np.float32)
        assert not ALGORITHM.serve(problem)(x, dy, out=out).any()


@needs_shim
def test_captured_gradients_follow_both_arrays():
    """dy lies where it is captured, as x does: it is not a filter that is prepared once."""
    problem = parsed("n2 c4 h9 w8 k4 r3 s3 p1 groups4")
    x, dy = (aligned(a) for a in example(problem, "reals")[:2])
    plan = ALGORITHM.serve(problem)
    replay = plan.capture(x, dy)
    for array in (x, dy):
        array[...] = array[::-1]
        assert np.array_equal(replay(), plan(x.copy(), dy.copy()))
    shifted = aligned_empty(dy.size + 1, np.float32)[1:].reshape(dy.shape)
    shifted[...] = dy
    assert np.array_equal(plan(x, shifted), plan(x, dy))
    with pytest.raises(ValueError, match="dy must be contiguous and start at a multiple of 16 bytes"):
        plan.capture(x, shifted)


def aligned(values: np.ndarray) -> np.ndarray:
    made = aligned_empty(values.size, values.dtype).reshape(values.shape)
    made[...] = values
    return made


def test_it_says_what_it_cannot_serve():
    for text, reason in (
        ("n1 c4 h8 w8 k4 r3 s3", "one input channel per group, not 4"),
        ("n1 c4 h8 w8 k4 r3 s3 groups2", "one input channel per group, not 2"),
    ):
        with pytest.raises(Unsupported, match=reason):
            ALGORITHM.serve(parsed(text))
    with pytest.raises(Unsupported, match="backward_weights only, not forward"):
        ALGORITHM.serve(ConvProblem.parse("n1 c4 h8 w8 k4 r3 s3 groups4"))
    far = ConvProblem((1, 1, 10), (1, 1, 3), dilation=2**29, padding=2**29, direction="backward_weights")
    with pytest.raises(Unsupported, match="counts beyond 32 bits"):
        ALGORITHM.serve(far)


def test_a_filter_of_few_pixels_fills_the_gpu():
    """Blocks share the pixels of filters that are too few for all multiprocessors."""
    few = depthwise_weights.fastest_weights_form(parsed("n8 c8 h112 w112 k8 r3 s3 p1 groups8"), shim.H200)
    assert few.blocks >= shim.H200.multiprocessors
    many = depthwise_weights.fastest_weights_form(parsed("n8 c960 h7 w7 k960 r3 s3 p1 groups960"), shim.H200)
    assert many.params["parts"] == 1
