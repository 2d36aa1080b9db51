"""Attention in networks: as ONNX spells it out, its operands read where they lie, and by itself."""

import numpy as np
import pytest
from test_network_odd_models import check_model
from test_network_onnx import CLOSE, RNG, Builder, numbers, reference

from convalgos.core.move_views import view_of
from convalgos.core.moves import moved, moved_shape, unmoved
from convalgos.cpu.elementwise.attention import SHARE_ULPS, AttentionPlan
from convalgos.cpu.elementwise.rearranging import RearrangementPlan
from convalgos.network.attention import Attention, Rearrangement
from convalgos.network.graph import Foreign
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

HEADS = (0, 2, 1, 3)  # the order that brings heads (N, rows, heads, depth) before their rows, and back
EPSILON = 2.0**-24


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def in_heads(shape, heads, turned=False):
    """The moves of (N, rows, heads * depth) to heads."""
    return ("view", (0, 0, heads, shape[-1] // heads)), ("transpose", (0, 2, 3, 1) if turned else HEADS)


SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 5, 7, 13, 9, 11),
    (3, 2, 50, 77, 20, 33),
    (1, 3, 17, 300, 48, 5),
    (4, 3, 49, 49, 32, 32),
]


@pytest.mark.parametrize("images, heads, rows, keys, depth, width", SIZES)
def test_attention_against_float64(images, heads, rows, keys, depth, width):
    q, k, v = (
        numbers((images, *s)) for s in ((rows, heads * depth), (keys, heads * depth), (keys, heads * width))
    )
    biases = numbers((heads, rows, keys)), numbers((images, 1, 1, keys))
    moves = in_heads(q.shape, heads), in_heads(k.shape, heads, True), in_heads(v.shape, heads)
    last = ("transpose", HEADS), ("view", (0, 0, heads * width))
    shapes = [x.shape for x in (q, k, v, biases[1])]
    plan = AttentionPlan(shapes, (*moves, last), 0.3, ((), ()), (biases[0], None))
    plan.run((q, k, v, biases[1]), y := np.full((images, rows, heads * width), np.nan, "f4"))
    a, b, c = (moved(x.astype("f8"), own) for x, own in zip((q, k, v), moves, strict=True))
    scores = 0.3 * a @ b + biases[0] + biases[1]
    right = moved(softmax(scores) @ c, last)
    terms = SHARE_ULPS + keys + (depth + 4) * np.abs(0.3 * a).max() * np.abs(b).max() + np.abs(scores).max()
    assert np.abs(y - right).max() <= terms * EPSILON * np.abs(c).max()


def test_whole_numbers_are_exact_where_one_score_is_far_above():
    q, k = np.zeros((2, 3, 4), "f4"), np.zeros((2, 4, 5), "f4")
    q[..., 0], chosen = 1000, [[3], [1]]
    k[np.arange(2), 0, np.ravel(chosen)] = 1
    v = RNG.integers(-9, 9, (2, 5, 6)).astype("f4")
    AttentionPlan((q.shape, k.shape, v.shape), ((),) * 4).run((q, k, v), y := np.empty((2, 3, 6), "f4"))
    assert np.array_equal(y, np.repeat(np.take_along_axis(v, np.array(chosen)[..., None], 1), 3, 1))


def test_masks_and_numbers_that_are_none():
    """As in ONNX Runtime: -inf has no share; NaN, inf, or nothing but -inf, makes a row NaN."""
    q, k, v = numbers((1, 5, 4)), numbers((1, 4, 19)), numbers((1, 19, 3))
    mask = np.zeros((5, 19), "f4")
    mask[0, 3:], mask[1], mask[2, 18], mask[3, 0] = -np.inf, -np.inf, np.nan, np.inf
    plan = AttentionPlan((q.shape, k.shape, v.shape), ((),) * 4, 1.0, ((),), (mask,))
    plan.run((q, k, v), y := np.empty((1, 5, 3), "f4"))
    assert np.isnan(y[0, 1:4]).all()
    right = softmax((q.astype("f8") @ k + mask)[0, [0, 4]]) @ v[0]
    assert np.abs(y[0, [0, 4]] - right).max() < 1e-5
    build = Builder((1, 5, 4))
    shares = build.node("Softmax", build.node("Add", build.node("MatMul", "x", k), mask))
    peer = reference(build.model(build.node("MatMul", shares, v)), {"x": q})[0]
    assert np.array_equal(np.isnan(peer), np.isnan(y))


@pytest.mark.parametrize("width", [4096, 6145])
def test_rows_longer_than_a_run_are_moved_in_parts(width):
    x, moves = numbers((3, 2, width)), (("transpose", (1, 0, 2)), ("roll", 0, 1))
    plan = RearrangementPlan(x.shape, moves)
    plan.run((x,), y := np.full((2, 3, width), np.nan, "f4"))
    assert np.array_equal(y, moved(x, moves))
    assert len(plan._places) == (12 if width == 4096 else 6), "in halves where a row has any"


