"""Results of convalgos.dask that are asked for whole: blocks are written into one array, without a copy."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="needs Dask (pip install 'convalgos[dask]')")

import dask  # noqa: E402

import convalgos as ca  # noqa: E402
import convalgos.dask as cd  # noqa: E402
from convalgos.dask.written import WrittenArray  # noqa: E402

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((2, 1, 301, 301), "f4"), RNG.standard_normal((3, 1, 5, 5), "f4")
TOGETHER = da.from_array(X, chunks=(1, 1, 100, 301))  # in one memory
CHUNKED = TOGETHER.map_blocks(np.copy, dtype="f4")


def no_copies(*_):
    raise AssertionError("Dask put blocks together")


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
@pytest.mark.parametrize(
    ("lazy", "whole"),
    [
        (lambda x: cd.conv(x, W, padding=2, activation="silu", algorithm="cpu.fft.overlap"),
         lambda x: ca.conv(x, W, padding=2, activation="silu", algorithm="cpu.fft.overlap")),
        (lambda x: cd.conv(x, W, stride=2, algorithm="cpu.direct.pixels"),
         lambda x: ca.conv(x, W, stride=2, algorithm="cpu.direct.pixels")),
        (lambda x: cd.conv_transpose(x, W.transpose(1, 0, 2, 3), algorithm="cpu.direct"),
         lambda x: ca.conv_transpose(x, W.transpose(1, 0, 2, 3), algorithm="cpu.direct")),
        (lambda x: cd.max_pool(x, kernel=3), lambda x: ca.max_pool(x, 3)),
        (lambda x: cd.ndimage.maximum_filter(x, (1, 1, 4, 4)),
         lambda x: ca.ndimage.maximum_filter(x, (1, 1, 4, 4))),
        (lambda x: cd.signal.convolve((8 * x).astype("i4"), np.arange(6).reshape(1, 1, 2, 3)),
         lambda x: ca.signal.convolve((8 * x).astype("i4"), np.arange(6).reshape(1, 1, 2, 3))),
    ],
    ids=["overlap", "pixels", "transposed", "pool", "filter", "signal"],
)  # fmt: skip
def test_blocks_are_written_where_they_belong(lazy, whole, scheduler, monkeypatch):
    """By `compute` and by `store`, whatever was there before; the bits are those that Dask puts together."""
    y, together = lazy(CHUNKED), lazy(TOGETHER)
    (want,) = dask.compute(y, scheduler=scheduler)
    np.testing.assert_allclose(want, whole(X), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(da.core, "finalize", no_copies)
    assert np.array_equal(y.compute(scheduler=scheduler), want)
    out = np.full(y.shape, 99, y.dtype)
    assert y.store(out, scheduler=scheduler, lock=True) is None
    assert np.array_equal(out, want)
    assert np.array_equal(together.compute(scheduler=scheduler), whole(X))
    with pytest.raises(AssertionError, match="put blocks together"):
        dask.compute(y, scheduler=scheduler)


def test_what_lies_together_is_computed_as_one_block(monkeypatch):
    """Filters and residuals in chunks of one memory, too; not where any of them has chunks of its own."""
    blocks = []
    run_block = cd.blocks.run_block
    monkeypatch.setattr(cd.blocks, "run_block", lambda plan, *a: blocks.append(plan) or run_block(plan, *a))
    w = da.from_array(W, chunks=(2, 1, 5, 5))
    residual = RNG.standard_normal((2, 3, 301, 301), "f4")
    r = da.from_array(residual, chunks=(2, 3, 90, 301))
    want = ca.conv(X, W, padding=2, residual=residual)
    for number, arrays in ((1, (TOGETHER, w, r)), (12, (CHUNKED, w, r)), (12, (TOGETHER, w, r * 1))):
        blocks.clear()
        got = cd.conv(arrays[0], arrays[1], padding=2, residual=arrays[2]).compute(scheduler="threads")
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert len(blocks) == number


@pytest.mark.parametrize("algorithm", ["cpu.depthwise.rows", "cpu.fft_planes"])
@pytest.mark.parametrize(
    "call", [{"padding": (5, 1)}, {"stride": (1, 2), "padding": [(0, 3), (2, 0)]}, {"dilation": 2}]
)
def test_chunks_are_read_where_they_lie_but_for_their_borders(algorithm, call, monkeypatch):
    """Bands around the chunk of a block read copies; nothing is computed twice, or left."""
    read = []
    joined = cd.block_parts.joined_parts
    monkeypatch.setattr(cd.block_parts, "joined_parts", lambda *a: read.append(joined(*a)) or read[-1])
    monkeypatch.setattr(cd.inner, "WORTH", 0)
    rng = np.random.default_rng(1)
    x, w = rng.integers(-3, 4, (1, 1, 1400, 900)).astype("f4"), rng.integers(-3, 4, (3, 1, 3, 5)).astype("f4")
    if algorithm == "cpu.fft_planes" and "stride" in call:
        call = call | {"stride": 1}
    chunks = [chunk for row in (600, 800) for chunk in ((row, 350), (row, 550))]
    blocks = da.from_array(x, chunks=(1, 1, (600, 800), (350, 550))).map_blocks(np.copy, dtype="f4").persist()
    want = np.maximum(ca.conv(x, w, algorithm=algorithm, **call), 0)
    held = [chunk for chunk in blocks.dask.layers[blocks.name].values() if type(chunk) is np.ndarray]
    assert len(held) == len(chunks)
    out = np.full_like(want, np.nan)
    for written in (True, False):
        read.clear()
        with dask.config.set(scheduler="threads" if written else "processes"):
            y = cd.conv(blocks, w, algorithm=algorithm, activation="relu", **call)
        if written:
            y.store(out, scheduler="threads")
        else:  # as tasks of workers are
            (out,) = dask.compute(y, scheduler="threads")
        np.testing.assert_allclose(out, want, atol=1e-5 * want.max())
        lie = [any(np.shares_memory(of, chunk) for chunk in held) for of in read]
        assert sum(lie) >= (4 if algorithm == "cpu.depthwise.rows" else 0)
        copied = [of.shape[2] * of.shape[3] for of, own in zip(read, lie, strict=True) if not own]
        assert max(copied, default=0) < 600 * 350


def test_what_follows_is_part_of_the_tasks_of_blocks():
    """In this process, where chunks that tasks have made are put together before."""
    x = da.ones((1, 1, 40, 30), dtype="f4", chunks=(1, 1, 20, 30)).map_blocks(np.copy, dtype="f4")
    y = cd.conv(x, np.ones((1, 1, 3, 3), "f4"), padding=1)
    (fused,) = dask.optimize(da.maximum(y + 1, 5))
    names = [str(key[0]).rpartition("-")[0] for key in dict(fused.dask) if isinstance(key, tuple)]
    assert sum("conv" in name or "add" in name or "maximum" in name for name in names) == y.npartitions


def test_what_is_not_written_is_computed_by_dask():
    """Elements that were assigned, other processes, parts of arrays, and arrays of other types."""
    y, want = cd.conv(CHUNKED, W, padding=2), ca.conv(X, W, padding=2)
    assert not y._is_written({"scheduler": "processes"})
    out = np.zeros((4, *y.shape[1:]), "f8")
    y.store(out, regions=(slice(1, 3), slice(None), slice(None), slice(None)), scheduler="threads")
    np.testing.assert_array_equal(out[1:3], want)
    assert not out[0].any() and not out[3].any()
    y.store(out[:2], scheduler="threads")
    np.testing.assert_array_equal(out[:2], want)
    assert type(y + 0) is type(y[:1]) is type(y.persist(scheduler="threads")) is da.Array
    y[:, :, 3] = 7
    assert type(y) is WrittenArray
    want[:, :, 3] = 7
    np.testing.assert_array_equal(y.compute(scheduler="threads"), want)


def test_memory_maps_are_read_and_written_in_place(tmp_path, monkeypatch):
    """Without a copy of all, as Dask makes one, or of a block: files may be larger than memory."""
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "f4", (2, 3, 301, 301))
    monkeypatch.setattr(da.core, "store", no_copies)
    with dask.config.set({"array.chunk-size": X.nbytes // 3}):
        chunked = cd.maps.as_dask("x", x)
    assert chunked.npartitions > 1
    chunks = [chunk for chunk in chunked.dask.values() if type(chunk) is np.ndarray]
    assert len(chunks) == chunked.npartitions and all(np.shares_memory(chunk, x) for chunk in chunks)
    cd.conv(chunked, da.from_array(W), padding=2).store(out, scheduler="threads")
    want = ca.conv(X, W, padding=2)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-4, atol=1e-4)


def test_large_filters_are_known_by_their_bytes():
    """The same array of Dask while they are the same, and another once they are written to."""
    w = RNG.standard_normal((8, 64, 6, 6), "f4")
    x = da.ones((1, 64, 9, 9), dtype="f4", chunks=(1, 64, 9, 9))
    first = cd.conv(x, w)
    assert cd.conv(x, w.copy()).name == first.name
    before = first.compute(scheduler="synchronous")
    w[-1, -1, -1, -1] += 50
    after = cd.conv(x, w)
    assert after.name != first.name
    difference = after.compute(scheduler="synchronous") - before
    np.testing.assert_allclose(difference[:, -1], 50, rtol=1e-4)
    np.testing.assert_array_equal(first.compute(scheduler="synchronous"), before)
