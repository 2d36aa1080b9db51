"""Arrays that lie where no array of their dtype should: amid an element, or with its bytes turned round.

Stores around the caches end the process at addresses that are not those of whole vectors: what stores
so runs in a process of its own, on a machine that is said to have a last cache of 32 KiB.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import convalgos as ca
from convalgos.core.arrays import same_dtype
from convalgos.core.laid_arrays import as_laid, copy_into, is_laid
from convalgos.core.plan import numpy_dtype
from convalgos.cpu.layout.turned import copy_turned

STREAMED = (  # results of more than half of the assumed last cache, whose planes are whole vectors
    "n1 c4 h32 w32 k16 r1 s1",
    "n2 c3 h34 w34 k16 r3 s3",
    "n1 c16 h32 w64 k16 r3 s3 p1 groups16",
    "n1 c8 h63 w63 k16 r3 s3 p1 stride2 backward_data",
    "n1 c16 h64 w64 k16 r3 s3 p1 groups16 backward_data",
    "n1 c8 h16 w16 k128 r3 s3 p1 backward_weights",
)

RUN_ALL = """
import dataclasses, sys
import numpy as np
from convalgos.core import machine; from convalgos.core import profiles
machine.assume(dataclasses.replace(profiles.chosen(2), l3_bytes=32 << 10))
import convalgos as ca
from convalgos.select import algorithms_on

def lying(values, offset):  # a copy that starts `offset` bytes behind a cache line
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array