def test_operands_that_do_not_go_together():
    for shapes in (((1, 2, 3), (1, 4, 5), (1, 5, 6)), ((1, 2, 3), (1, 3, 5), (1, 4, 6)), ((3,), (3,), (3,))):
        with pytest.raises(ValueError, match="do not go together"):
            AttentionPlan(shapes, ((),) * 4)
    with pytest.raises(ValueError, match="columns"):
        AttentionPlan(((1, 2, 3), (1, 3, 5), (1, 5, 6)), ((),) * 4, 1.0, ((),), (np.zeros((2, 1), "f4"),))


MOVES = [
    (("transpose", (2, 0, 1)),),
    (("view", (4, 2, -1)), ("transpose", (1, 0, 2)), ("index", 0, 1)),
    (("roll", 1, -2), ("slice", 2, 1, None, 3), ("view", (-1,))),
    (("slice", 0, 3, 3, 1),),
    (("view", (24, 7)), ("roll", 0, 5), ("view", (3, 8, -1)), ("transpose", (1, 0, 2))),  # rows stay whole
    (("index", 1, 2), ("view", (2, 2, 7)), ("slice", 1, 0, 2, 2)),
    (("view", (6, 4, 7)), ("transpose", (1, 0, 2)), ("view", (4, 42)), ("roll", 0, 1)),  # and get longer
    (("transpose", (1, 0, 2)), ("roll", 2, 3)),
]


@pytest.mark.parametrize("moves", MOVES)
def test_moves(moves):
    x = numbers((4, 6, 7))
    right = moved(x, moves)
    assert moved_shape(x.shape, moves) == right.shape
    RearrangementPlan(x.shape, moves).run((x,), y := np.full(right.shape, np.nan, "f4"))
    assert np.array_equal(y, right)
    seen = view_of(x, moves)
    assert (seen is None) == (not right.size or any(move[0] == "roll" for move in moves))
    assert seen is None or (np.array_equal(seen, right) and np.shares_memory(seen, x))
    back = unmoved(y, x.shape, moves)
    assert back is None or np.array_equal(back, x)
    with pytest.raises(ValueError, match="nothing at"):
        moved(x, [("index", 1, 6)])


def test_views_of_heads_of_many_images_lie_in_their_array():
    """As torch has them, with tokens before images: on the way heads of all images are one dimension."""
    x = numbers((7, 4, 18))
    moves = (
        ("view", (7, 4, 3, 6)),
        ("index", 2, 1),
        ("view", (7, 8, 3)),
        ("transpose", (1, 0, 2)),
        ("view", (4, 2, 7, 3)),
    )
    seen = view_of(x, moves)
    assert np.shares_memory(seen, x) and np.array_equal(seen, moved(x, moves))
    assert view_of(x, moves[:3]) is None  # these by themselves do not lie evenly
    assert view_of(x, (("transpose", (1, 0, 2)), ("view", (2, 14, 18)))) is None
    assert view_of(x[:0], ()) is None


def qkv(build, x, heads, depth):
    """q, k and v of tokens x by one product, as exporters write it."""
    c = heads * depth
    y = build.node("Add", build.node("MatMul", x, numbers((c, 3 * c))), numbers(3 * c))
    n = build.node("Gather", build.node("Shape", x), np.array(0))
    n = build.node("Unsqueeze", n, np.array([0]))
    shape = build.node(
        "Concat", n, np.array([-1]), np.array([3]), np.array([heads]), np.array([depth]), axis=0
    )
    y = build.node("Transpose", build.node("Reshape", y, shape), perm=[2, 0, 3, 1, 4])
    return [build.node("Gather", y, np.array(i), axis=0) for i in range(3)]


def attention_model(heads, depth, rows, batch="n", mask=False):
    build = Builder((batch, rows, heads * depth))
    q, k, v = qkv(build, "x", heads, depth)
    k = build.node("Transpose", k, perm=[0, 1, 3, 2])
    y = build.node("MatMul", build.node("Mul", q, np.float32(depth**-0.5)), k)
    y = build.node("Add", y, numbers((1, heads, rows, rows)))
    if mask:  # of windows, in turn: the batch is of two of them
        y = build.node("Reshape", y, np.array([-1, 2, heads, rows, rows]))
        y = build.node("Add", y, numbers((1, 2, 1, rows, rows)))
        y = build.node("Reshape", y, np.array([-1, heads, rows, rows]))
    y = build.node("MatMul", build.node("Softmax", y), v)
    y = build.node("Reshape", build.node("Transpose", y, perm=list(HEADS)), np.array([0, 0, heads * depth]))
    return build.model(build.node("MatMul", y, numbers((heads * depth, 7))))


