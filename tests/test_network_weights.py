"""Weights of ONNX models stay in their files, in whatever file they are."""

import gc
import itertools
import os
import threading
import weakref

import numpy as np
import pytest

from convalgos.network import filter_row, mapped_weights
from convalgos.network.filters import filter_of, has_filter
from convalgos.network.graph import Convolution, NetworkGraph
from convalgos.network.mapped_weights import MAPPED, _mapped
from convalgos.network.network import Network
from convalgos.network.onnx_reader.graph import from_onnx, graph_of
from convalgos.network.onnx_reader.loading import folded_model, given_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
RNG = np.random.default_rng(3)
BIG, SMALL = (64, 32, 3, 3), (8, 64, 1, 1)  # of float32: one is mapped


def model(fold=False):
    """Two convolutions and a product of matrices; the name of the model moves the weights by a byte."""
    integers = {"w": BIG, "v": SMALL, "m": (8, 2100)}
    w = {name: RNG.integers(-3, 4, shape).astype("f4") for name, shape in integers.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "half" if fold else "v"], ["b"]),
        helper.make_node("GlobalMaxPool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "m"], ["y"]),
    ]
    if fold:
        nodes.insert(0, helper.make_node("Neg", ["v"], ["half"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2100])],
        [numpy_helper.from_array(v, k) for k, v in w.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(path):
    """The network of a file gives what ONNX Runtime does, on integers; the network."""
    x = RNG.integers(-2, 3, (1, 32, 6, 5)).astype("f4")
    net = from_onnx(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    assert np.abs(net(x) - y).max() <= 1e-5 * np.abs(y).max()
    return net


def filters(net):
    return [step.w for step in net.graph.steps if isinstance(step, Convolution)]


def test_models_leave_memory_once_they_are_read():
    loaded = folded_model(given_model(model(fold=True).SerializeToString()))
    left = weakref.ref(loaded)
    gc.disable()  # nothing waits for it
    try:
        graph = graph_of(loaded)
        del loaded
        assert graph.steps and left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("moved", range(4))  # to addresses that do not suit float32, too
@pytest.mark.parametrize("fold", (False, True))
def test_large_weights_stay_in_the_file_of_the_model(tmp_path, moved, fold):
    made = model(fold)
    made.producer_name = "p" * (moved + 1)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    large, small, *_ = filters(check(path))
    assert large.nbytes >= MAPPED > small.nbytes
    assert _mapped(large) is not None and _mapped(small) is None


@pytest.mark.parametrize("moved", range(4))
def test_large_constants_of_sums_lie_at_any_address(tmp_path, moved):
    w = {"w": (16, 4, 1, 1), "c": (1, 16, 40, 32)}  # a map that is added, as embeddings of places are
    w = {name: RNG.integers(-3, 4, shape).astype("f4") for name, shape in w.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),  # which no sum goes into
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    shapes = {"x": (1, 4, 40, 32), "y": (1, 16, 40, 32)}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(v, k) for k, v in w.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.producer_name = "p" * (moved + 1)
    onnx.save(made, path := tmp_path / "model.onnx")
    x = RNG.standard_normal(shapes["x"]).astype("f4")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    assert w["c"].nbytes >= MAPPED
    assert np.abs(from_onnx(path)(x) - y).max() <= 1e-5 * np.abs(y).max()


def test_so_do_those_beside_it(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    large, small, *_ = filters(check(path))
    assert _mapped(large) is not None and _mapped(small) is None


@pytest.mark.parametrize("room", (True, False))
def test_weights_that_a_norm_changes_lie_in_a_file_if_there_is_room(tmp_path, monkeypatch, room):
    made = model()
    sizes = {"scale": (2, 4), "shift": (-3, 3), "mean": (-2, 2), "var": (1, 2)}
    for name, (low, high) in sizes.items():
        array = RNG.integers(low, high, BIG[0]).astype("f4")
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.node[0].output[0] = "before"
    norm = helper.make_node("BatchNormalization", ["before", *sizes], ["a"], epsilon=0.0)
    made.graph.node.insert(1, norm)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    if not room:
        monkeypatch.setattr(mapped_weights.tempfile, "TemporaryFile", full)
        monkeypatch.setattr(mapped_weights, "_shared", {})  # nor a file that others began
    large, *_ = filters(check(path))
    assert (_mapped(large) is not None) == room


def full(**options):
    raise OSError("no space left")


def test_weights_elsewhere_or_cut_short_are_refused(tmp_path):
    made = model()
    path = tmp_path / "within" / "model.onnx"
    path.parent.mkdir()
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    data = path.parent / "weights.bin"
    content = data.read_bytes()
    data.write_bytes(content[:100])
    with pytest.raises(ValueError, match=r"weights.bin|[Ee]xternal data"):
        from_onnx(path)
    (tmp_path / "weights.bin").write_bytes(content)
    outside = onnx.load(path, load_external_data=False)
    for tensor in outside.graph.initializer:
        tensor.external_data[0].value = "../weights.bin"
    path.write_bytes(outside.SerializeToString())
    with pytest.raises(ValueError, match=r"\.\./weights.bin"):
        from_onnx(path)


def test_a_large_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    content = path.read_bytes()
    for wrong in (content[: len(content) // 2], b"\xff" * MAPPED, content[:40] + b"\xff" * 9 + content[49:]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"no ONNX model|model has no"):
            from_onnx(path)


def test_a_file_that_was_written_again_is_told(tmp_path):
    """A plan that needs another form of a filter reads the file again: it may not mix two models."""
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    net = from_onnx(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="has changed since"):
        net(np.ones((1, 32, 6, 5), "f4"))


def test_a_file_that_is_gone_is_still_read(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    x = RNG.integers(-2, 3, (1, 32, 6, 5)).astype("f4")
    (wanted,), net = (from_onnx(path)(x),), from_onnx(path)
    path.unlink()
    np.testing.assert_array_equal(net(x), wanted)


def test_a_saved_network_leaves_weights_in_its_file_and_runs_in_memory(tmp_path):
    onnx.save(model(), tmp_path / "model.onnx")
    net = from_onnx(tmp_path / "model.onnx")
    x = RNG.integers(-2, 3, (1, 32, 6, 5)).astype("f4")
    wanted = net(x)
    net.save(tmp_path / "saved.net")
    again = Network.load(tmp_path / "saved.net")
    assert [_mapped(w) is not None for w in filters(again)] == [True, False, True]
    with open(tmp_path / "saved.net", "r+b") as file:  # zeros over all that is mapped
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
    np.testing.assert_array_equal(again(x), wanted)
    with pytest.raises(ValueError, match="has changed since"):
        again.plan((1, 32, 60, 50), effort="estimate", precisions=("bfloat16",))


def gaps(plan):
    """Bytes between the prepared filters of a plan."""
    packed = [plan.filters[filter_of(step)].data for step in plan.planned.steps if has_filter(step)]
    return [
        after.address - before.address - before.array.nbytes for before, after in itertools.pairwise(packed)
    ]


def test_prepared_filters_lie_in_the_order_of_their_steps(tmp_path):
    names = "x", "a", "b", "c", "y"
    sizes = (520, 500), (530, 520), (60, 530), (2, 60)  # the last is of less than MAPPED bytes
    w = [RNG.integers(-1, 2, (*size, 1, 1)).astype("f4") for size in sizes]
    steps = [
        Convolution(f"step{i}", (read,), written, w[i])
        for i, (read, written) in enumerate(itertools.pairwise(names))
    ]
    net = Network(NetworkGraph(("x",), ("y",), tuple(steps), {"x": (1, 500, 3, 3)}))
    made = net.plan()
    assert len(gaps(made)) == 3 and all(0 <= gap < 64 for gap in gaps(made))
    x = RNG.integers(-1, 2, (1, 500, 3, 3)).astype("f4")
    wanted = x.reshape(500, 9)
    for weights in w:
        wanted = weights[:, :, 0, 0] @ wanted
    np.testing.assert_array_equal(made.run([x])[0].reshape(2, 9), wanted)
    net.save(tmp_path / "saved.net")
    again = Network.load(tmp_path / "saved.net").plan()
    assert all(0 <= gap < 64 for gap in gaps(again)[:2])
    np.testing.assert_array_equal(again.run([x])[0].reshape(2, 9), wanted)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="open files are not listed")
@pytest.mark.parametrize("norm", (False, True))  # filters are those of the file, or computed
def test_a_hundred_weights_take_few_open_files(tmp_path, norm):
    import resource

    orders = [RNG.permutation(128) for _ in range(100)]
    made = permuting(orders, norm)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    x = RNG.integers(-99, 99, (1, 128, 3, 2)).astype("f4")
    wanted = x
    for order in orders:
        wanted = wanted[:, order]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, hard))
    try:
        net = from_onnx(path)
        net.save(tmp_path / "saved.net")
        again = Network.load(tmp_path / "saved.net")
        for each in (net, again):
            assert len(filters(each)) == 100 and all(_mapped(w) is not None for w in filters(each))
            np.testing.assert_array_equal(each(x), wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() < before + 20


def open_files():
    return len(os.listdir("/dev/fd"))


def permuting(orders, norm):
    """Convolutions that bring channels into other orders, each with a norm that changes their sign."""
    ones, zeros = np.ones(128, "f4"), np.zeros(128, "f4")
    held = {"one": ones, "minus": -ones, "zero": zeros}
    nodes, last = [], "x"
    for i, order in enumerate(orders):
        held[f"w{i}"] = np.eye(128, dtype="f4")[order].reshape(128, 128, 1, 1)
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [last := f"c{i}"]))
        if norm:
            inputs = [last, "minus", "zero", "zero", "one"]
            nodes.append(helper.make_node("BatchNormalization", inputs, [last := f"n{i}"], epsilon=0.0))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128, 3, 2])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 128, 3, 2])],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_letting_go_of_weights_reaches_their_pages_alone(tmp_path):
    content = np.arange(1 << 18, dtype="f4")
    content.tofile(tmp_path / "w")
    a, b = (mapped_weights.mapped_weights(tmp_path / "w", content.dtype, at, (999, 7)) for at in (12, 30000))
    assert a._mmap is b._mmap
    for w in (a, b.T, b[::-1, ::2], b[:0]):
        mapped_weights.let_go(w)
    np.testing.assert_array_equal(a.ravel(), content[3:][: a.size])
    kept = weakref.ref(a._mmap)
    del a, w
    np.testing.assert_array_equal(b.ravel(), content[7500:][: b.size])
    del b
    assert kept() is None
    for at in (-4, content.nbytes - 4):
        with pytest.raises(ValueError, match=str(tmp_path / "w")):
            mapped_weights.mapped_weights(tmp_path / "w", content.dtype, at, (999, 7))
    (tmp_path / "w").unlink()
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "w")):
        mapped_weights.mapped_weights(tmp_path / "w", content.dtype, 0, (999, 7))


