"""The further forms of Hopper's kernel in emulation: teams in turns, clusters of blocks, copies that write y.

As in test_gpu_implicit_gemm_wgmma.py, the last part breaks the kernel in ways that hardware would not
forgive.
"""

from dataclasses import replace
from itertools import product

import pytest
from cuda_shim import device as shim
from helpers import Guarded, check_rounded
from test_gpu_implicit_gemm_wgmma import AWKWARD, HALF, LAYOUTS, TF32, THREE, typed

import convalgos as ca
from convalgos.gpu import implicit_gemm_wgmma as wgmma
from convalgos.gpu.compile.module import ELEMENTS, Build, source_text
from convalgos.gpu.device import use
from convalgos.gpu.gemm.wgmma_forms import PLAIN, RACED, WgmmaForm, WgmmaTile
from convalgos.gpu.gemm.wgmma_plan import band, wgmma_build
from convalgos.gpu.implicit_gemm_wgmma import Wgmma
from convalgos.select import choose, devices
from convalgos.select.measured import Measured
from convalgos.select.wisdom_file import IDS

needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
each_form = pytest.mark.parametrize("form", RACED, ids=lambda f: f.name)
BY_NAME = {form.name: form for form in RACED}
FEW = replace(shim.H200, multiprocessors=2)  # so that blocks go on to further tiles


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    monkeypatch.setattr(Guarded, "BAND", 1024)


# --- answers -------------------------------------------------------------------------------------


