"""Hopper's kernels in emulation: every build, both layouts, split sums, tile after tile; and its strictness.

hopper.cuh has a stand-in that does what PTX documents and makes undefined results NaN. The last part breaks
the kernel in ways that hardware would not forgive, and expects each to be found.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim
from helpers import PROBLEMS, Guarded, check_rounded, example

from convalgos.core.problem import ConvProblem
from convalgos.gpu import implicit_gemm_wgmma as wgmma
from convalgos.gpu.compile.module import Build, source_text
from convalgos.gpu.device import tma, use
from convalgos.gpu.device.tma import Im2colView, TensorMapCache
from convalgos.gpu.gemm import wgmma_operands
from convalgos.gpu.gemm.wgmma_forms import PLAIN
from convalgos.gpu.implicit_gemm import ImplicitGemm
from convalgos.gpu.implicit_gemm_wgmma import Wgmma

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
HALF, TF32, THREE = Wgmma("half"), Wgmma("tf32"), Wgmma("3xtf32")
LAYOUTS = ("channels_first", "channels_last")
MOST_STEPS = 60  # of a problem of the table
AWKWARD = [
    "n2 c16 h8 w14 k40 r3 s3 p0:2,2 stride2",  # whole vectors of y, more steps than stages
    "n2 c72 h9 w11 k130 r1 s1",  # channels and filters just beyond a step and a tile
    "n1 c96 h6 w8 k24 r3 s2 p2 dilation2,1 groups2",  # channels of a group that end within a step
    "n3 c5 d3 h4 w5 k3 t2 r2 s3 p1 stride1,2,1",
    "n1 c7 w333 k9 s4 p3:0",
]


def typed(text: str, dtype: str, layout: str = "channels_last") -> ConvProblem:
    compute = "tf32" if dtype == "float32" else "float32"
    return ConvProblem.parse(text).replace(layout=layout, dtype=dtype, compute_dtype=compute)


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)


# --- answers -------------------------------------------------------------------------------------


@needs_shim
@pytest.mark.parametrize("algorithm", (HALF, TF32, THREE), ids=lambda a: a.id)
def test_every_build_computes(algorithm):
    """All tiles, whole and split sums: on integers, exactly; on reals where they are rounded or split."""
    shim.ShimDevice().compile(algorithm.builds())
    launched = set()
    with use(shim.ShimDevice()):
        for (row, line), dtype in product(enumerate(AWKWARD), algorithm.dtypes):
            for turn, (tile, splits) in enumerate(product(PLAIN.tiles, (1, 2)), 2 * row):
                # each tile in either layout on every line, whole and in parts
                problem = typed(line, dtype, LAYOUTS[(turn + turn // 2) % 2])
                assert algorithm.why_not(problem) is None
                if splits > wgmma.sum_steps(problem, algorithm.terms):
                    continue
                plan = algorithm.planned(problem, tile, splits)
                launched.add(plan.launches[0].build)
                check_rounded(algorithm, problem, plan, "integers" if algorithm is HALF else "reals")
    assert launched == set(algorithm.builds())


@needs_shim
@pytest.mark.parametrize("algorithm, dtype", [(HALF, "bfloat16"), (TF32, "float32"), (THREE, "float32")])
def test_the_table_of_awkward_problems(algorithm, dtype):
    """Each problem in one layout, and in the other by the algorithm after this one."""
    served = 0
    with use(shim.ShimDevice()):
        for turn, line in enumerate(PROBLEMS, algorithm is TF32):
            problem = typed(line, dtype, LAYOUTS[turn % 2])
            if problem.is_empty or problem.mode == "convolution" or algorithm.why_not(problem):
                continue
            if wgmma.sum_steps(problem, algorithm.terms) <= MOST_STEPS:
                served += 1
                check_rounded(algorithm, problem, algorithm.serve(problem), "integers")
    assert served > 30


@needs_shim
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_computes_several_tiles(layout):
    """On a device so small that each block goes on to further tiles, and to parts of a split sum."""
    problem = typed("n3 c40 h9 w11 k300 r3 s1 p1", "float16", layout)
    with use(shim.ShimDevice(replace(shim.H200, multiprocessors=2))):
        for tile, splits in product(PLAIN.tiles, (1, 3)):
            plan = HALF.planned(problem, tile, splits)
            work = wgmma.wgmma_tiles(problem, tile) * splits
            (blocks,) = next(launch for launch in plan.launches if launch.name == "multiply").grid
            assert work > blocks
            check_rounded(HALF, problem, plan, "integers")


@needs_shim
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "line", ["n1 c8 w5 k3 s3 p1", "n1 c64 h1 w200 k16 r1 s1", "n2 c8 d2 h3 w4 k8 t2 r2 s2 p1"]
)
def test_one_to_three_dimensions(line, layout):
    with use(shim.ShimDevice()):
        for algorithm, dtype in ((HALF, "float16"), (TF32, "float32")):
            problem = typed(line, dtype, layout)
            check_rounded(algorithm, problem, algorithm.serve(problem), "reals")


@needs_shim
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [64, 40])
def test_a_group_never_meets_the_data_of_another(layout, channels):
    """Also where a step of 64 channels goes on beyond the group's."""
    problem = typed(f"n1 c{2 * channels} h4 w5 k6 r3 s3 p1 groups2", "float16", layout)
    x, w, *_ = example(typed(str(problem), "float32", "channels_first").replace(compute_dtype=None), "reals")
    x, w = x.astype(np.float16), w.astype(np.float16)
    x[:, channels:] = np.nan
    with use(shim.ShimDevice()):
        plan = HALF.serve(problem)
        y = plan(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "channels_last" else x, w)
    y = np.moveaxis(y, -1, 1) if layout == "channels_last" else y
    assert np.isfinite(y[:, :3]).all()
    assert np.isnan(y[:, 3:]).all()


