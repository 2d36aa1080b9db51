"""What is particular to convolution through the FFT: lengths, blocks, phases, engines, wisdom, workspace."""

import ctypes
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import numpy as np
import pytest
from helpers import check
from hypothesis import given, settings
from hypothesis import strategies as st

import convalgos as ca
from convalgos.core import cache_files
from convalgos.core.allocator import aligned_zeros
from convalgos.core.errors import missing
from convalgos.cpu.fft import Fft
from convalgos.cpu.runtime import jit
from convalgos.cpu.spectral import blocking, engines
from convalgos.cpu.spectral import cost as spectral_cost
from convalgos.cpu.spectral import lengths as fft_lengths
from convalgos.cpu.spectral import plan as spectral_plan
from convalgos.select.measure.accuracy import random_arrays

pytestmark = pytest.mark.skipif(
    missing("llvmlite") is not None or engines.why_not_engine("fftw") is not None,
    reason="needs llvmlite and pyfftw",
)
ENGINES = [
    pytest.param(
        engine, marks=pytest.mark.skipif(engines.why_not_engine(engine) is not None, reason=f"no {engine}")
    )
    for engine in engines.ENGINES
]
LAYOUTS = ("channels_first", "channels_last")


def parse(text: str, layout: str = "channels_first", dtype: str = "float32") -> ca.ConvProblem:
    return ca.ConvProblem.parse(text).replace(layout=layout, dtype=dtype)


@pytest.fixture
def small_caches(monkeypatch):
    """Schedules as on a machine with tiny caches, which cuts small problems into many chunks."""

    def shrink(l2_bytes: int, **constants: int) -> None:
        monkeypatch.setattr(blocking, "cache_sizes", lambda: (1024, l2_bytes, 4 * l2_bytes))
        for name, value in constants.items():
            module = next(m for m in (spectral_plan, spectral_cost, blocking) if hasattr(m, name))
            monkeypatch.setattr(module, name, value)
        for cached in (spectral_cost.in_lengths, spectral_cost.blocked):
            cached.cache_clear()

    yield shrink
    for cached in (spectral_cost.in_lengths, spectral_cost.blocked):
        cached.cache_clear()


# --- engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "lengths", [(1, 1, 1), (1, 1, 12), (1, 9, 1), (8, 1, 1), (1, 4, 6), (3, 5, 7), (2, 1, 5)]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_transforms_are_numpys(engine, lengths, dtype):
    transform = engines.plan_transform(engine, dtype, lengths)
    execute = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
    plane = aligned_zeros(2 * fft_lengths.spectrum_size(lengths), dtype)
    strides = [s * plane.itemsize for s in fft_lengths.strides(lengths)]
    real = np.lib.stride_tricks.as_strided(plane, lengths, strides)  # a view
    x = np.random.default_rng(0).standard_normal(lengths).astype(dtype)
    real[...] = x
    execute(transform.execute_forward)(transform.forward, plane.ctypes.data, plane.ctypes.data)
    expected = np.fft.rfftn(x.reshape(fft_lengths.longer_lengths(lengths)))
    tolerance = 20 * np.finfo(dtype).eps * np.abs(expected).max()
    assert np.abs(plane.view(np.result_type(dtype, np.complex64)) - expected.ravel()).max() < tolerance
    execute(transform.execute_inverse)(transform.inverse, plane.ctypes.data, plane.ctypes.data)
    assert np.abs(real / math.prod(lengths) - x).max() < 20 * np.finfo(dtype).eps * np.abs(x).max()


@given(st.integers(1, 3_000_000))
@settings(max_examples=200)
def test_good_lengths(least):
    length = fft_lengths.fast_length(least)
    assert least <= length < 2 * least or length <= 4
    for prime in (2, 3, 5, 7):
        while length % prime == 0:
            length //= prime
    assert length == 1


@pytest.mark.parametrize("least", [5, 97, 211, 1000, 1025, 65537, 99_999])
def test_no_longer_length_is_faster(least):
    def seconds(n):
        return n * math.log2(n) / fft_lengths.speed(n)

    longer = {m << e for m in fft_lengths.ODD_PARTS for e in range(20)}
    assert seconds(fft_lengths.fast_length(least)) == min(seconds(n) for n in longer if n >= least)