@needs_shim
@pytest.mark.parametrize("base", (HALF, TF32), ids=lambda a: a.id)
@each_form
def test_every_build_computes(form, base):
    """On two multiprocessors: odd sizes, groups, all dimensions, both layouts; split sums in turn."""
    algorithm, turn, launched = replace(base, form=form), 0, set()
    builds = {wgmma_build({"element_t": ELEMENTS[base.dtypes[0]]}, tile, form) for tile in form.tiles}
    shim.ShimDevice().compile(builds)
    with use(shim.ShimDevice(FEW)):
        for line, layout in product(AWKWARD, LAYOUTS):
            problem = typed(line, base.dtypes[0], layout)
            if reason := algorithm.why_not(problem):
                assert form.bulk and "lines of whole 16 bytes" in reason
                continue
            for tile in form.tiles:
                turn += 1
                plan = algorithm.planned(problem, tile, 1 + (turn + turn // 4) % 2)
                launched |= {launch.build for launch in plan.launches}
                check_rounded(algorithm, problem, plan, "integers" if base is HALF else "reals")
    assert launched == builds


@needs_shim
@each_form
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_and_teams_go_on_to_further_tiles(form, layout):
    """An odd number of tiles, so that a cluster's last has no pixels; of whole sums and of thirds."""
    problem = typed("n4 c40 h10 w14 k304 r3 s1 p1", "float16", layout)
    algorithm = replace(HALF, form=form)
    with use(shim.ShimDevice(FEW)):
        for splits in (1, 3):
            plan = algorithm.planned(problem, form.tiles[0], splits)
            work = wgmma.wgmma_tiles(problem, form.tiles[0], form.cluster) * splits
            (blocks,) = next(launch for launch in plan.launches if launch.name == "multiply").grid
            assert blocks == 2 and work >= 4
            check_rounded(algorithm, problem, plan, "integers")


@needs_shim
@pytest.mark.parametrize("form", [PLAIN, *RACED], ids=lambda f: f.name or "plain")
@pytest.mark.parametrize("size", ["h14 w14", "h6 w7", "h7 w7", "h4 w4"])
def test_lines_of_any_number_of_pixels(form, size):
    """Runs of 4, 2, 1 and 8 elements, and images smaller than a tile, in both types."""
    for base, dtype in ((HALF, "float16"), (TF32, "float32")):
        problem = typed(f"n11 c16 {size} k19 r1 s1", dtype, "channels_first")
        algorithm = replace(base, form=form)
        with use(shim.ShimDevice(FEW)):
            if size == "h4 w4" or not form.bulk:
                check_rounded(algorithm, problem, algorithm.planned(problem, form.tiles[0], 1), "integers")


@needs_shim
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bands_of_filters_are_all_computed(layout):
    """Where filters do not stay in L2: three bands, the last of them narrower."""
    form = BY_NAME["cluster"]
    problem = typed("n9 c24 h9 w10 k900 r2 s1", "float16", layout)
    algorithm, small = replace(HALF, form=form), replace(FEW, l2_bytes=400 << 10)
    filter_tiles = -(-900 // form.tiles[1].filters(problem))
    assert 1 < band(problem, form.tiles[1], 1, small) < filter_tiles
    assert band(problem, form.tiles[1], 1, FEW) == filter_tiles
    with use(shim.ShimDevice(small)):
        check_rounded(algorithm, problem, algorithm.planned(problem, form.tiles[1], 1), "integers")


@needs_shim
def test_gradients_of_the_input_have_them_too():
    problem = typed("n2 c8 h6 w5 k8 r3 s3 p1", "float16").replace(direction="backward_data")
    with use(shim.ShimDevice(FEW)):
        plan = ca.plan(problem, device="cuda", algorithm=f"{HALF.id}.pingpong")
        assert plan.algorithm == f"{HALF.id}.pingpong"


# --- the choice ----------------------------------------------------------------------------------


def test_they_are_measured_and_not_chosen_before(wisdom):
    problem = typed("n64 c64 h56 w56 k256 r3 s3 p1", "float16")
    with use(shim.RecordingDevice()):
        for base in (HALF, TF32, THREE):
            found = [a.id for a in base.variants(problem)]
            assert found == [f"{base.id}.{form.name}" for form in RACED]
            assert all(IDS.fullmatch(i) for i in found)
            assert not base.variants(problem)[0].variants(problem)
        ids = {f"{HALF.id}.{form.name}" for form in RACED}
        assert not ids & {c.id for c in choose.rank(problem, "cuda").candidates}
        assert ids <= {c.id for c in choose.rank(problem, "cuda", exhaustive=True).candidates}
        variant = f"{HALF.id}.pingpong_cluster"
        devices.store("cuda:0").record(problem, {variant: Measured((1e-9,) * 5)})
        assert ca.explain(problem, device="cuda").candidates[0].id == variant


def test_what_they_are_to_gain():
    """By prediction: the stop at the end of a tile is hidden, and clusters ask less of L2."""
    wide, square = RACED[1].tiles[0], RACED[0].tiles[0]
    problem = typed("n64 c64 h56 w56 k256 r3 s3 p1", "float16")
    clocks = 128 * 256 * 64 / 2048  # of a step of a wide tile at the peak
    assert PLAIN.read_bytes(wide, problem) / clocks == 48
    assert BY_NAME["cluster"].read_bytes(wide, problem) / clocks == 48 - 16
    assert BY_NAME["pingpong_cluster"].read_bytes(square, problem) * 2 / clocks == 48
    for steps in (9, 36, 144):
        plain, turns, bulk = (
            form.duration(10, steps, 4) for form in (PLAIN, BY_NAME["pingpong"], BY_NAME["bulk_cluster"])
        )
        assert turns < bulk < plain
        assert turns == 10 * steps + 8  # but for the last one, no tile is waited for
    assert BY_NAME["pingpong"].duration(10, 1, 4) == 45  # where writing takes longer than products


def test_filters_that_stay_in_l2_are_one_band():
    """Beyond half of it, unless x is what costs more to read again."""
    tile = BY_NAME["cluster"].tiles[0]
    for line, bands in (
        ("n64 c512 h14 w14 k512 r3 s3 p1", 1),
        ("n64 c2048 h28 w28 k2048 r3 s3 p1", 3),
        ("n1 c2048 h7 w7 k2048 r3 s3 p1", 1),  # a single wave
    ):
        problem = typed(line, "float16")
        filter_tiles = problem.K // 256
        assert -(-filter_tiles // band(problem, tile, 1, shim.H200)) == bands, line


# --- what must not pass ------------------------------------------------------------------------------

TURNS, PAIR, BULK, BULK_32 = (
    (HALF, BY_NAME["pingpong_cluster"], WgmmaTile(64, 64, 4, 1)),
    (HALF, BY_NAME["cluster"], WgmmaTile(128, 64, 4, 1)),
    (HALF, BY_NAME["bulk_cluster"], WgmmaTile(128, 64, 4, 1)),
    (TF32, BY_NAME["bulk_cluster"], WgmmaTile(128, 64, 4, 1)),
)
MEET = "if constexpr (CLUSTER > 1)\n        meet_cluster();\n    else\n        __syncthreads();"
SHOWN = "show_to_copies();\n        __syncwarp();"
BROKEN: dict[str, tuple[tuple[Wgmma, WgmmaForm, WgmmaTile], str, str]] = {
    "a block that ends before the other has arrived at its barriers": (
        PAIR,
        "if constexpr (CLUSTER > 1) meet_cluster();  //",
        "//",
    ),
    "barriers that the other block uses before they are made": (PAIR, MEET, "__syncthreads();"),
    "a stage that is free when one block has read it": (PAIR, "WARPS / TEAMS * CLUSTER", "WARPS / TEAMS"),
    "a stage that is freed in one block only": (
        PAIR,
        "if (lane < CLUSTER) arrive_in_cluster(empty, lane);",
        "if (lane == 0) arrive(empty);",
    ),
    "a copy to this block only": (PAIR, "(1 << CLUSTER) - 1", "1 << cluster_rank()"),
    "a copy to a block that there is not": (PAIR, "(1 << CLUSTER) - 1", "7"),
    "the same half of the filters twice": (PAIR, "begin = cluster_rank() * share", "begin = 0"),
    "all filters twice": (PAIR, "share = w_bytes / CLUSTER", "share = w_bytes"),
    "products out of turn": (
        TURNS,
        "wait_for_turn(turns + team, (count / TEAMS & 1) ^ (team == 0));",
        "{}",
    ),
    "a turn that is never given": (TURNS, "give_turn(turns + 1 - team);", "{}"),
    "a turn that is given to oneself": (TURNS, "turns + 1 - team", "turns + team"),
    "two teams that both begin": (TURNS, " ^ (team == 0)", " ^ 1"),
    "steps of the other team that are not passed over": (TURNS, "at.skip(work.end - work.begin);", ""),
    "stages that wait for both teams": (TURNS, "WARPS / TEAMS * CLUSTER", "WARPS * CLUSTER"),
    "writing that copies are not shown": (BULK, SHOWN, "__syncwarp();"),
    "copies that do not wait for other lanes": (BULK, SHOWN, "show_to_copies();"),
    "lanes that show what they write later": (BULK, SHOWN, "__syncwarp();\n        show_to_copies();"),
    "memory that is written while copies read it": (
        BULK,
        "wait_for_stores();\n        __syncwarp();",
        "__syncwarp();",
    ),
    "memory that other lanes write while copies read it": (
        BULK_32,
        "wait_for_stores();\n        __syncwarp();",
        "wait_for_stores();",
    ),
    "a block that ends while copies read its memory": (BULK, "wait_for_stores();  //", "//"),
    "copies that are never closed": (BULK, "close_stores();", ""),
    "matrices in another order": (BULK, "(c + lane / 16) * 16", "(c + lane / 8 % 2) * 16"),
    "copies off 16 bytes": (
        BULK,
        "BULK_COLUMNS * sizeof(element_t) + 16",
        "BULK_COLUMNS * sizeof(element_t) + 8",
    ),
}


def check_kernel(base: Wgmma, form: WgmmaForm, tile: WgmmaTile) -> None:
    algorithm, problem = replace(base, form=form), typed("n3 c72 h9 w11 k72 r3 s1 p1", base.dtypes[0])
    with use(shim.ShimDevice(FEW)):
        check_rounded(algorithm, problem, algorithm.planned(problem, tile, 1), "integers")


@needs_shim
@pytest.mark.parametrize("kernel", [TURNS, PAIR, BULK, BULK_32], ids=lambda k: f"{k[0].math}-{k[1].name}")
def test_the_kernels_that_are_broken_are_right_before(monkeypatch, kernel):
    monkeypatch.setattr(shim, "COMMAND", (*shim.COMMAND, "-O0"))
    check_kernel(*kernel)
    shim.compiled.cache_clear()


@needs_shim
@pytest.mark.parametrize("fault", BROKEN)
def test_the_stand_in_is_strict(monkeypatch, fault):
    """A kernel with one of these faults stops with a reason, or computes NaN or other wrong numbers."""
    whole = source_text
    kernel, old, new = BROKEN[fault]

    def broken(build: Build, replaced):
        body = whole(build, replaced)
        if build.source != "implicit_gemm_wgmma.cu":  # what the stand-in itself needs
            return body
        assert body.count(old) == 1, f"{fault}: the kernel reads otherwise now"
        return body.replace(old, new)

    monkeypatch.setattr(shim, "source_text", broken)
    monkeypatch.setattr(shim, "COMMAND", (*shim.COMMAND, "-O0"))
    shim.compiled.cache_clear()
    try:
        with pytest.raises(AssertionError) as error:
            check_kernel(*kernel)
        assert "reads otherwise" not in str(error.value)
    finally:
        shim.compiled.cache_clear()
