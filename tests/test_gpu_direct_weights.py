"""gpu.direct.weights on the stand-in: every build, sums in parts, memory limits, graphs."""

from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import KINDS, Guarded, check, check_filter_gradient, example, table_problems

import convalgos as ca
from convalgos.core.allocator import aligned_empty
from convalgos.core.errors import Unsupported
from convalgos.core.problem import LAYOUTS, ConvProblem
from convalgos.gpu.device import use
from convalgos.gpu.device.offline import OfflineDevice
from convalgos.gpu.direct_weights import ALGORITHMS, STEP, direct_weights_build
from convalgos.gpu.gemm import split_k_weights
from convalgos.gpu.gemm.split_k_weights import SplitKWeightsPlan

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
(DIRECT,) = ALGORITHMS
AWKWARD = (  # tails of filters, taps and pixels, groups, all dimensions
    "n2 c7 h9 w7 k69 r3 s3 p1:0,2 stride2",
    "n1 c9 h7 w9 k6 r3 s2 p2 dilation2 groups3",
    "n3 c5 d3 h4 w5 k3 t2 r2 s3 p1",
    "n1 c7 w33 k9 s4 p3:0",
)
LAYER = ConvProblem.parse("n8 c64 h56 w56 k64 r3 s3 p1 backward_weights")


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)


def planned(problem, tile, parts):
    module = direct_weights_build(tile, problem.dtype, problem.layout)
    return SplitKWeightsPlan(problem, DIRECT, module, "direct_weights", tile, parts)


@pytest.mark.parametrize("dtype", DIRECT.dtypes)
def test_every_build_computes(dtype):
    """All tiles, whole sums and sums in parts, on integers (exact) and on reals."""
    device, launched = shim.ShimDevice(), set()
    ours = [
        b
        for b in DIRECT.builds()
        if b in {direct_weights_build(t, dtype, la) for t in tiles(dtype) for la in LAYOUTS}
    ]
    device.compile(ours)
    with use(device):
        for text, layout in product(AWKWARD, LAYOUTS):
            problem = ConvProblem.parse(text).replace(
                layout=layout, dtype=dtype, direction="backward_weights"
            )
            assert DIRECT.why_not(problem) is None
            steps = -(-problem.gemm_m // STEP)
            for turn, tile in enumerate(tiles(dtype), layout == LAYOUTS[0]):
                for at, parts in enumerate((1, 2, steps), turn):
                    plan = planned(problem, tile, parts)
                    launched.add(plan.launches[0].build)
                    check_filter_gradient(DIRECT, problem, plan, KINDS[at % 2])
    assert launched == set(ours)


def tiles(dtype):
    return DIRECT.tiles(LAYER.replace(dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_table_of_awkward_problems(dtype):
    """Each in one layout, and in the other in the other type."""
    served = 0
    with use(shim.ShimDevice()):
        table = [*table_problems(DIRECT, dtype)]
        for problem, reason in table[dtype == "float64" :: 4] + table[2 + (dtype == "float32") :: 4]:
            assert reason is None, f"{problem}: {reason}"  # it always serves
            check(DIRECT, problem, "reals")
            served += 1
    assert served > 60


def test_many_parts_are_added_in_one_order():
    """The same bits in every run, whichever threads come first: 40 parts, 8 threads to an element."""
    problem = ConvProblem.parse("n5 c3 h8 w8 k5 r3 s3 p1 backward_weights")
    x, dy, _, dw = example(problem, "reals")
    with use(shim.ShimDevice()):
        plan = planned(problem, DIRECT.tiles(problem)[-1], 40)
        assert [launch.name for launch in plan.launches] == ["direct_weights", "add_parts"]
        assert plan.workspace_bytes == 40 * dw.size * 4
        first = plan(x, dy)
        assert np.array_equal(first, plan(x, dy))
        parts = planned(problem, DIRECT.tiles(problem)[-1], 1)(x, dy)
    assert not np.array_equal(first, parts) and np.allclose(first, parts, atol=1e-5)


def test_long_sums_fill_the_device():
    with use(OfflineDevice(shim.H200)):
        for text in ("n8 c3 h224 w224 k64 r7 s7 p3 stride2", "n8 c64 h56 w56 k64 r1 s1", str(LAYER)):
            problem = ConvProblem.parse(text).replace(direction="backward_weights")
            tile, parts = DIRECT.geometry(problem, shim.H200)
            assert split_k_weights.blocks_of_part(problem, tile) * parts > 0.9 * shim.H200.multiprocessors
            assert DIRECT.workspace_bytes(problem) <= split_k_weights.PASS_BYTES
        wide = ConvProblem.parse("n64 c512 h28 w28 k2048 r1 s1 backward_weights")
        assert DIRECT.geometry(wide, shim.H200)[1] <= 4


@pytest.mark.parametrize("limit", [0, 1 << 19, 1 << 22])
def test_a_limit_of_workspace_is_kept(limit):
    with use(shim.RecordingDevice()):
        plan = ca.plan(LAYER, device="cuda:0", algorithm="gpu.direct.weights", workspace_limit=limit)
        assert plan.algorithm == "gpu.direct.weights"
        assert plan.workspace_bytes <= limit
        assert (plan.workspace_bytes > 0) == (limit > 0)


def test_a_graph_reads_x_and_dy_where_they_lie():
    problem = ConvProblem.parse("n2 c5 h9 w8 k6 r3 s3 p1 backward_weights")
    x, dy, _, dw = example(problem, "integers")
    memory = [aligned_empty(a.size, np.float32).reshape(a.shape) for a in (x, dy)]
    for to, values in zip(memory, (x, dy), strict=True):
        to[...] = values
    with use(shim.ShimDevice()):
        plan = planned(problem, DIRECT.tiles(problem)[-1], 3)
        replay = plan.capture(*memory)
        replay.y.fill(np.nan)
        assert np.array_equal(replay(), dw)
        memory[1] *= 2
        assert np.array_equal(replay(), 2 * dw)
        with pytest.raises(ValueError, match="dy must be contiguous"):
            plan.capture(memory[0], dy[..., ::-1])
        same = ConvProblem.parse("n6 c5 h3 w3 k6 r3 s3 p1 backward_weights")  # whose dy is as large as dw
        x, dy = (np.ascontiguousarray(a) for a in example(same, "integers")[:2])
        taken = aligned_empty(2 * dy.size, np.float32)
        given, over = taken[: dy.size].reshape(dy.shape), taken[:270].reshape(same.w_shape)
        given[...] = dy
        with pytest.raises(ValueError, match="out overlaps dy"):
            DIRECT.serve(same).capture(on_a_line(x), given, out=over)
        assert DIRECT.serve(same)(on_a_line(x), given, out=over) is over
        assert np.array_equal(over, example(same, "integers")[3])


def on_a_line(array):
    made = aligned_empty(array.size, array.dtype).reshape(array.shape)
    made[...] = array
    return made


def test_what_it_does_not_compute_is_named():
    with use(OfflineDevice(shim.H200)):
        assert "backward_weights only, not forward" in DIRECT.why_not(LAYER.replace(direction="forward"))
        with pytest.raises(Unsupported, match="float32 in float32, not in tf32"):
            DIRECT.serve(LAYER.replace(compute_dtype="tf32"))
