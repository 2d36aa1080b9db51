"""Every CUDA source compiles, in every configuration that a plan can launch, without spilling.

No GPU is needed: NVRTC comes from its wheel. What a build takes is known from the record of `cuda_resources`,
where its text and NVRTC are those of then; what has changed since is compiled here, and a sample.
"""

from itertools import product

import pytest
from cuda_resources import Pair, compile_all, compiled, compiled_here, sample, unrecorded
from cuda_shim.device import A100, H200, RecordingDevice
from helpers import table_problems

from convalgos.core.epilogue import KINDS, Activation, activation_of
from convalgos.core.problem import ConvProblem
from convalgos.gpu.backward.data import BackwardData
from convalgos.gpu.compile import nvrtc
from convalgos.gpu.compile.module import Build, CompileError, source_text
from convalgos.gpu.compile.sources import source
from convalgos.gpu.device import use
from convalgos.gpu.launch.algorithm import GpuAlgorithm
from convalgos.gpu.launch.epilogue import FusedEpilogue, epilogue_build
from convalgos.gpu.pooling.plan import pooling_builds
from convalgos.gpu.vendor.integer_sums import FINISH_SUMS
from convalgos.select import algorithms
from convalgos.tools.bench.suites import suites

E4M3 = "float8_e4m3fn"
ARCHS = ("sm_80", "sm_90a")
NEWER = "sm_100a", 16  # compiled for, too, in each sixteenth configuration
HOPPERS = ("gpu.implicit_gemm.wgmma_half", "gpu.implicit_gemm.wgmma_tf32")  # whose forms are variants
GPU = algorithms("gpu")
OURS = [a for a in GPU if list(a.builds())]  # of cuDNN the kernels are not
OURS += [BackwardData(a) for a in OURS if a.id == "gpu.direct"]  # with what puts phases together
OURS += [v for a in OURS if a.id in HOPPERS for v in a.variants(ConvProblem.parse("n1 c64 w64 k64 s3"))]
each_algorithm = pytest.mark.parametrize("algorithm", OURS, ids=lambda a: f"{a.id}-{a.directions[0]}")
needs_nvrtc = pytest.mark.skipif(
    nvrtc.library_path() is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc-cu12)"
)


def runs_on(algorithm: GpuAlgorithm, capability: tuple[int, int]) -> bool:
    return algorithm.capability <= capability < (algorithm.until or (99, 0))


def wanted(algorithm: GpuAlgorithm) -> list[Pair]:
    """Its builds with the architectures that have their instructions."""
    builds = list(dict.fromkeys(algorithm.builds()))
    newer, step = NEWER
    pairs = [*product(builds, ARCHS), *product(builds[::step], [newer])]
    return [(b, arch) for b, arch in pairs if runs_on(algorithm, divmod(int(arch.strip("sm_a")), 10))]


@needs_nvrtc
@each_algorithm
def test_every_configuration_compiles_into_registers(algorithm):
    pairs = wanted(algorithm)
    wrong = []
    for (build, arch), result in zip(pairs, compile_all(pairs), strict=True):
        assert result.kernels, f"{build} has no kernels"
        wrong += [f"{build} for {arch}: {warning}" for warning in result.warnings]
        allowed = algorithm.spills(build, arch)
        wrong += [
            f"{build} for {arch}: {k}"
            for k in result.kernels
            if k.spill_bytes > allowed or k.stack_bytes > allowed
        ]
    assert not wrong, "\n".join(wrong)


