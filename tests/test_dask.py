"""convalgos.dask: chunks give the answers of the whole, wherever they are cut."""

import gc
import math
import random
import re
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="needs Dask (pip install 'convalgos[dask]')")

import dask  # noqa: E402
from dask_cases import chunked, random_problem, whole_numbers  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.dask as cd  # noqa: E402
from convalgos.core import setting  # noqa: E402
from convalgos.core.plan import Plan  # noqa: E402
from convalgos.dask import tasks  # noqa: E402


def computed(lazy):
    """The value, once what Dask was told of it is found to be true."""
    uncut = lazy.compute(scheduler="synchronous")  # as one block, where all that is read lies together
    lazy._uncut = None
    value = lazy.compute(scheduler="synchronous")  # each block written in place
    for found in (uncut, value):
        assert type(found) is np.ndarray
        assert found.shape == lazy.shape and found.dtype == lazy.dtype
    (put_together,) = dask.compute(lazy, scheduler="synchronous")
    assert np.array_equal(put_together, value)
    np.testing.assert_allclose(uncut, value, rtol=1e-4, atol=1e-5 * np.abs(value).max(initial=1))
    return value


def close(lazy, want):
    value = computed(lazy)
    assert value.dtype == want.dtype
    np.testing.assert_allclose(value, want, rtol=1e-4, atol=3e-2, strict=True)


@pytest.mark.parametrize("seed", range(20))
def test_any_split_has_the_answers_of_the_whole(seed):
    """The forward pass, both gradients and the transposed one, cut everywhere, with any borders."""
    draw = random.Random(seed)
    problem, call = random_problem(draw, borders=seed % 3 > 0)
    x_shape, _, y_shape = problem.array_shapes
    x, w, bias, dy, bias_x = whole_numbers(
        seed, x_shape, problem.w_shape, (problem.K,), y_shape, (problem.C,)
    )
    cx, cy, cw = chunked(draw, x), chunked(draw, dy), chunked(draw, w, problem.ndim)
    step = {"activation": draw.choice([None, "relu", "silu"])}
    if draw.random() < 0.5:
        step |= {"residual": dy}
    close(cd.conv(cx, cw, bias, **step, **call), ca.conv(x, w, bias, **step, **call))
    close(cd.conv_backward_data(cy, cw, x_shape, **call), ca.conv_backward_data(dy, w, x_shape, **call))
    got = cd.conv_backward_weights(cx, cy, w.shape, return_bias=True, **call)
    want = ca.conv_backward_weights(x, dy, w.shape, return_bias=True, **call)
    for lazy, whole in zip(got, want, strict=True):
        close(lazy, whole)
    more = call | {"bias": bias_x, "activation": step["activation"]}
    more = {name: value for name, value in more.items() if name not in ("boundary", "fill_value")}
    if call["padding"] != "same":
        more["output_padding"] = [draw.randrange(s) for s in problem.stride]
    if 0 not in x_shape and call["padding"] != "full":  # which may leave nothing of it
        close(cd.conv_transpose(cy, cw, **more), ca.conv_transpose(dy, w, **more))


