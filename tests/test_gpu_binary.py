"""Products of signs on emulated instructions: exact, in every form of x, with every border."""

import math
from itertools import product

import numpy as np
import pytest
from cuda_shim import device as shim

import convalgos as ca
from convalgos.core.problem import ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.cpu.reference import reference
from convalgos.gpu.device import use
from convalgos.gpu.gemm import signs as signs_of_gemm
from convalgos.gpu.implicit_gemm import ImplicitGemm, ImplicitGemmBinary
from convalgos.tools.gpu_check import cases, checks
from convalgos.tools.gpu_check.results import Result

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
ALGORITHM = ImplicitGemm("binary")
LAYERS = (
    "n2 c70 h9 w11 k10 r3 s3 p1",
    "n1 c128 h5 w6 k69 r3 s2 p2,1 stride2,3 dilation1,2",
    "n1 c320 h4 w5 k8 r3 s3 p0:1,2 groups2 convolution",
    "n1 c5 d4 h3 w5 k3 t2 r3 s3 p1",
)


@pytest.fixture(autouse=True)
def on_the_shim():
    with use(shim.ShimDevice()):
        yield


def signs(rng, *shape):
    return rng.integers(0, 2, shape, np.int8) * np.int8(2) - np.int8(1)


def run_of(plan, p, given, value, scale, bias):
    """y, channels first, of x and w in one of their forms."""
    of_x, of_w = given
    y = plan(of_x, plan.prepare(of_w, padding_value=value, scale=scale), bias=bias, activation="relu")
    assert y.dtype == p.y_dtype
    return np.moveaxis(y, -1, 1) if p.layout == "channels_last" else y


def test_every_build_gives_the_definition():
    served = set()
    for (turn, text), layout in product(enumerate(LAYERS), ("channels_first", "channels_last")):
        p, rng = ConvProblem.parse(text), np.random.default_rng(turn)
        x, w, bias = signs(rng, *p.x_shape), signs(rng, *p.w_shape), rng.integers(-9, 9, p.K).astype(np.int32)
        scale = rng.standard_normal(p.K).astype(np.float32) if turn % 2 else None
        laid = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "channels_last" else x
        floats = laid * rng.uniform(0.1, 9, laid.shape).astype(np.float32)
        packed = ca.binary.pack(laid, groups=p.groups, layout=layout), ca.binary.pack(w)
        forms = (laid, w), (floats, w.astype(np.float32)), packed
        given = p.replace(layout=layout, dtype="binary", y_dtype="float32" if turn % 2 else "int32")
        (tile,) = ALGORITHM.tiles(layout, True)
        plan = ImplicitGemmBinary(given, ALGORITHM, tile, splits=1 + (text == LAYERS[0]))
        for arrays, value in zip(forms, (0, 1, -1), strict=True):
            padded = np.pad(x, ((0, 0), (0, 0), *p.padding), constant_values=value)
            sums = reference(p.replace(x_shape=padded.shape, padding=0), padded, w, bias)
            right = sums if scale is None else sums.astype(np.float32) * scale.reshape(-1, *(1,) * p.ndim)
            found = run_of(plan, given, arrays, value, scale, bias)
            assert np.array_equal(found, np.maximum(right, 0)), (text, layout, value, arrays[0].dtype)
        served |= {launch.build for launch in plan.launches}
    assert served == set(ALGORITHM.builds())


def test_plans_say_what_they_do_not_take():
    p = ConvProblem.parse("n1 c5 h4 w4 k3 r3 s3 p1 binary")
    plan, w = ALGORITHM.serve(p), np.ones(p.w_shape, np.int8)
    for given, told in (
        ({"padding_value": 2}, "padding_value=2 must be 0, 1 or -1"),
        ({"scale": 2.0}, "scale=2.0 must be None: y of .* is int32"),
        ({"quantization": Quantization()}, "quantization must be None"),
        ({"w": np.ones((3, 2, 3, 3), np.uint64)}, r"packed w has shape \(3, 2, 3, 3\)"),
    ):
        with pytest.raises(ValueError, match=told):
            plan.prepare(**{"w": w} | given)
    with pytest.raises(ValueError, match=r"scale has shape \(2,\)"):
        ALGORITHM.serve(p.replace(y_dtype="float32")).prepare(w, scale=np.ones(2))
    with pytest.raises(TypeError, match="x has dtype int32"):
        plan(np.ones(p.x_shape, np.int32), w)


def test_captured_calls_replay():
    p = ConvProblem.parse("n1 c9 h4 w5 k4 r3 s3 p1 binary y_float32")
    plan, rng = ALGORITHM.serve(p), np.random.default_rng(0)
    x, w = signs(rng, *p.x_shape), plan.prepare(signs(rng, *p.w_shape), padding_value=-1)
    replay = plan.capture(x, w, activation="leaky_relu")
    x *= np.int8(-1)
    assert np.array_equal(replay(), plan(x, w, activation="leaky_relu"))


def test_a_choice_takes_them():
    p = ConvProblem.parse("n8 c256 h28 w28 k256 r3 s3 p1 channels_last binary")
    assert [c.id for c in ca.explain(p, device="sm_90").candidates] == [ALGORITHM.id]
    large = p.replace(x_shape=(2000, 4096, 300, 300), w_shape=(8, 4096, 3, 3))
    assert "16 bytes of packed channels" in ALGORITHM.why_not(large)


def test_the_check_of_a_gpu_covers_signs(monkeypatch):
    """With bias and ReLU, in both layouts; a border that is not taken off is found."""
    chosen = [c for c in cases.of_texts("", [LAYERS[0]]) if c.type == "binary"]

    def results():
        every = checks.check_algorithms(shim.ShimDevice(), chosen, True, until=math.inf, whose="ours")
        return [found for found in every if isinstance(found, Result)]

    found = results()
    assert len(found) == 4 and not any(r.wrong for r in found), list(map(str, found))
    border = signs_of_gemm.border_of
    monkeypatch.setattr(
        signs_of_gemm, "border_of", lambda p: border(p)._replace(patterns=0 * border(p).patterns)
    )
    assert all(r.wrong for r in results())