def test_a_transform_is_planned_once():
    lengths = (1, 1, 6)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: engines.plan_transform("fftw", "float32", lengths), range(32)))
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_engines_agree(dtype, layout):
    if reason := engines.why_not_engine("mkl"):
        pytest.skip(reason)
    problem = parse("n2 c3 h40 w37 k5 r9 s8 p4:3,2 stride2,1", layout, dtype)
    x, w = random_arrays(problem)
    first, second = (Fft(engine).serve(problem)(x, w) for engine in ("fftw", "mkl"))
    assert np.abs(first - second).max() < Fft().error_bound(problem) * np.abs(first).max()


# --- wisdom ----------------------------------------------------------------------------------


@pytest.fixture
def own_wisdom(monkeypatch, tmp_path):
    """A cache folder of our own, in which no wisdom was read yet."""
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache_files, "_told", {})
    engines.learn_wisdom.cache_clear()
    yield engines.wisdom_path("fftwf")
    engines.learn_wisdom.cache_clear()


@pytest.mark.parametrize(
    ("lengths", "search"),
    [
        ((1, 1, 4096), engines.PRUNE),
        ((1, 16384, 1), engines.PRUNE),
        ((1, 100, 100), engines.PRUNE),
        ((1, 128, 64), engines.PRUNE),
        ((1, 64, 128), engines.DIRECT),
        ((20, 12, 128), engines.DIRECT),
    ],
)
def test_no_search_is_a_full_one(lengths, search, monkeypatch):
    """FFTW would search for up to two seconds."""
    flags = []

    def noted(library, name, *arguments, result=None):
        def call(*given):
            if "_plan_dft_" in name:
                flags.append(given[-1])

        return call

    monkeypatch.setattr(engines, "_function", noted)
    monkeypatch.setattr(engines, "learn_wisdom", lambda prefix: None)
    with pytest.raises(RuntimeError, match="has no r2c plan"):
        engines.Transform("fftw", "float32", lengths)
    assert flags and all(f & ~engines.WISDOM_ONLY == search for f in flags)


def test_wisdom_is_kept_and_read_back(own_wisdom):
    import pyfftw

    before = pyfftw.export_wisdom()
    pyfftw.forget_wisdom()
    try:
        engines.Transform("fftw", "float32", (1, 1, 1200))
        text = cache_files.unsealed(own_wisdom.read_bytes().removeprefix(engines.WISDOM_MAGIC)).decode()
        pyfftw.forget_wisdom()
        engines.learn_wisdom.cache_clear()
        engines.learn_wisdom("fftwf")
        lines = pyfftw.export_wisdom()[1].decode().splitlines()
        assert sorted(lines) == sorted(text.splitlines()) and len(lines) > 2
    finally:
        pyfftw.import_wisdom(before)


def test_threads_that_use_fftw_first_at_the_same_time(own_wisdom):
    """It must not ready itself in two of them at once: one process in three was ended."""
    program = """
import sys, threading
from convalgos.cpu.spectral import engines
from convalgos.cpu.spectral import lengths as fft_lengths
sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
def work():
    start.wait()
    engines._library("fftw")
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
engines.Transform("fftw", "float64", (1, 1, 1200))
"""
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", program]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4


def test_wisdom_is_taken_by_programs_that_use_pyfftw_and_by_others(own_wisdom):
    """FFTW takes wisdom only where it knows the same solvers, which importing pyFFTW adds to."""
    make = (
        "from convalgos.cpu.spectral import engines as fftw; fftw.Transform('fftw', 'float32', (1, 1, 1200))"
    )
    for first in ("", "import pyfftw; ", ""):
        subprocess.run([sys.executable, "-W", "error", "-c", first + make], check=True)
    assert [path.name for path in own_wisdom.parent.iterdir()] == [own_wisdom.name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no wisdom",
        b"\x00\xff" * 100,
        b"(fftw-3.3.5 fftwf_wisdom #x1 #x2 #x3",
        engines.WISDOM_MAGIC + cache_files.sealed(b"no wisdom"),
    ],
)
def test_damaged_wisdom_is_set_aside(own_wisdom, content):
    own_wisdom.parent.mkdir(parents=True)
    own_wisdom.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        engines.learn_wisdom("fftwf")
    assert own_wisdom.with_name(own_wisdom.name + ".damaged").read_bytes() == content
    engines.keep_wisdom("fftwf")
    assert own_wisdom.read_bytes().startswith(engines.WISDOM_MAGIC)