@needs_shim
def test_tf32_rounds_both_factors_to_nearest():
    """Products of 1 + 2^-11 + 2^-20, which are rounded up, and 1 - 2^-13, which is rounded up to 1."""
    problem = typed("n1 c32 w8 k8 s1", "float32")
    up, down = np.float32(1 + 2**-11 + 2**-20), np.float32(1 - 2**-13)
    x, w = np.full((1, 8, 32), up), np.full((8, 32, 1), down)
    with use(shim.ShimDevice()):
        plan = TF32.serve(problem)
        assert (plan(x, w) == np.float32(32 * (1 + 2**-10))).all()
        assert (plan(np.full_like(x, down), np.full_like(w, up)) == np.float32(32 * (1 + 2**-10))).all()
        for special in (np.nan, np.inf):  # NaN of any bits stays NaN
            assert np.array_equal(
                plan(x, np.full_like(w, special))[0, 0], np.full(8, special), equal_nan=True
            )
        low = np.array([0x7F800001], np.uint32).view(np.float32)[0]
        assert np.isnan(plan(x, np.full_like(w, low))).all()


@needs_shim
@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_products_are_nearly_float32(layout):
    """With groups whose channels end within a step; and NaN, which infinity becomes, too, stays NaN."""
    problem = typed("n1 c80 h9 w8 k24 r3 s3 p1 groups2", "float32", layout)
    x, w, _, y = example(problem.replace(compute_dtype=None, layout="channels_first"), "reals")
    last = layout == "channels_last"
    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    errors = {}
    with use(shim.ShimDevice()):
        for algorithm in (TF32, THREE):
            found = algorithm.serve(problem)(given, w)
            found = np.moveaxis(found, -1, 1) if last else found
            errors[algorithm.math] = np.abs(found - y).max() / np.abs(y).max()
        point = typed("n1 c32 w8 k8 s1", "float32", layout)
        ones = np.ones(point.array_shape(point.x_shape), np.float32)
        for a, b in ((np.nan, 1), (1, np.nan), (np.inf, 1)):
            assert np.isnan(THREE.serve(point)(a * ones, np.full((8, 32, 1), b, np.float32))).all()
    assert 1e-5 < errors["tf32"] < 2e-3
    assert errors["3xtf32"] < 2e-6


@needs_shim
def test_zeros_of_the_padding_and_beyond_the_channels():
    """The copy engine's zeros: outputs of a constant input count the taps and channels that they see."""
    problem = typed("n2 c24 h3 w3 k1 r3 s3 p1", "float16")
    with use(shim.ShimDevice()):
        y = HALF.serve(problem)(np.ones((2, 3, 3, 24), np.float16), np.ones((1, 24, 3, 3), np.float16))
    assert np.array_equal(y[1, ..., 0], 24 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]))