@pytest.mark.parametrize("mask", (False, True))
@pytest.mark.parametrize("heads, depth, rows", [(3, 5, 7), (2, 32, 19)])
def test_attention_of_a_model(heads, depth, rows, mask, tmp_path):
    model = attention_model(heads, depth, rows, mask=mask)
    for batch in (2, 6):
        check_model(model, numbers((batch, rows, heads * depth)))
    net = from_onnx(model)
    kinds = [type(step) for step in net.graph.steps]
    assert kinds.count(Attention) == 1
    assert not {Foreign, Rearrangement} & {*kinds}  # all of its operands are read where they lie
    for batch in (2, 4, 10):  # planned by what came before
        x = numbers((batch, rows, heads * depth))
        y, right = net(x), reference(model, {"x": x})[0]
        assert np.abs(y - right).max() <= CLOSE * np.abs(right).max()
    net.save(tmp_path / "net.cal")
    assert np.array_equal(Network.load(tmp_path / "net.cal")(x), y)


@pytest.mark.parametrize("scores", ["b h i d, b h j d -> b h i j", "bhdi,bhjd->bhij", "bhid,bhdj->bhij"])
def test_products_that_are_named_by_letters(scores):
    build = Builder((2, 5, 6))
    q, k, v = qkv(build, "x", 2, 3)
    first, second = scores.partition("->")[0].replace(" ", "").split(",")
    q = q if first == "bhid" else build.node("Transpose", q, perm=[0, 1, 3, 2])
    k = k if second == "bhjd" else build.node("Transpose", k, perm=[0, 1, 3, 2])
    shares = build.node("Softmax", build.node("Einsum", q, k, equation=scores))
    y = build.node("Einsum", shares, v, equation="bhij,bhjd->bhid")
    trace = build.node("Einsum", y, y, equation="bhid,bhid->bhi")  # is none
    model = build.model(build.node("Relu", y), trace)
    check_model(model, numbers((2, 5, 6)))
    steps = from_onnx(model).graph.steps
    assert sum(isinstance(step, Attention) for step in steps) == 1
    assert [step.region.operators for step in steps if isinstance(step, Foreign)] == [["Einsum"]]


def test_windows_of_maps():
    """Divided into windows, channels last, and put together again."""
    build = Builder(("n", 6, 8, 15))
    windows = build.node("Reshape", build.conv(c=6, k=6), np.int64([0, 6, 2, 4, 3, 5]))
    windows = build.node("Transpose", windows, perm=[0, 2, 4, 3, 5, 1])
    rows = build.node(
        "Relu", build.node("MatMul", build.node("Reshape", windows, np.int64([-1, 20, 6])), numbers((6, 6)))
    )
    windows = build.node("Reshape", rows, np.int64([-1, 2, 3, 4, 5, 6]))
    back = build.node(
        "Reshape", build.node("Transpose", windows, perm=[0, 5, 1, 3, 2, 4]), np.int64([0, 6, 8, 15])
    )
    model = build.model(build.conv(back, c=6, k=7))
    for batch in (1, 3):
        check_model(model, numbers((batch, 6, 8, 15)))
    steps = from_onnx(model).graph.steps
    assert not any(isinstance(step, Foreign) for step in steps)
    assert sum(isinstance(step, Rearrangement) for step in steps) == 2


def test_what_is_no_attention_stays():
    """Scores that others read, a softmax of another dimension, and a bias that scores are broadcast over."""
    for form in ("read", "axis", "bias"):
        build = Builder((1, 5, 6))
        q, k, v = qkv(build, "x", 2, 3)
        scores = build.node("MatMul", q, build.node("Transpose", k, perm=[0, 1, 3, 2]))
        if form == "bias":
            scores = build.node("Add", scores, numbers((3, 1, 1, 5)))
        shares = build.node("Softmax", scores, axis=2 if form == "axis" else -1)
        model = build.model(build.node("MatMul", shares, v), *([scores] if form == "read" else []))
        check_model(model, numbers((1, 5, 6)))
        assert not any(isinstance(step, Attention) for step in from_onnx(model).graph.steps)


def test_windows_that_are_shifted():
    """Rolled, divided into windows, and back; then every other pixel side by side, as when they merge."""
    build = Builder(("n", 6, 8, 20))
    y = build.node("Relu", "x")
    for axis, by in ((1, 2), (2, 3)):
        end, begin = (build.node("Slice", y, np.array([a]), np.array([b]), np.array([axis]))
                      for a, b in ((by, 1 << 62), (0, by)))  # fmt: skip
        y = build.node("Concat", end, begin, axis=axis)
    y = build.node("Reshape", y, np.array([-1, 3, 2, 4, 2, 20]))
    y = build.node("Reshape", build.node("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), np.array([-1, 4, 20]))
    y = build.node("Add", build.node("MatMul", y, numbers((20, 20))), numbers(20))
    y = build.node("Reshape", y, np.array([-1, 6, 8, 20]))
    places = [(i, j) for i in (0, 1) for j in (0, 1)]
    parts = [build.node("Slice", y, np.array(at), np.array([1 << 62] * 2), np.array([1, 2]), np.array([2, 2]))
             for at in places]  # fmt: skip
    model = build.model(build.node("MatMul", build.node("Concat", *parts, axis=-1), numbers((80, 9))))
    for batch in (1, 3):
        check_model(model, numbers((batch, 6, 8, 20)))
    assert not any(isinstance(step, Foreign) for step in from_onnx(model).graph.steps)