@needs_nvrtc
@pytest.mark.parametrize("figures", [A100, H200], ids=lambda f: f.name)
@each_algorithm
def test_launches_stay_within_the_limits_of_the_device(algorithm, figures):
    """On every layer of the suites, each in a seventh of the forms, and on every awkward problem."""
    layers = [layer.problem for layers in suites().values() for layer in layers]
    forms = product(
        ("channels_first", "channels_last"),
        ("float32", "tf32", "float16", "bfloat16", "int8", "binary", E4M3),
    )
    problems = [
        layer.replace(
            layout=layout, dtype="float32" if how == "tf32" else how, direction=algorithm.directions[0],
            compute_dtype="tf32" if how == "tf32" else None,
            **({"density": 0.5, "pattern": "2:4"} if algorithm.skips_zeros else {}),
        )
        for i, (layout, how) in enumerate(forms) for layer in layers[(i + i // 7) % 7 :: 7]
        if how not in ("int8", "binary", E4M3) or algorithm.directions[0] == "forward"
    ]  # fmt: skip
    problems += [p for dtype in ("float32", "float64") for p, _ in table_problems(algorithm, dtype)]
    declared, served = set(algorithm.builds()), 0
    with use(RecordingDevice(figures)):
        for problem in problems:
            if problem.is_empty or algorithm.why_not(problem):
                continue
            served += 1
            for launch in algorithm.serve(problem).launches:
                where = f"{problem}: {launch.build} {launch.name}"
                assert launch.build in declared, f"{where} is not among the builds of {algorithm.id}"
                result = compiled(launch.build, figures.arch)
                kernel = next(k for k in result.kernels if k.kernel == launch.name)
                grid = (*launch.grid, 1, 1)[:3]
                limits = zip(grid, (2**31 - 1, 65535, 65535), strict=True)
                assert all(1 <= n <= most for n, most in limits), f"{where}: grid {grid}"
                assert 1 <= launch.block <= (kernel.most_threads or 1024), f"{where}: {launch.block} threads"
                registers = -(-kernel.registers // 8) * 8 * launch.block
                assert registers <= figures.sm_registers, f"{where}: {registers} registers"
                shared = kernel.shared_bytes + launch.shared_bytes
                assert shared <= figures.block_shared_bytes, f"{where}: {shared} bytes of shared memory"
    assert bool(served) == runs_on(algorithm, figures.capability)


def output_steps_and_pooling() -> list[Pair]:
    """One build of each source with GELU, the longest, and a residual; the step with all; pooling."""
    first = {build.source: build for a in reversed(OURS) if "forward" in a.directions for build in a.builds()}
    gelu = FusedEpilogue(activation_of("gelu"), residual=True)
    pairs = [(build.also(**gelu.macros), "sm_90a") for build in first.values()]
    pairs += [(epilogue_build("bfloat16", Activation(name)), "sm_80") for name in KINDS]
    pairs.append((epilogue_build("float64", activation_of("gelu")), "sm_80"))
    pairs.append((FINISH_SUMS, "sm_80"))
    pairs += product(pooling_builds(), ARCHS)
    return pairs


def every_pair() -> list[Pair]:
    return [*(pair for algorithm in OURS for pair in wanted(algorithm)), *output_steps_and_pooling()]


@needs_nvrtc
def test_output_steps_and_pooling_compile():
    pairs = output_steps_and_pooling()
    for (build, arch), result in zip(pairs, compile_all(pairs), strict=True):
        assert not result.warnings, f"{build} for {arch}: {result.warnings}"
        for kernel in result.kernels:
            assert kernel.spill_bytes <= 64, f"{build} for {arch}: {kernel}"


@needs_nvrtc
def test_the_record_is_of_these_sources():
    """A change of a header is one of all builds, which every run compiled from then on: 400 CPU seconds."""
    missing = unrecorded(every_pair())
    assert not missing, f"{len(missing)} builds are not in it: python tests/cuda_resources.py adds them"


@needs_nvrtc
@pytest.mark.parametrize("part", range(4))
def test_what_is_recorded_is_what_nvrtc_makes(part):
    """Of a sample of the builds; CONVALGOS_COMPILE_ALL=1 compiles all."""
    for build, arch in sample(every_pair())[part::4]:
        same = compiled_here(build, arch) == compiled(build, arch)
        assert same, f"{build} for {arch} is not as in tests/cuda_resources.json"


@needs_nvrtc
def test_a_compile_error_shows_the_source_line(monkeypatch):
    broken = (("common.cuh", "#pragma once\nstruct One {};\nflot two;\n"),)
    build = Build.of("direct.cu")
    monkeypatch.setattr(nvrtc, "source_text", lambda b: source_text(b, broken))
    with pytest.raises(CompileError, match=r"direct\.cu does not compile:\ncommon\.cuh\(3\): error") as error:
        nvrtc.compile_build(build, "sm_80")
    assert "flot two;" in str(error.value)


@needs_nvrtc
def test_spills_and_bounds_are_found(monkeypatch):
    spilling = """
extern "C" __global__ void __launch_bounds__(1024) spills(float* y, int n) {
    float kept[200];
#pragma unroll
    for (int i = 0; i < 200; i++) kept[i] = y[i];
    for (int k = 0; k < n; k++)
#pragma unroll
        for (int i = 0; i < 200; i++) kept[i] += y[k] * kept[199 - i];
#pragma unroll
    for (int i = 0; i < 200; i++) y[i] = kept[i];
}
extern "C" __global__ void plain(float* y) {
    __shared__ float kept[32];
    kept[threadIdx.x] = *y;
    y[1] = kept[*(int*)y];
}
"""
    monkeypatch.setattr(nvrtc, "source_text", lambda b: spilling)
    kernels = {k.kernel: k for k in nvrtc.compile_build(Build.of("direct.cu"), "sm_80").kernels}
    assert kernels["spills"].spill_bytes > 0 and kernels["spills"].most_threads == 1024
    assert kernels["plain"].spill_bytes == 0 and kernels["plain"].most_threads == 0
    assert kernels["plain"].shared_bytes == 128


def test_lines_of_headers_and_sources_keep_their_numbers():
    """After a header, the numbers of the source go on where they were."""
    lines = source_text(Build.of("direct.cu", TILE_M=64)).splitlines()
    assert lines[0] == "#define TILE_M 64"
    at = lines.index("using sum_t = decltype(widen(element_t()));")
    mark = max(i for i in range(at) if lines[i].startswith("#line"))
    number = int(lines[mark].split()[1]) + at - mark - 1
    assert (
        source_text(Build.of("direct.cu")).count("#pragma once") == 5
    )  # ptx, common, register_tile, eight_bits and integers, once each
    assert source("direct.cu").splitlines()[number - 1] == lines[at]