@pytest.mark.parametrize("turned", (False, True))
def test_scaled_weights_lie_in_a_file_in_their_order(turned):
    w = RNG.standard_normal((300, 200)).astype("f4")
    w = w.T[:, :, None, None] if turned else w[:, :, None, None]
    scale = RNG.standard_normal((len(w), 1, 1, 1)).astype("f4")
    made = mapped_weights.scaled_weights(w, scale)
    assert _mapped(made) is not None and made.strides[:2] == w.strides[:2]
    np.testing.assert_array_equal(made, w * scale)
    assert mapped_weights.scaled_weights(w, np.ones_like(scale)) is w


def test_filters_wait_for_their_places_in_a_row():
    row = filter_row.FilterRow(110)
    found = {}

    def ask(number, nbytes):
        found[number] = row.place(number, nbytes)

    threads = [threading.Thread(target=ask, args=(i, 40 * (i != 2))) for i in (3, 1, 0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    begins = [found[i].ctypes.data for i in range(4)]
    assert begins[1] - begins[0] == 64  # a cache line; the third asks for nothing, the fourth for new memory
    assert all(found[i].nbytes == 40 * (i != 2) for i in range(4))
    offer = row.offer(4, 1 << 20)
    assert offer.of(100) is None and not offer.asked  # another array
    assert offer.of(1 << 20).nbytes == 1 << 20 and offer.of(1 << 20) is None
    assert row.offer(5, 0).of(1 << 20) is None  # of which nothing is told