@pytest.mark.parametrize(
    ("algorithm", "kernel"),
    [
        ("cpu.direct", 3), ("cpu.direct.pixels", 3), ("cpu.im2col.own", 3), ("cpu.winograd.f4x3", 3),
        ("cpu.fft_tiles.t16", 5), ("cpu.fft.overlap", 5),
    ],
)  # fmt: skip
def test_bits_are_those_of_the_whole(algorithm, kernel, two_threads):
    """Blocks begin where tiles of the whole do, though chunks do not; many threads may share a transform."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 301, 290), "f4"), rng.standard_normal((8, 4, kernel, kernel), "f4")
    cx, cw = da.from_array(x, chunks=(1, 4, (83, 70, 148), 290)), da.from_array(w, chunks=(5, 4, -1, -1))
    want = ca.conv(x, w, padding="same", algorithm=algorithm)
    assert np.array_equal(computed(cd.conv(cx, cw, padding="same", algorithm=algorithm)), want)


@pytest.mark.parametrize(
    ("algorithm", "kernel"),
    [("cpu.fft_planes", (11, 9)), ("cpu.depthwise.rows", (11, 9)), ("cpu.fft.overlap", (31, 31))],
)
def test_bits_of_an_image(algorithm, kernel, monkeypatch, two_threads):
    """In tiles as they lie in the whole, along rows and columns, and of a part that ends within a tile.

    So do chunks that are read where they lie, but for bands at their borders.
    """
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 2130, 2080), "f4"), rng.standard_normal((1, 1, *kernel), "f4")
    # Chunks hold four tiles of the longest side that there is, 256: smaller ones need not begin with a tile.
    cx, call = da.from_array(x, chunks=(1, 1, 1030, 1050)), {"padding": (5, 4), "algorithm": algorithm}
    problem = ca.ConvProblem(x.shape, w.shape, padding=(5, 4))
    want = ca.plan(problem, algorithm=algorithm)(x, w)  # by the transforms that are searched for
    assert np.array_equal(computed(cd.conv(cx, w, **call)), want)
    split, pieces = cd.inner.split_around_halos, []
    monkeypatch.setattr(cd.inner, "WORTH", 0)
    monkeypatch.setattr(cd.inner, "split_around_halos", lambda *a: pieces.append(split(*a)) or pieces[-1])
    for chunks in (cx, cx.map_blocks(np.copy, dtype="f4")):  # in one memory, and each in its own
        out = np.full_like(want, np.nan)
        cd.conv(chunks, w, **call).store(out, scheduler="threads")
        assert np.array_equal(out, want)
    assert sum(of is not None and len(of) > 1 for of in pieces) >= 3


def test_blocks_are_transformed_in_the_tiles_of_the_whole():
    """A strip of an image would be cut otherwise, and have other bits."""
    whole = ca.ConvProblem.parse("n1 c1 h8000 w8000 k1 r31 s31 p15")
    strip = ca.ConvProblem.parse("n1 c1 h1030 w8000 k1 r31 s31")
    found = cd.pinning.in_tiles_of("cpu.fft.overlap", whole)
    assert found.cut(strip).lengths == found.cut(whole).lengths


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_chunks_of_one_array_are_read_where_they_lie(layout):
    """Without a copy, and no element beyond them; chunks that tasks make are put together."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 1, 500, 480), "f4"), rng.standard_normal((3, 1, 9, 9), "f4")
    laid = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "channels_last" else x
    cx = da.from_array(laid, chunks=[240 if n > 9 else n for n in laid.shape])
    ((place, first), *_) = cx.dask.layers[cx.name].items()
    blocks = cd.gather.gathered(cx, [None if n < 9 else [[(0, 299)], [(230, n)]] for n in laid.shape])
    assert np.shares_memory(blocks.dask.layers[blocks.name][blocks.name, *place[1:]], first)
    how = {"padding": 4, "layout": layout, "algorithm": "cpu.fft.overlap"}
    want = ca.conv(laid, w, **how)
    lie = computed(cd.conv(cx, w, **how))
    np.testing.assert_allclose(lie, want, atol=1e-5 * np.abs(want).max())
    assert np.array_equal(lie, computed(cd.conv(cx * 1, w, **how)))
    turned = da.from_array(x, chunks=(1, 1, 200, 90))
    turned = cd.gather.gathered(turned, [None, None, [[(480, 500), (0, 30)]], [[(85, 95)], [(5, 5)]]])
    assert np.array_equal(computed(turned), np.roll(x, 20, 2)[:, :, :50, 85:95])


def test_the_algorithm_is_the_one_of_the_whole(monkeypatch):
    """Blocks of one image would be convolved by another."""
    picked = []
    x, w = da.ones((64, 64, 14, 14), dtype="f4", chunks=(1, 64, 14, 14)), np.ones((64, 64, 3, 3), "f4")
    plan = cd.blocks.planning.plan
    monkeypatch.setattr(
        cd.blocks.planning, "plan", lambda p, d="cpu", a="auto", **k: picked.append(a) or plan(p, d, a, **k)
    )
    lazy = cd.conv(x, w, padding=1)
    lazy.blocks[:2].compute(scheduler="synchronous")
    assert set(picked) == {
        cd.pinning.pinned_algorithm(ca.ConvProblem(x.shape, w.shape, padding=1), "auto", ())
    }
    with pytest.raises(ca.Unsupported):
        cd.conv(x, w, stride=3, algorithm="cpu.winograd.f4x3").compute(scheduler="synchronous")