STREAMING = ("cpu.direct", "cpu.depthwise", "cpu.im2col.own", "cpu.winograd.f4x3", "cpu.fft.overlap")
runs = 0
for text in sys.argv[1:]:
    for dtype in ("float32", "float64"):
        problem = ca.ConvProblem.parse(text).replace(dtype=dtype)
        shapes, rng = problem.array_shapes, np.random.default_rng(0)
        x, w = (rng.integers(-2, 3, s).astype(dtype) for s in shapes[:2])
        expected = ca.plan(problem, algorithm="cpu.reference")(x, w)
        for algorithm in (a for a in algorithms_on("cpu", problem.direction) if a.id.startswith(STREAMING)):
            if algorithm.why_not(problem) is not None:
                continue
            plan = algorithm.serve(problem)
            for offset in (1, problem.itemsize // 2, 3 * problem.itemsize):
                y = lying(np.full(shapes[2], np.nan, dtype), offset)
                plan(lying(x, offset), lying(w, offset), out=y)
                worst = abs(y - expected).max() / abs(expected).max()
                assert worst < 1e-3, f"{algorithm.id} on {problem}, {offset} bytes off: {worst}"
                runs += 1
print(runs)
"""


def test_stores_around_the_caches_take_arrays_off_their_alignment():
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *STREAMED],
        env={**os.environ, "CONVALGOS_PROFILE": "avx2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr[-2000:]}"
    assert int(done.stdout) >= 3 * 2 * 2 * len(STREAMED)  # offsets, algorithms, dtypes


def shifted(values: np.ndarray, offset: int = 1) -> np.ndarray:
    raw = bytearray(values.nbytes + offset)
    array = np.frombuffer(raw, values.dtype, offset=offset).reshape(values.shape)
    array[...] = values
    assert not array.flags.aligned
    return array


@pytest.fixture(scope="module", params=("float32", "float64", "float16", "bfloat16"))
def arrays(request):
    """x, w, bias and dy of small integers, and dx and dw."""
    dtype, rng = numpy_dtype(request.param), np.random.default_rng(1)
    shapes = (2, 6, 9, 8), (4, 6, 3, 3), (4,), (2, 4, 9, 8)
    x, w, bias, dy = (rng.integers(-2, 3, s).astype(dtype) for s in shapes)
    dx = ca.conv_backward_data(dy, w, x.shape, padding=1)
    return x, w, bias, dy, dx, ca.conv_backward_weights(x, dy, w.shape, padding=1)


def check(arrays, changed) -> None:
    """Every public call on arrays that are `changed`, which must see none of it."""
    x, w, bias, dy, dx, dw = arrays
    x_, w_, bias_, dy_ = map(changed, (x, w, bias, dy))
    out, dx_out, dw_out = (changed(np.ones_like(a)) for a in (dy, dx, dw))
    for algorithm in ("auto", "cpu.direct", "cpu.reference", "cpu.im2col.own"):
        how = {"padding": 1, "algorithm": algorithm}
        y = ca.conv(x, w, bias, **how)
        np.testing.assert_array_equal(ca.conv(x_, w_, bias_, **how), y)
        assert ca.conv(x_, w_, bias_, **how, out=out) is out
        np.testing.assert_array_equal(out, y)
    assert ca.conv_backward_data(dy_, w_, x.shape, padding=1, out=dx_out) is dx_out
    np.testing.assert_array_equal(dx_out, dx)
    assert ca.conv_backward_weights(x_, dy_, w.shape, padding=1, out=dw_out) is dw_out
    np.testing.assert_array_equal(dw_out, dw)
    dw_only, db = ca.conv_backward_weights(x_, dy_, w.shape, padding=1, return_bias=True)
    np.testing.assert_array_equal(dw_only, dw)
    np.testing.assert_array_equal(db, dy.sum((0, 2, 3), dtype=np.float64).astype(dy.dtype))
    plan = ca.plan(ca.ConvProblem(x.shape, w.shape, padding=1, dtype=x.dtype.name))
    np.testing.assert_array_equal(plan(x_, plan.prepare(w_), bias=bias_), y)
    transposed = ca.conv_transpose(dy, w, np.ones(6, dy.dtype), padding=1)
    np.testing.assert_array_equal(
        ca.conv_transpose(dy_, w_, changed(np.ones(6, dy.dtype)), padding=1), transposed
    )


def test_every_call_takes_arrays_off_their_alignment(arrays):
    check(arrays, shifted)


def test_every_call_takes_bytes_in_the_other_order(arrays):
    if arrays[0].dtype.name == "bfloat16":
        pytest.skip("ml_dtypes has bfloat16 in this machine's order of bytes only")
    check(arrays, lambda a: a.astype(a.dtype.newbyteorder(">")))


def test_a_tensor_off_its_alignment():
    torch = pytest.importorskip("torch")
    raw = torch.zeros(4 * 64 + 1, dtype=torch.uint8)
    x = torch.from_numpy(np.frombuffer(raw.numpy().data, "f4", 64, offset=1).reshape(1, 1, 8, 8))
    x.fill_(1)
    assert ca.conv(x, torch.ones(1, 1, 3, 3)).eq(9).all()
    assert ca.conv(x, torch.ones(1, 1, 1, 1), out=x) is x and x.eq(1).all()


def test_what_kernels_read_is_laid_out():
    a = np.arange(12, dtype="f4").reshape(3, 4)
    assert as_laid(a) is a
    for other in (a.T, a[:, ::2], shifted(a), a.astype(">f4")):
        laid = as_laid(other)
        assert is_laid(laid.flags) and laid.dtype.isnative
        np.testing.assert_array_equal(laid, other)
    large = np.arange(2 * 41 * 17000, dtype="i4").reshape(2, 41, 17000)
    for other in (large.transpose(2, 0, 1), large.T[::-1], large[0].T.astype(">i4"), large.T[:, :1]):
        laid = as_laid(other)  # block by block
        assert is_laid(laid.flags) and laid.dtype.isnative
        np.testing.assert_array_equal(laid, other)
    assert same_dtype(np.dtype(">f4"), a.dtype) and not same_dtype(np.dtype(">f8"), a.dtype)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((96, 3, 3, 512), (0, 3, 1, 2)),  # a filter, and a map, of channels last
        ((2, 61, 67, 70), (0, 3, 1, 2)),
        ((2, 70, 61, 67), (0, 2, 3, 1)),
        ((3, 481, 493), (1, 2, 0)),  # of as few channels as are split by shuffles
        ((1, 40, 1, 151, 60), (0, 3, 4, 1, 2)),
        ((83, 70, 90), (2, 1, 0)),  # rows far apart
        ((7, 90, 5, 191), (3, 2, 1, 0)),
        ((40, 6, 30, 3, 29), (4, 2, 0, 3, 1)),  # too many axes
        ((701, 1001), (1, 0)),
    ],
)
def test_axes_in_another_order(shape, order, dtype):
    memory = np.random.default_rng(3).integers(0, 100, shape).astype(dtype)
    turned = memory.transpose(order)
    laid = as_laid(turned)
    assert is_laid(laid.flags)
    np.testing.assert_array_equal(laid, np.array(turned, order="C"))
    target = np.full_like(memory, 101).transpose(order)
    copy_into(target, laid)
    np.testing.assert_array_equal(target, turned)
    assert not target.flags.c_contiguous
    assert copy_turned(turned, np.empty_like(laid)) == (dtype != "c16" and order != (4, 2, 0, 3, 1))


@pytest.mark.parametrize("call", ["ndimage.sobel(x)", "max_pool(x[None, None], 2)", "conv(x[None, None], w)"])
def test_the_first_call_brings_what_turns_arrays(call):
    code = (
        "import sys, numpy as np, convalgos as ca\n"
        "x, w = np.ones((300, 400), 'f4', 'F'), np.ones((1, 1, 3, 3), 'f4')\n"
        "assert 'convalgos.cpu.layout.turned' not in sys.modules; ca." + call + "\n"
        "from convalgos.core import laid_arrays\n"
        "from convalgos.cpu.layout.turned import copy_turned\n"
        "assert laid_arrays._turning == [copy_turned]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