# --- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm, line, figures, reason",
    [
        (HALF, "n1 c64 h8 w8 k64 r3 s3 p1 float16", {"capability": (8, 0)}, "9.0 and less than 10.0"),
        (HALF, "n1 c64 h8 w8 k64 r3 s3 p1 bfloat16", {"capability": (8, 0)}, "9.0 and less than 10.0"),
        (HALF, "n1 c64 h8 w8 k64 r3 s3 p1 float16", {"capability": (10, 0)}, "the device has 10.0"),
        (HALF, "n1 c64 h8 w8 k64 r3 s3 p1", {}, "float16 and bfloat16 only"),
        (TF32, "n1 c64 h8 w8 k64 r3 s3 p1", {}, "in tf32, not in float32"),
        (HALF, "n1 c64 h80 w8 k64 r3 s3 p1 stride9,1 float16", {}, "up to 8 apart, but the stride is 9"),
        (HALF, "n1 c64 h8 w8 k64 r1 s1 p129 float16", {}, "up to 128 pixels outside"),
        (HALF, "n1 c64 h400 w8 k64 r258 s1 float16", {}, "up to 128 pixels"),
        (HALF, "n1 c8 d40 h8 w8 k8 t33 r1 s1 p0:20,0,0 float16", {}, "reaches taps 31 pixels apart"),
        (HALF, "n1 c32 h8 w8 k32 r3 s3 groups32 float16", {}, "a group fills only 2"),
        (HALF, "n16777215 c8 w128 k8 s1 float16", {}, "to the end of a tile, but there are 2147483520"),
        (HALF, "n1 c64 h8 w8 k64 r3 s3 float16", {"block_shared_bytes": 99 << 10}, "bytes of shared memory"),
    ],
)
def test_reasons(algorithm, line, figures, reason):
    with use(shim.RecordingDevice(replace(shim.H200, **figures))):
        assert reason in str(algorithm.why_not(ConvProblem.parse(line).replace(layout="channels_last")))


def test_strides_of_whole_pieces_are_read_in_place():
    """x is copied to another order only where the copy engine or a neighbouring group demands it."""
    for line, packed in (
        ("n1 c64 h8 w8 k64 r3 s3", False),
        ("n1 c24 h8 w8 k64 r3 s3", False),
        ("n1 c20 h8 w8 k64 r3 s3", True),
        ("n1 c128 h8 w8 k64 r3 s3 groups2", False),
        ("n1 c96 h8 w8 k64 r3 s3 groups2", True),
    ):
        assert wgmma_operands.is_packed(typed(line, "float16"), 1) is packed
        assert wgmma_operands.is_packed(typed(line, "float16", "channels_first"), 1)


def test_the_tile_fits_the_problem():
    def geometry(line, layout="channels_last"):
        return wgmma.geometry(HALF, typed(line, "float16", layout), shim.H200)[:2]

    large, whole = geometry("n64 c256 h56 w56 k256 r3 s3 p1")
    assert large[:2] == (128, 256) and whole == 1
    assert geometry("n64 c128 h56 w56 k128 r3 s3 p1")[0][:2] == (256, 128)
    assert geometry("n64 c256 h56 w56 k192 r3 s3 p1")[0][:2] == (128, 192)
    assert geometry("n64 c256 h56 w56 k64 r1 s1")[0][:2] == (128, 64)
    assert geometry("n64 c64 h56 w56 k64 r3 s3 p1", "channels_first")[0][:2] == (64, 256)
    assert geometry("n1 c512 h7 w7 k512 r3 s3 p1")[1] > 1


def test_dense_layers_of_many_channels_are_worth_it():
    """By prediction, beside mma.sync: where tiles are full, in both layouts; not where zeros fill steps."""
    pairs = [
        (ours, ImplicitGemm(ours.math), dtype)
        for ours, dtype in ((HALF, "float16"), (TF32, "float32"), (THREE, "float32"))
    ]
    with use(shim.RecordingDevice()):
        for (ours, other, dtype), layout in product(pairs, LAYOUTS):
            for line, wins in (
                ("n64 c256 h56 w56 k256 r3 s3 p1", True),
                ("n8 c128 h28 w28 k128 r3 s3 p1", True),
                ("n32 c512 h14 w14 k512 r3 s3 p1", True),
                ("n8 c3 h224 w224 k64 r7 s7 p3 stride2", False),
            ):
                problem = typed(line, dtype, layout)
                assert (ours.cost(problem, shim.H200) < other.cost(problem, shim.H200)) is wins, problem


# --- tensor maps -----------------------------------------------------------------------------------


@needs_shim
@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": (8, 0, 2)},
        {"sizes": (7, 5, 2)},  # pixels of 14 bytes
        {"steps": (9,)},
        {"lower": (-40000,)},
        {"upper": (-6,)},  # an empty box
        {"pixels": 1025},
        {"channels": 32},  # 64 bytes, which are not swizzled by 128
        {"address": 8},
    ],
)
def test_what_the_driver_refuses_is_an_error(changed):
    """The stand-in for it knows the limits of its manual."""
    view = Im2colView.of(typed("n2 c8 w5 k3 s3 p1", "float16"), 8, 64, 64)
    assert tma.encode(view, 160, shim.driver()).nbytes == 128
    address = changed.get("address", 160)
    wrong = replace(view, **{name: value for name, value in changed.items() if name != "address"})
    with pytest.raises(RuntimeError, match="status 1 for Im2col"):
        tma.encode(wrong, address, shim.driver())