def test_a_worker_without_the_algorithm_picks_its_own():
    """As that of a package which it does not have, or on a processor for which there is none."""
    problem = ca.ConvProblem((1, 3, 8, 8), (4, 3, 3, 3), padding=1)
    how = replace(cd.forward.shared_by_blocks(problem, "auto", (), 1), algorithm="elsewhere.best")
    assert how.plan((1, 3, 8, 8), (4, 3, 3, 3), ((1, 1), (1, 1))).problem.y_shape == (1, 4, 8, 8)
    with pytest.raises(ValueError, match=r"elsewhere\.best"):
        replace(how, forced=True).plan((1, 3, 8, 8), (4, 3, 3, 3), ((1, 1), (1, 1)))


def test_filters_are_prepared_once_and_let_go(monkeypatch):
    prepared, before = [], set(tasks._filters)
    prepare = Plan.prepare
    monkeypatch.setattr(Plan, "prepare", lambda plan, w: prepared.append(plan.algorithm) or prepare(plan, w))
    x = da.ones((12, 4, 8, 8), dtype="f4", chunks=(1, 4, 8, 8))
    y = cd.conv(x, da.ones((4, 4, 3, 3), dtype="f4") * 2).compute(scheduler="threads", num_workers=3)
    assert (y == 72).all() and len(prepared) == 1
    gc.collect()
    assert set(tasks._filters) <= before


def test_tasks_side_by_side_share_the_threads(monkeypatch):
    monkeypatch.setattr(setting, "_threads_at_start", lambda: 8)
    monkeypatch.setitem(sys.modules, "numba.np.ufunc.parallel", None)  # its count comes first
    seen = []

    def look(block, blocks, begun):
        begun.wait(60)  # until all threads of the pool have
        with tasks.threads_of_task(blocks):
            seen.append(setting.thread_count())
        return block

    for blocks, workers, want in ((100, 8, 1), (100, 4, 2), (2, 8, 4)):
        seen.clear()
        x, begun = da.zeros(workers, chunks=1), threading.Barrier(workers)
        y = x.map_blocks(look, blocks, begun, meta=np.empty(0), name=False)
        y.compute(scheduler="threads", num_workers=workers)
        assert seen == [want] * workers
    seen.clear()
    y = da.zeros(3, chunks=1).map_blocks(look, 100, threading.Barrier(1), meta=np.empty(0), name=False)
    y.compute(scheduler="synchronous")
    assert seen == [8] * 3 and setting.thread_count() == 8


def test_threads_of_calls_are_those_of_one_thread():
    with setting.threads_of_calls(3):
        found = []
        other = threading.Thread(target=lambda: found.append(setting.thread_count()))
        other.start()
        other.join()
        assert setting.thread_count() == 3
    assert found == [setting.thread_count()]


@pytest.mark.parametrize("seed", range(12))
def test_signals(seed):
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    ndim = draw.choice([1, 1, 2, 3])
    most = {1: 90, 2: 25, 3: 9}[ndim]
    dtype, mode = draw.choice(["f4", "f8", "i4", "c8"]), draw.choice(["full", "same", "valid"])
    name = ("convolve", "correlate", "fftconvolve", "oaconvolve")[seed % 4]
    n = [draw.randint(2, most) for _ in range(ndim)]
    m = [draw.randint(2, size if mode == "valid" else draw.choice([4, most])) for size in n]
    how = {}
    if seed % 4 > 1 and ndim > 1:
        how["axes"] = [0]
        m[1:] = [draw.choice([1, size]) for size in n[1:]]
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in (n, m))
    want = getattr(ca.signal, name)(a, b, mode, **how)
    got = computed(getattr(cd.signal, name)(chunked(draw, a), chunked(draw, b), mode, **how))
    if dtype == "i4" and seed % 4 < 2:
        assert np.array_equal(got, want) and got.dtype == want.dtype
    else:
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), strict=True)