def test_no_changed_byte_of_wisdom_reaches_fftw(own_wisdom, monkeypatch):
    """FFTW ends the process where it finds what it did not write."""
    engines.Transform("fftw", "float32", (1, 1, 1200))
    engines.keep_wisdom(
        "fftwf"
    )  # where another test has planned this length already, there is nothing new to keep
    whole = own_wisdom.read_bytes()
    monkeypatch.setattr(engines, "_accept", lambda *wisdom: pytest.fail("FFTW was given changed wisdom"))
    for place in [*range(0, 100, 7), *range(100, len(whole), max(1, len(whole) // 40))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        own_wisdom.write_bytes(changed)
        engines.learn_wisdom.cache_clear()
        with pytest.warns(RuntimeWarning, match="was damaged"):
            engines.learn_wisdom("fftwf")


def test_wisdom_that_others_can_change_is_passed_over(own_wisdom, monkeypatch):
    engines.keep_wisdom("fftwf")
    monkeypatch.setattr(engines, "_accept", lambda *wisdom: pytest.fail("it was read"))
    for path, mode in ((own_wisdom, 0o666), (own_wisdom.parent, 0o777)):
        path.chmod(mode)
        engines.learn_wisdom.cache_clear()
        engines._usable.cache_clear()
        with pytest.warns(RuntimeWarning, match="others"):
            engines.learn_wisdom("fftwf")


def test_wisdom_that_cannot_be_kept_costs_a_warning(own_wisdom, monkeypatch, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(in_the_way))
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        engines.keep_wisdom("fftwf")


# --- shapes ----------------------------------------------------------------------------------


def test_full_padding_needs_no_room_of_its_own():
    """The windows that run over the end of a block find the zeros before its start."""
    assert spectral_cost.one_block(parse("n1 c1 w1024 k1 s1024 p1023")).lengths == (1, 1, 2048)
    assert spectral_cost.one_block(parse("n1 c1 w1024 k1 s1024 p1023:0")).lengths == (1, 1, 2048)
    assert spectral_cost.one_block(parse("n1 c1 w1024 k1 s1024 p0")).lengths == (1, 1, 1024)


def test_strides_are_phases():
    assert spectral_cost.one_block(parse("n1 c1 w1024 k1 s8 stride4")).lengths[2] <= 1024 // 4 + 2
    assert spectral_cost.one_block(parse("n1 c1 w1024 k1 s8 stride4")).channels == 4
    assert (
        spectral_cost.one_block(parse("n1 c1 w1024 k1 s8 stride4 dilation4")).channels == 1
    )  # all taps in one phase
    assert (
        spectral_cost.one_block(parse("n1 c1 w1024 k1 s2 stride9")).channels == 2
    )  # nothing reads the other seven


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_not_columns(layout):
    """Rows of one element take longer to copy than all transforms; blocks of whole rows are no columns."""
    for text in ("n1 c1 h512 w512 k1 r31 s1 p15,0", "n1 c3 h512 w512 k3 r31 s1 p15,0 groups3"):
        problem = parse(text, layout)
        p = problem.as_3d
        columns = blocking.FftBlocking(
            p,
            (
                blocking.blocked_axis(p, 0, None),
                blocking.blocked_axis(p, 1, None),
                blocking.blocked_axis(p, 2, 1),
            ),
        )
        chosen, machine = spectral_cost.blocked(problem, None), spectral_cost.COMPARED_ON
        assert columns.lengths[2] == 1 < chosen.lengths[2]
        assert spectral_cost.spectral_seconds(columns, "fftw", machine) > 2 * spectral_cost.spectral_seconds(
            chosen, "fftw", machine
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("outputs", [11, 12, 13, 23, 24, 25, 36])  # blocks of 16 yield 12 with 5 taps
def test_block_boundaries(outputs, layout):
    algorithm = Fft(overlap=True, length=16)
    problem = parse(f"n2 c3 w{outputs + 4} k4 s5", layout)
    if outputs <= 12:
        assert "one block" in algorithm.why_not(problem)
        algorithm = Fft()
    else:
        assert algorithm.cut(problem).blocks == 2 * -(-outputs // 12)
    check(algorithm, problem)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "text",
    [
        "n1 c2 h37 w41 k3 r5 s4 p2:3,0:5",
        "n2 c3 h30 w33 k2 r3 s3 p9 stride2,3",
        "n1 c1 h40 w35 k2 r3 s5 p1 dilation3,2 stride2",
        "n1 c1 w300 k1 s4 p40 dilation13",
        "n1 c5 h20 w18 k5 r7 s7 p3 groups5",
        "n1 c6 h20 w18 k9 r3 s3 p1 groups3",
        "n1 c2 d12 h11 w13 k3 t3 r3 s3 p1",
        "n1 c4 d9 h10 w20 k4 t2 r3 s4 p1,0,3 stride1,2,1 groups2",
        "n1 c2 h9 w40 k3 r1 s6 p0,5",  # rows apart: no transform along h
        "n1 c2 h9 w9 k3 r9 s9 pfull convolution",
    ],
)
def test_blocks_in_every_dimension(text, layout, dtype):
    problem = parse(text, layout, dtype)
    served = 0
    for length in (None, 8, 16):
        algorithm = Fft(overlap=True, length=length)
        if algorithm.why_not(problem) is None:
            served += 1
            check(algorithm, problem)
    assert served


@pytest.mark.parametrize(
    "text",
    [
        "n1 c2 w700 k3 s5 p100 dilation150",
        "n1 c1 h70 w64 k2 r2 s2 dilation60",
        "n2 c3 w200 k2 s7 p30 dilation9 stride6",
        "n1 c2 d20 h20 w20 k2 t2 r2 s2 dilation15 stride3",
    ],
)
def test_large_dilations(text):
    for engine, layout in product(("fftw", "mkl"), LAYOUTS):
        if engines.why_not_engine(engine) is None:
            check(Fft(engine), parse(text, layout))


# --- chunks and threads ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("l2_bytes", [512, 2048, 16384])
@pytest.mark.parametrize(
    "text", ["n3 c5 w70 k5 s9 p4 groups5", "n5 c34 w50 k7 s9 stride2", "n2 c38 h9 w8 k19 r3 s3 groups19"]
)
def test_chunks_of_every_size(small_caches, text, l2_bytes, layout):
    small_caches(l2_bytes, FILTER_CHUNK=1)
    problem = parse(text, layout)
    for algorithm in (Fft(), Fft(overlap=True, length=32)):
        if algorithm.why_not(problem) is None:
            check(algorithm, problem)


def test_both_ways_of_sharing_are_met(small_caches):
    small_caches(2048)
    cuts = [spectral_cost.one_block(parse(t)) for t in ("n3 c50 w70 k50 s9 groups50", "n1 c5 w70 k9 s9")]
    assert [blocking.chunk_schedule(cut).alone for cut in cuts] == [True, False]
    assert all(blocking.chunk_schedule(cut).chunks >= 1 for cut in cuts)


def test_a_workspace_too_small_for_all_threads(small_caches):
    small_caches(2048, WORKSPACE=4096)
    problem = parse("n3 c6 w70 k8 s9")
    assert blocking.chunk_schedule(spectral_cost.one_block(problem)).tasks == 1
    check(Fft(), problem)


@pytest.mark.parametrize("algorithm", [Fft(), Fft(overlap=True, length=32)], ids=lambda a: a.id)
def test_sixteen_threads_on_one_plan(algorithm):
    problem = parse("n2 c4 h50 w60 k4 r9 s9 p4 groups4")
    plan = algorithm.serve(problem)
    w = random_arrays(problem)[1]
    xs = [random_arrays(problem, seed)[0] for seed in range(4)]
    prepared = plan.prepare(w)
    alone = [plan(x, prepared) for x in xs]

    def call(i):
        filters = prepared if i % 3 else plan.prepare(w)
        return np.array_equal(plan(xs[i % 4], filters), alone[i % 4])

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(call, range(96)))


# --- figures for the selector ----------------------------------------------------------------

LARGE = (
    "n1 c1 w1000000 k1 s1024",
    "n1 c1 h2048 w2048 k1 r63 s63 p31",
    "n1 c3 h2048 w2048 k16 r31 s31 p15",
    "n16 c768 w1024 k768 s1024 p1023 groups768",
    "n4 c768 w8192 k768 s8192 p8191 groups768",
    "n1 c64 w131072 k64 s131072 p131071 groups64",
    "n8 c64 h224 w224 k64 r5 s5 p2",
    "n8 c64 h56 w56 k64 r9 s9 p4",
    "n1 c64 d32 h56 w56 k64 t3 r3 s3 p1",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", LARGE)
def test_the_workspace_is_bounded(text, layout, monkeypatch):
    """64 MiB, or what one block of all channels of a group takes beside what comes out of it."""
    problem = parse(text, layout)
    for algorithm, threads in product((Fft(), Fft(overlap=True)), (1, 2, 64)):
        if algorithm.why_not(problem):
            continue
        monkeypatch.setattr(jit, "thread_count", lambda threads=threads: threads)
        cut = algorithm.cut(problem)
        least = (cut.channels + blocking.chunk_schedule(cut).run * 3) * cut.plane_bytes
        assert algorithm.workspace_bytes(problem) <= max(64 << 20, 2 * least), (algorithm.id, threads)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "text", ["n3 c5 w70 k5 s9 p4 groups5", "n16 c20 w300 k7 s9", "n1 c2 h90 w80 k3 r5 s5"]
)
def test_the_workspace_is_what_is_allocated(text, layout):
    problem = parse(text, layout)
    for algorithm in (Fft(), Fft(overlap=True)):
        plan = algorithm.serve(problem)
        assert plan.workspace_bytes == algorithm.workspace_bytes(problem)
        assert plan.new_workspace().scratch.nbytes == plan.workspace_bytes


def test_the_model_knows_when_to_cut(two_threads):
    def cost(text, **fields):
        return Fft(**fields).cost(parse(text), spectral_cost.COMPARED_ON)

    for text in LARGE[:2]:
        assert cost(text, overlap=True) < cost(text) / 2
    assert Fft(overlap=True).why_not(parse(LARGE[3])) is not None  # the filter is as long as the map
    costs = [cost(f"n1 c1 w100000 k1 s{k}", overlap=True) for k in (16, 256, 4096)]
    assert all(b < 3 * a for a, b in pairwise(costs))  # 16 times the taps


def test_a_filter_with_too_large_a_spectrum_is_refused():
    reason = Fft().why_not(parse("n1 c512 h56 w56 k512 r3 s3 p1"))
    assert "spectrum would take" in reason and "MiB" in reason
    with pytest.raises(ca.Unsupported, match="spectrum would take"):
        Fft().serve(parse("n1 c512 h56 w56 k512 r3 s3 p1"))


def test_missing_engines_say_so(monkeypatch):
    monkeypatch.setattr(
        engines, "missing", lambda module: f"needs {module}, which is not installed (pip ...)"
    )
    assert Fft().why_not(parse(LARGE[0])).startswith("needs pyfftw")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_transforms_stay_within_the_bound(dtype):
    problem = parse("n1 c1 w60000 k1 s5000 p4999:0", dtype=dtype)
    x, w = random_arrays(problem)
    wide = np.correlate(np.pad(x[0, 0].astype(np.longdouble), (4999, 0)), w[0, 0].astype(np.longdouble))
    for algorithm in (Fft(), Fft(overlap=True)):
        error = np.abs(algorithm.serve(problem)(x, w)[0, 0] - wide).max() / np.abs(wide).max()
        assert np.finfo(dtype).eps / 10 < error < algorithm.error_bound(problem)


@pytest.mark.parametrize(
    "order",
    [
        ("cpu.im2col.mkl", "cpu.fft.fftw", "cpu.fft.mkl"),
        ("cpu.fft.fftw", "cpu.im2col.mkl", "cpu.fft.fftw"),
        ("cpu.fft.mkl", "cpu.fft.overlap", "cpu.im2col.mkl"),
    ],
    ids="+".join,
)
def test_libraries_with_the_same_names_may_be_used_in_any_order(order):
    """MKL has FFTW's names, too, and FFTW must not call it: that ended the process."""
    problem = ca.ConvProblem.parse("n2 c3 h9 w10 k4 r3 s3 p1")
    if reason := next(
        filter(None, (ca.select.find_algorithm(name).why_not(problem) for name in order)), None
    ):
        pytest.skip(reason)
    code = f"""
import numpy as np, convalgos as ca
x, w = np.ones({problem.x_shape}, "f4"), np.ones({problem.w_shape}, "f4")
for name in {order}:
    assert np.allclose(ca.conv(x, w, padding=1, algorithm=name)[:, :, 1:-1, 1:-1], 27, atol=1e-4), name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