def test_the_box_of_first_taps():
    """Innermost first; the end counts from the last input, and is that of the last output's first tap."""
    problem = typed("n2 c24 h9 w7 k20 r3 s3 p1:0,2 stride2,1 dilation1,2", "float16")
    view = Im2colView.of(problem, 24, 64, 128)
    assert problem.spatial_out == (4, 7)  # the last one's first tap is at h = 3 * 2 - 1, w = 6 - 2
    assert view.sizes == (24, 7, 9, 2) and view.strides == (48, 48 * 7, 48 * 63)
    assert view.lower == (-2, -1) and view.upper == (4 - 6, 5 - 8)
    assert view.steps == (1, 2) and view.reach == (4, 2) and view.itemsize == 2


def test_maps_are_made_once_for_an_address():
    made = []
    maps = TensorMapCache(lambda view, address: made.append(address) or np.zeros(1), "view")
    first = maps.at(16)
    assert maps.at(16) is first and maps.at(32) is not first and made == [16, 32]
    for address in range(1000):
        maps.at(address)
    assert len(maps._known) <= tma.CACHED_MAPS


# --- what must not pass ------------------------------------------------------------------------------

RELEASE = "if (step > work.begin) free_stage(empty + last);"
EXPECT = "arrive_expecting(full + at.stage, STAGE_BYTES)"
BROKEN = {
    "products that are not ordered after other accesses": ("order_products();", ""),
    "sums that are read before their group is waited for": ("wait_for_products<0>(sums);", ""),
    "a group that is never closed": ("close_products();", ""),
    "products that do not wait for their data": ("wait_for(full + at.stage, at.parity);", ""),
    "copies that do not wait for a free stage": ("wait_for(empty + at.stage, at.parity ^ 1);", ""),
    "a stage that is freed too early": (
        f"wait_for_products<1>(sums);\n                {RELEASE}",
        "free_stage(empty + at.stage);",
    ),
    "a stage that is never freed": (RELEASE, ""),
    "fewer bytes than are expected": (EXPECT, EXPECT.replace(")", " + 16)")),
    "more bytes than are expected": (EXPECT, EXPECT.replace(")", " - 16)")),
    "a wrong parity": ("at.parity ^ 1", "at.parity"),
    "a barrier for more arrivals than come": ("barrier(empty + i, READERS)", "barrier(empty + i, 9)"),
    "a barrier for no arrivals": ("make_barrier(full + i, 1)", "make_barrier(full + i, 0)"),
    "barriers that others use before they are made": (
        "else\n        __syncthreads();\n    Ring at;",
        "Ring at;",
    ),
    "barriers that the copy engine cannot see": ("barriers_are_made();", ""),
    "stages off 1024 bytes": ("(0u - shared_address(bytes)) % ALIGNED", "0"),
    "less shared memory than is used": ("ring + STAGES * STAGE_BYTES;", "ring + 5 * STAGE_BYTES;"),
    "a matrix without swizzle": ("| 1ull << 62", ""),
    "a matrix of another stride": ("(1024ull >> 4) << 32", "(512ull >> 4) << 32"),
    "steps along the rows of another size": ("b + 2 * k", "b + 4 * k"),
    "a map of other dimensions": ("params.dimensions == 2", "params.dimensions != 2"),
}


@needs_shim
@pytest.mark.parametrize("fault", BROKEN)
def test_the_stand_in_is_strict(monkeypatch, fault):
    """A kernel with one of these faults stops with a reason, or computes NaN or other wrong numbers."""
    whole = source_text
    old, new = BROKEN[fault]

    def broken(build: Build, replaced):
        body = whole(build, replaced)
        assert body.count(old) == 1, f"{fault}: the kernel reads otherwise now"
        return body.replace(old, new)

    problem = typed("n2 c72 h9 w11 k70 r3 s1 p1", "float16")
    assert PLAIN.tiles[4].stages == 4
    monkeypatch.setattr(shim, "source_text", broken)
    monkeypatch.setattr(shim, "COMMAND", (*shim.COMMAND, "-O0"))
    shim.compiled.cache_clear()
    try:
        with use(shim.ShimDevice()), pytest.raises(AssertionError) as error:
            check_rounded(HALF, problem, HALF.planned(problem, PLAIN.tiles[4], 1), "integers")
        assert "reads otherwise" not in str(error.value)
    finally:
        shim.compiled.cache_clear()