def test_types_of_signals_are_those_of_scipy():
    """Of booleans, in one dimension; and of products along axes of length 1."""
    x = np.array([1, 1, 0, 1, 0, 0, 1], bool)
    close(cd.signal.correlate(da.from_array(x, chunks=3), x[:3]), ca.signal.correlate(x, x[:3]))
    with pytest.raises(ValueError, match="Unsupported type"):
        cd.signal.correlate(da.ones((9, 9), dtype=bool), np.ones((2, 2), bool))
    column = np.arange(5, dtype="u1")[:, None]
    close(cd.signal.oaconvolve(da.from_array(column, chunks=2), column[1:2]), column)


@pytest.mark.parametrize("seed", range(8))
def test_pooling(seed):
    draw = random.Random(seed)
    problem, call = random_problem(draw)
    (x,) = whole_numbers(seed, problem.array_shapes[0])
    how = {
        "stride": draw.choice([None, 1, 2]), "dilation": problem.dilation, "layout": call["layout"],
        "padding": [(draw.randrange(e), draw.randrange(e)) for e in problem.kernel_extent],
    }  # fmt: skip
    kernel, cx = problem.kernel, chunked(draw, x)
    for pool, more, error in (("max_pool", {"ceil_mode": True}, 0), ("avg_pool", {}, 1e-5)):
        reason = None
        try:
            want = getattr(ca, pool)(x, kernel, **more, **how)
        except ValueError as no_window_fits:
            reason = re.escape(str(no_window_fits))
        if reason is not None:
            with pytest.raises(ValueError, match=reason):
                getattr(cd, pool)(cx, kernel, **more, **how)
            continue
        found = computed(getattr(cd, pool)(cx, kernel, **more, **how))
        np.testing.assert_allclose(found, want, rtol=error, atol=error)
    with pytest.raises(ca.Unsupported, match="count_padding=False"):
        cd.avg_pool(cx, kernel, ceil_mode=True, **how)


def test_what_is_wrong_is_told_before_anything_is_computed():
    x, w = da.ones((2, 3, 8, 8), dtype="f4"), np.ones((4, 3, 3, 3), "f4")
    bytes_ = np.ones((2, 3, 8), "i1")
    for call, told in (
        (lambda: cd.conv(x, w, groups=2), "groups=2"),
        (lambda: cd.conv(x, w, bias=np.ones(5, "f4")), "bias has shape"),
        (lambda: cd.conv(x, w, bias=np.ones(4)), "bias has dtype float64; it must be float32"),
        (lambda: cd.conv(x, w, residual=np.ones((2, 4, 6, 6))), "residual has dtype float64"),
        (
            lambda: cd.conv(bytes_, bytes_[:, :, :1], residual=np.ones((2, 2, 8), "i4")),
            "residual .* integers",
        ),
        (lambda: cd.conv(bytes_, bytes_[:, :, :1], activation="silu"), "activation='silu' must be None or"),
        (lambda: cd.conv_transpose(x, w[:3], np.ones(3)), "bias has dtype float64"),
        (lambda: cd.conv(x[x[:, 0, 0, 0] > 0], w), "compute_chunk_sizes"),
        (lambda: cd.conv(x, w, layout="NCHW"), "layout='NCHW'"),
        (lambda: cd.conv(x, w, activation="swash"), "activation='swash'"),
        (lambda: cd.conv(x, w, boundary="mirror"), "boundary='mirror'"),
        (lambda: cd.conv(x, w, fill_value=2), "fill_value=2 needs boundary='constant'"),
        (lambda: cd.conv_backward_data(x, w, (2, 3, 8, 8)), "dy"),
        (lambda: cd.signal.convolve(x, w, "whole"), "mode='whole'"),
    ):
        with pytest.raises((ValueError, TypeError), match=told):
            call()


