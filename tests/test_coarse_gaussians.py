"""Gaussians by coarser grids: within the error that is told, at every border, in any shape."""

from contextlib import contextmanager

import numpy as np
import pytest
from scipy import ndimage as scipys

from convalgos import ndimage
from convalgos.core.setting import threads_of_calls
from convalgos.cpu.filtering import (
    block_kernels,
    coarse_gaussians,
    coarse_lines,
    grid_lines,
    panel_passes,
    row_sums,
)
from convalgos.cpu.filtering.coarse_gaussians import coarse_gaussian, steps_within
from convalgos.cpu.filtering.coarse_grids import (
    LOST,
    cubic,
    fitting_step,
    sums_of_rows,
    sums_on_grid,
)
from convalgos.cpu.filtering.grid_lines import GridLinePass
from convalgos.cpu.filtering.panel_passes import PanelPass, panel_width
from convalgos.cpu.filtering.plane_products import are_of_all
from convalgos.cpu.filtering.row_sums import RowPass, RowSums
from convalgos.cpu.vectors import simd
from convalgos.ndimage import approximations

MODES = ["reflect", "mirror", "nearest", "wrap", "constant"]
CALLS = [
    ((133, 140), (12, 30)), ((40, 7, 20), (11, 0, 10)), ((60, 5, 6, 3), (10, 12, 40, 0)), ((9, 21), 25),
    ((7, 290), (44.6, 21.5)), ((30, 22, 7), (15, 14, 33)), ((1, 301), (20, 25)), ((1, 12), (11.4, 14.7)),
    ((250, 2), (50, 30)), ((18, 21, 1), (10, 11, 21)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _also_few_lines(monkeypatch):
    """By recursions, which take longer there than sums."""
    monkeypatch.setattr(approximations, "RECURSED", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_within_the_error(dtype, monkeypatch):
    if dtype == "float64":  # also narrow rows
        monkeypatch.setattr(coarse_gaussians, "PLANES", 1)
    rng = np.random.default_rng(0)
    for mode, threads in zip(MODES, (1, 2, 3, 1, 2), strict=True):
        for shape, sigma in CALLS:
            x = (rng.random(shape) - 0.3).astype(dtype)
            y, before = np.full(shape, np.nan, dtype), x.copy()
            with threads_of_calls(threads):
                ndimage.gaussian_filter(x, sigma, output=y, mode=mode, cval=0.9, max_rel_error=1e-3)
            np.testing.assert_array_equal(x, before)
            expected = scipys.gaussian_filter(x.astype(np.float64), sigma, mode=mode, cval=0.9)
            assert 1e-7 < np.abs(y - expected).max() <= 1e-3 * 0.9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_lines_are_filtered_in_blocks(dtype, monkeypatch):
    """Of which the last is whole, or is not; alone, and as the last of some axes."""
    monkeypatch.setattr(coarse_lines, "LONG", 0)
    rng = np.random.default_rng(4)
    for mode in MODES:
        for shape, sigma in (
            ((1760,), 18), ((3, 1001), (0, 16.3)), ((2, 40, 1203), (0, 12, 14.1)),
            ((1, 6001, 1), (0, 110, 0)), ((30, 1024), (33, 11)), ((2, 1000), (0, 18.5)), ((41,), 19),
            ((3, 333), (0, 71)),
        ):  # fmt: skip
            x = (rng.random(shape) - 0.3).astype(dtype)
            y, before = np.full(shape, np.nan, dtype), x.copy()
            axes = tuple(i for i in range(len(shape)) if np.ndim(sigma) == 0 or sigma[i])
            widths = [np.broadcast_to(sigma, len(shape))[i] for i in axes]
            how = {"mode": mode, "cval": 0.9, "axes": axes}
            with _counted(monkeypatch) as made:
                ndimage.gaussian_filter(x, widths, output=y, max_rel_error=1e-3, **how)
            assert len(made) == 1
            np.testing.assert_array_equal(x, before)
            expected = scipys.gaussian_filter(x.astype(np.float64), widths, **how)
            assert 1e-7 < np.abs(y - expected).max() <= 1e-3 * 0.9


@contextmanager
def _counted(monkeypatch):
    """What `BlockPass` is made for meanwhile."""
    made, kind = [], coarse_lines.BlockPass
    coarse_gaussians.coarse_chain.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(coarse_gaussians, "BlockPass", lambda *args: made.append(args) or kind(*args))
        yield made


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_lines_of_short_integers_in_blocks(name, monkeypatch):
    """By one kernel, of which several tasks filter some blocks each, and leave what lies around y."""
    monkeypatch.setattr(coarse_lines, "SHARE", 1)
    monkeypatch.setattr(coarse_lines, "LONG", 0)
    dtype, rng = np.dtype(name), np.random.default_rng(5)
    limits = np.iinfo(dtype)
    for mode, threads in zip(MODES, (2, 3, 1, 2, 5), strict=True):
        for shape, sigma in (((3, 901), 17), ((5003,), 12.5), ((1, 130), 50), ((7, 20011), 33)):
            x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
            x[..., : shape[-1] // 3] = limits.max
            memory = np.full(x.size + 2, 77, dtype)
            y, how = memory[1:-1].reshape(shape), {"mode": mode, "cval": limits.max, "axes": -1}
            with threads_of_calls(threads), _counted(monkeypatch) as made:
                ndimage.gaussian_filter(x, sigma, output=y, max_rel_error=1e-3, **how)
            assert len(made) == 1 and memory[0] == memory[-1] == 77
            expected = scipys.gaussian_filter(x, sigma, output="f8", **how)
            towards = np.sign(expected) * (expected - y)
            allowed = 1e-3 * max(limits.max, -limits.min)
            assert -allowed <= towards.min() and towards.max() < 1 + allowed


@pytest.mark.parametrize("nbytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_by_tiles_of_any_vectors(nbytes, dtype, monkeypatch):
    tiles = _tiles_of(nbytes, np.dtype(dtype).itemsize, monkeypatch)
    monkeypatch.setattr(coarse_lines, "block_tiles", lambda size: tiles)
    monkeypatch.setattr(coarse_lines, "LONG", 0)
    x = np.random.default_rng(6).random((2, 2003 + nbytes)).astype(dtype)
    with _counted(monkeypatch) as made:
        found = ndimage.gaussian_filter(x, 27, axes=1, mode="nearest", max_rel_error=1e-3)
    expected = scipys.gaussian_filter(x.astype(np.float64), 27, axes=1, mode="nearest")
    assert len(made) == 1 and np.abs(found - expected).max() <= 1e-3


def _tiles_of(nbytes, size, monkeypatch):
    """Those of processors with vectors of so many bytes."""
    with monkeypatch.context() as patched:
        patched.setattr(block_kernels.simd, "lanes", lambda each: nbytes // each)
        lanes, vectors, rows, wide, panel, tall = block_kernels.block_tiles(size)
    assert lanes * vectors == block_kernels.STEPS and wide == nbytes // size
    return lanes, vectors, rows, wide, panel, tall


@pytest.mark.parametrize("shape", [(133, 140), (1, 301)])
def test_floats_of_bytes_are_within_the_error(shape):
    """By grids and by recursions; bytes of bytes stay exact without an error."""
    x = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
    for sigma in (8, 30):
        found = ndimage.gaussian_filter(x, sigma, output="f4", max_rel_error=1e-3)
        expected = scipys.gaussian_filter(x, sigma, output="f8")
        assert 255e-7 < np.abs(found - expected).max() <= 0.255
        whole = ndimage.gaussian_filter(x, sigma)
        np.testing.assert_array_equal(whole, scipys.gaussian_filter(x, sigma))


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_short_integers_are_cut_off_once(name):
    """At every border, by grids and recursions; what is between two integers becomes the nearer to zero."""
    dtype, rng = np.dtype(name), np.random.default_rng(3)
    limits = np.iinfo(dtype)
    shapes = ((133, 140), 30), ((40, 7, 20), (11, 0, 10)), ((1, 5003), 20), ((9, 70), 8), ((65, 9), (33, 12))
    for mode, (shape, sigma) in zip(MODES, shapes, strict=True):
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        x[: shape[0] // 2, : shape[1] // 2] = limits.max  # beyond which an error may lead
        y = np.full(shape, limits.min, dtype)
        ndimage.gaussian_filter(x, sigma, output=y, mode=mode, cval=limits.max, max_rel_error=1e-3)
        expected = scipys.gaussian_filter(x, sigma, output="f8", mode=mode, cval=limits.max)
        allowed = 1e-3 * max(limits.max, -limits.min)
        towards = np.sign(expected) * (expected - y)  # from -allowed to 1 + allowed
        assert -allowed <= towards.min() and towards.max() < 1 + allowed
        assert dtype.itemsize > 1 or towards.max() > 0.7
        for value in (limits.max, 100, limits.min):
            flat = np.full(shape, value, dtype)
            given = {"mode": mode, "cval": value, "max_rel_error": 1e-3}
            np.testing.assert_array_equal(ndimage.gaussian_filter(flat, sigma, **given), flat)
    exact = ndimage.gaussian_filter(x, 20, mode="constant", cval=0.5, max_rel_error=1e-3)
    np.testing.assert_array_equal(exact, scipys.gaussian_filter(x, 20, mode="constant", cval=0.5))


def test_errors_are_those_of_the_weights():
    """The weights of outputs at all places between two of the grid."""
    sigma, reach, many = 20.0, 80, 401
    (step,) = steps_within([(sigma, reach)], [("zero", many)], np.dtype("f8"), 1e-3)
    by = coarse_gaussian(sigma, reach, step)
    found = ndimage.gaussian_filter(np.eye(many), sigma, axes=0, mode="constant", max_rel_error=1e-3)
    exact = scipys.gaussian_filter1d(np.eye(many), sigma, 0, mode="constant")
    errors = np.abs(found - exact).sum(1)[reach : many - reach]
    assert 0.99 < errors.max() / by.error < 1.01 and by.error < 1e-3


def test_finer_grids_where_less_error_is_allowed():
    wide, double = [(50.0, 300)], np.dtype("f8")
    line = ("symmetric", 999)
    steps = [steps_within(wide, [line], double, allowed) for allowed in (5e-3, 4e-4, 2e-4)]
    assert steps[0] > steps[1] > steps[2]
    assert steps_within(wide, [line], double, 1e-9) is None
    assert steps_within([*wide, (3.0, 12)], [line] * 2, double, 1e-2) is None  # one is narrow


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("around", [False, True])
def test_sums_of_rows(size, around, monkeypatch):
    """Exact integers, in chunks and bands of several threads, and around the caches."""
    monkeypatch.setattr(row_sums, "outgrows_caches", lambda *_: around)
    monkeypatch.setattr(row_sums, "CACHE", 1 << 10)
    rng = np.random.default_rng(1)
    for outer, rows, inner in ((1, 5, 700), (3, 9, 33), (2, 4, 1), (70, 3, 9)):
        by = RowSums(rng.integers(0, 4, 11), rng.integers(-1, rows, 9), rng.integers(-3, 4, (3, 6)) * 1.0)
        x = rng.integers(-9, 9, (outer, rows, inner)).astype(f"f{size}")
        memory = np.full(outer * by.rows * inner + 3, np.nan, x.dtype)
        y = memory[3:].reshape(outer, by.rows, inner)  # off alignment
        RowPass(outer, rows, inner, x.dtype, by, 7.0, 2).run(x, y)
        known = np.concatenate([x, np.full((outer, 1, inner), 7.0)], 1)  # -1 is the last one
        for j in range(by.rows):
            taken = known[:, by.sources[by.firsts[j] + np.arange(6)]]  # (outer, 6, inner)
            assert np.array_equal(y[:, j], np.einsum("t,oti->oi", by.weights[j % 3], taken))
        assert np.isnan(memory[:3]).all()


def test_groups_of_rows():
    """Of neighbours that are sums of nearly the same; of few rows, of all, and none of rows far apart."""
    rng = np.random.default_rng(3)
    for rows, apart in ((2, 0), (3, 2), (4, 1), (9, 1), (11, 0)):
        firsts, weights = np.arange(rows) * apart, rng.integers(-3, 4, (rows, 7)) * 1.0
        by = RowSums(firsts, rng.integers(-1, 40, rows * apart + 7), weights)
        groups = row_sums.row_groups(by)
        many = min(4, rows)
        assert groups.weights.shape[::2] == (-(-rows // many), many)
        for j in range(rows):
            group = j // many
            within = j - min(group * many, rows - many)
            at = firsts[j] - groups.firsts[group]
            expected = np.zeros(groups.weights.shape[1])
            expected[at : at + 7] = weights[j]
            np.testing.assert_array_equal(groups.weights[group, :, within], expected)
        assert (groups.sources[: len(by.sources)] == by.sources).all()
        assert groups.firsts.max() + groups.weights.shape[1] <= len(groups.sources)
    assert row_sums.row_groups(RowSums(np.arange(8) * 7, np.arange(60), np.ones((8, 7)))) is None
    assert row_sums.row_groups(RowSums(np.zeros(1, int), np.arange(9), np.ones((1, 9)))) is None


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_between_two_places(size, threads, monkeypatch):
    """Runs of rows that are sums of the same four, whole and some vectors of each at a time."""
    monkeypatch.setattr(row_sums, "SHARE", 1)
    rng = np.random.default_rng(2)
    for outer, rows, inner in ((1, 7, 125), (3, 9, 33), (2, 4, 1), (70, 5, 20)):
        firsts = np.repeat(rng.permutation(rows - 3), rng.integers(1, 6, rows - 3))
        by = RowSums(firsts, rng.integers(-1, rows, rows), rng.integers(-3, 4, (len(firsts), 4)) * 1.0)
        x = rng.integers(-9, 9, (outer, rows, inner)).astype(f"f{size}")
        memory = np.full(outer * by.rows * inner + 3, np.nan, x.dtype)
        y = memory[3:].reshape(outer, by.rows, inner)
        made = row_sums.row_record(outer, rows, inner, x.dtype, by, 7.0, threads)
        assert made.kernel == row_sums.spread_rows(size, simd.lanes(size))
        RowPass(outer, rows, inner, x.dtype, by, 7.0, threads).run(x, y)
        known = np.concatenate([x, np.full((outer, 1, inner), 7.0)], 1)
        expected = np.stack([np.einsum("t,oti->oi", w, known[:, by.sources[first + np.arange(4)]])
                             for first, w in zip(firsts, by.weights, strict=True)], 1)  # fmt: skip
        np.testing.assert_array_equal(y, expected)
        assert np.isnan(memory[:3]).all()


@pytest.mark.parametrize("name", ["int8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_lines_in_panels(name, threads, monkeypatch):
    """Sums of whole numbers by two tables and by three, of panels that lines fill in part."""
    monkeypatch.setattr(panel_passes, "SHARE", 1)
    monkeypatch.setattr(panel_passes, "cache_sizes", lambda: (1 << 14, 1 << 14))
    dtype, rng = np.dtype(name), np.random.default_rng(3)
    short = dtype if dtype.kind in "iu" else None
    sums = np.dtype(np.float32) if short else dtype
    for lines, size in ((5, 9), (150, 40), (33, 17), (64, 16), (7, 600)):
        x = rng.integers(0, 4, (lines, size)).astype(dtype)
        memory = np.full(x.size + 2, 77, dtype)
        y = memory[1:-1].reshape(lines, size)
        tables, rows = [], size
        for count, taps in [*[(6, 3), (5, 2)][: 1 + lines % 2], (size, 4)]:
            weights = rng.integers(0, 2, (count, taps)) * 1.0
            tables.append(RowSums(np.sort(rng.integers(0, 3, count)), rng.integers(-1, rows, 6), weights))
            rows = count
        PanelPass(lines, size, sums, tables, 2.0, threads, short, short).run(x, y)
        expected = x.astype(float)
        for by in tables:
            known = np.concatenate([expected, np.full((lines, 1), 2.0)], 1)
            taken = known[:, by.sources[by.firsts[:, None] + np.arange(by.weights.shape[1])]]
            expected = np.einsum("lrt,rt->lr", taken, by.weights)
        if short:
            expected = np.minimum(expected, np.iinfo(dtype).max)
        np.testing.assert_array_equal(y, expected)
        assert memory[0] == memory[-1] == 77


def test_widths_of_panels():
    """All threads have as many vectors, as far as that goes, and no panel has more than fit."""
    assert [panel_width(n, 100, 64, threads) for n, threads in ((1, 1), (64, 2), (9, 1), (9, 2))] == [
        1,
        8,
        5,
        5,
    ]
    assert panel_width(100, 1 << 20, 64, 2) == 1


@pytest.mark.parametrize("name", ["uint8", "int16", "float32", "float64"])
def test_last_axes_in_panels(name, monkeypatch):
    """Lines of one axis, and of the coarse rows of others."""
    dtype, rng = np.dtype(name), np.random.default_rng(7)
    monkeypatch.setattr(panel_passes, "FEWEST", 0)
    monkeypatch.setattr(panel_passes, "NARROW", 1 << 20)
    made, kind = [], coarse_gaussians.PanelPass
    coarse_gaussians.coarse_chain.cache_clear()
    monkeypatch.setattr(coarse_gaussians, "PanelPass", lambda *args: made.append(args) or kind(*args))
    shapes = ((9, 30), -1), ((4, 70, 33), 2), ((70, 41), None), ((40, 700), -1), ((130, 20), 1)
    for number, (mode, (shape, axes)) in enumerate(zip(MODES, shapes, strict=True), 1):
        largest = np.iinfo(dtype).max if dtype.kind in "iu" else 9.0
        x = (rng.random(shape) * largest).astype(dtype)
        given = {"mode": mode, "cval": 5, "axes": axes}
        found = ndimage.gaussian_filter(x, 25, max_rel_error=1e-3, **given)
        expected = scipys.gaussian_filter(x, 25, output="f8", **given)
        towards, allowed = expected - found, 1e-3 * largest
        assert len(made) == number and found.dtype == dtype
        assert -allowed <= towards.min() and towards.max() <= allowed + (dtype.kind in "iu")


@pytest.mark.parametrize("name", ["int8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("after", [1, 5, 21])
def test_lines_by_themselves(name, threads, after, monkeypatch):
    """Sums of whole numbers by two tables and by three, some lines at a time, at borders of all kinds."""
    monkeypatch.setattr(grid_lines, "SHARE", 1)
    dtype, rng = np.dtype(name), np.random.default_rng(8)
    short = dtype if dtype.kind in "iu" else None
    sums = np.dtype(np.float32) if short else dtype
    for lines, size, fill in (
        (1, 9, 0.0),
        (5, 9, 2.0),
        (3, 40, 0.0),
        (33, 17, 2.0),
        (4, 16, 2.0),
        (7, 600, 0.0),
    ):
        x = rng.integers(0, 4, (lines, size, after)).astype(dtype)
        memory = np.full(x.size + 2, 77, dtype)
        y = memory[1:-1].reshape(x.shape)
        around = np.concatenate([rng.integers(-1, size, 2), np.arange(size), rng.integers(-1, size, 3)])
        tables = [RowSums(np.sort(rng.integers(0, size - 3, 6)), around, rng.integers(0, 2, (6, 7)) * 1.0)]
        if lines % 2:
            tables.append(RowSums(np.arange(5), rng.integers(-1, 6, 6), rng.integers(0, 2, (1, 2)) * 1.0))
        rows = tables[-1].rows
        firsts = np.sort(rng.integers(0, rows - 3, size))
        at = rng.integers(0, 3, size)[:, None] / 2  # where splines are eighths
        tables.append(RowSums(firsts, np.arange(rows), np.rint(48 * cubic(np.arange(-1, 3) - at)) / 8))
        down, *along, up = tables
        given = lines, size, sums, down, *(along or [None]), up, fill, threads, short, short, after
        GridLinePass(*given).run(x, y)
        expected = x.astype(float)
        for by in tables:
            known = np.concatenate([expected, np.full((lines, 1, after), float(fill))], 1)
            taken = known[:, by.sources[by.firsts[:, None] + np.arange(by.weights.shape[1])]]
            weights = np.broadcast_to(by.weights, (by.rows, by.weights.shape[1]))
            expected = np.einsum("lrta,rt->lra", taken, weights)
        if short:
            expected = np.minimum(np.trunc(expected), np.iinfo(dtype).max)
        np.testing.assert_array_equal(y, expected)
        assert memory[0] == memory[-1] == 77


def test_few_rows_are_sums_of_all():
    """As few as the rank tells, or as there are; and what all tables do is what three do."""
    for boundary in ("edge", "constant", "zero", "reflect", "symmetric", "wrap"):
        few = (1, 30), (2, 30), (3, 15), (3, 61), (4, 110), (5, 150), (9, 40)
        for size, sigma in (*few, (33, 21), (50, 20), (120, 30), (700, 25)):
            step = fitting_step(boundary, size, sigma / 1.8)
            middle = coarse_gaussian(sigma, 4 * sigma, step).middle
            three = [by for by in sums_on_grid(boundary, size, step, middle) if by is not None]
            down, after = sums_of_rows(boundary, size, step, middle)
            one, other = (_matrix(tables, size) for tables in ([down, *after], three))
            assert np.abs(one - other).sum(1).max() <= LOST + 1e-12
            assert np.abs(one.sum(1) - other.sum(1)).max() < 2.0**-40  # what is flat stays so
            if boundary in ("symmetric", "wrap") and sigma > 3 * size:
                assert down.rows == 1
            assert down.rows <= size


def _matrix(tables, size):
    """(outputs, elements and the fill value) of sums one after the other."""
    found = np.concatenate([np.eye(size, size + 1), np.eye(1, size + 1, size)])
    for by in tables:
        taken = found[by.sources[by.firsts[:, None] + np.arange(by.weights.shape[1])]]
        weights = np.broadcast_to(by.weights, (by.rows, by.weights.shape[1]))
        found = np.concatenate([np.einsum("rt,rtn->rn", weights, taken), np.eye(1, size + 1, size)])
    return found[:-1]


@pytest.mark.parametrize("name", ["uint8", "int16", "float32", "float64"])
def test_calls_that_come_again(name):
    """Compiled as a whole they do what passes do one after the other."""
    dtype, rng = np.dtype(name), np.random.default_rng(9)
    shapes = ((3, 200), None), ((2, 40, 3), None), ((12, 300), 0), ((2, 3, 250), (0, 1)), ((5, 1), None)
    for mode in MODES:
        for shape, axes in shapes:
            x = (rng.random(shape) * (200 if dtype.kind in "iu" else 9)).astype(dtype)
            given = {"mode": mode, "cval": 5, "axes": axes, "max_rel_error": 1e-3}
            first, *others = [ndimage.gaussian_filter(x, 30, **given) for _ in range(5)]
            expected = scipys.gaussian_filter(x, 30, output="f8", mode=mode, cval=5, axes=axes)
            towards, allowed = expected - first, 1e-3 * (200 if dtype.kind in "iu" else 9)
            assert -allowed <= towards.min() and towards.max() <= allowed + (dtype.kind in "iu")
            for other in others:
                np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize(
    ("shape", "axis"), [((900,), 0), ((8, 2000), 1), ((50, 150, 14), 1), ((600, 700), None)]
)
def test_large_numbers_do_not_overflow(shape, axis):
    for dtype in (np.float32, np.float64):
        x = np.full(shape, 0.95 * np.finfo(dtype).max, dtype)
        axes = None if axis is None else (axis,)
        y = ndimage.gaussian_filter(x, 30, max_rel_error=1e-3, axes=axes)
        assert (abs(y / x - 1) < 1e-3).all()


@pytest.mark.parametrize("name", ["float32", "float64", "uint8", "int16"])
def test_planes_of_short_rows_are_summed_by_matrices(name):
    dtype, rng = np.dtype(name), np.random.default_rng(3)
    for inner, shape in ((2, (5, 40)), (9, (300, 21)), (16, (3, 8)), (7, (1, 110)), (13, (40, 33))):
        for mode, threads in zip(MODES, (1, 2, 3, 2, 1), strict=True):
            x = rng.random((*shape, inner)) - 0.3
            x = x.astype(dtype) if dtype.kind == "f" else (x * 90 + 30).astype(dtype)
            how = {"mode": mode, "cval": 7.0, "axes": 1}
            top = max(7.0 * (mode == "constant"), float(np.abs(x.astype("d")).max()))
            for sigma in (14, 60):
                with threads_of_calls(threads):
                    y = ndimage.gaussian_filter(x, sigma, max_rel_error=1e-3, **how)
                expected = scipys.gaussian_filter(x.astype(np.float64), sigma, **how)
                off = np.abs(y - expected).max()
                assert off <= 1e-3 * top + (0 if dtype.kind == "f" else 1)


def test_which_sums_are_those_of_planes():
    middle = coarse_gaussian(20.0, 80, 11.0).middle
    for boundary in ("symmetric", "reflect", "edge", "wrap", "constant"):
        step = fitting_step(boundary, 60, 11.0)
        down, back = sums_of_rows(boundary, 60, step, middle, np.inf)
        assert len(back) < 2 and are_of_all(60, [down, *back])
        assert not are_of_all(60, [each for each in sums_on_grid(boundary, 600, step, middle) if each])