def test_a_plan_tells_what_each_split_takes():
    """More workers take no longer, what it cuts gives the answer, a slow network keeps all together."""
    problem = ca.ConvProblem.parse("n4 c8 h40 w40 k8 r3 s3 p1")
    seconds = [
        cd.plan(problem, workers, cd.Interconnect(1e12, 1e-9, 1e-9)).best.seconds for workers in (1, 2, 4, 16)
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] < seconds[0] / 4
    found = cd.plan(problem, 4, cd.Interconnect(1e12, 1e-9, 1e-9))
    assert found.best.blocks == 4 and found.efficiency > 0.5
    (line,) = [line for line in found.explain().splitlines() if line.startswith("->")]
    assert str(found.best) in line
    x, w = whole_numbers(0, problem.x_shape, problem.w_shape)
    for split in found.candidates[::3]:
        cx, cw = replace(found, candidates=(split,)).cut(x, w)
        y = cd.conv(cx, cw, padding=1)
        assert math.prod(cx.numblocks) * cw.numblocks[0] == split.blocks
        close(y, ca.conv(x, w, padding=1))
    assert cd.plan(problem, 4, cd.Interconnect(1.0, 10.0)).best.blocks == 1
    grouped = cd.plan(ca.ConvProblem.parse("n1 c6 w9 k6 s3 groups3"), 3, cd.Interconnect(1e12, 1e-9, 1e-9))
    assert {split.channels for split in grouped.candidates} == {1}
    with pytest.raises(ValueError, match="forward"):
        cd.plan(problem.replace(direction="backward_data"))


def test_training_steps_are_those_of_one_block():
    """Data-parallel by images, model-parallel by filters, and both; the loss falls."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((12, 2, 9, 8), "f4"), rng.integers(0, 3, 12)
    layers = (
        cd.ConvReLU(rng.standard_normal((6, 2, 3, 3), "f4") * 0.3, np.zeros(6, "f4"), 1, 1),
        cd.ConvReLU(rng.standard_normal((4, 6, 3, 3), "f4") * 0.3, np.zeros(4, "f4"), 2, 1),
        cd.Classifier(rng.standard_normal((4, 3), "f4"), np.zeros(3, "f4")),
    )
    check_gradients(layers, x, labels)
    cx = da.from_array(x, chunks=(5, 2, 9, 8))
    with dask.config.set(scheduler="synchronous"):
        want = trained(layers, x, labels)
        for got in (trained(layers, cx, labels), trained(cd.model_parallel(layers, 3), cx, labels)):
            for value, whole in zip(got, want, strict=True):
                np.testing.assert_allclose(value, whole, rtol=1e-5, atol=1e-6)
    assert want[0] > want[1]


def trained(layers, x, labels):
    """The losses of three steps, and the weights after them."""
    losses = []
    for _ in range(2):
        layers, loss = cd.training_step(layers, x, labels, 0.1)
        losses.append(float(loss.compute()))
    return [
        *losses,
        *(np.asarray(layer.w) for layer in layers),
        *(np.asarray(layer.bias) for layer in layers),
    ]


def check_gradients(layers, x, labels):
    """Against differences of the loss along a random direction, in float64."""
    rng = np.random.default_rng(1)
    layers = [replace(la, w=la.w.astype("f8"), bias=la.bias.astype("f8")) for la in layers]
    moves = [(rng.standard_normal(la.w.shape), rng.standard_normal(la.bias.shape)) for la in layers]

    def loss(step):
        moved = [
            replace(la, w=la.w + step * dw, bias=la.bias + step * db)
            for la, (dw, db) in zip(layers, moves, strict=True)
        ]
        return float(cd.gradients(moved, x.astype("f8"), labels)[0].compute(scheduler="synchronous"))

    _, found = cd.gradients(layers, x.astype("f8"), labels)
    slope = sum(
        float((g * m).sum().compute(scheduler="synchronous"))
        for pair, move in zip(found, moves, strict=True)
        for g, m in zip(pair, move, strict=True)
    )
    assert slope == pytest.approx((loss(1e-6) - loss(-1e-6)) / 2e-6, rel=1e-5)


def test_an_answer_without_elements_is_one_chunk():
    x = da.zeros((2, 5, 0, 1, 2), chunks=(1, 4, 1, 1, 2))
    y = cd.conv(x, np.zeros((85, 1, 1, 1, 1)), groups=5, stride=2)
    assert y.shape == y.compute().shape == (2, 85, 0, 1, 1)
    w = np.zeros((85, 1, 1, 1, 1))
    dx = cd.conv_backward_data(y, w, (2, 5, 0, 1, 2), groups=5, stride=2)
    dw = cd.conv_backward_weights(x[:, :0], y[:, :0], (0, 0, 1, 1, 1), stride=2)
    assert dx.compute().shape == x.shape
    assert dw.compute().shape == (0, 0, 1, 1, 1)
