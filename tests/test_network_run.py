"""`convalgos run`: libraries give the same outputs, and what is told of them and of the steps is there."""

import json

import numpy as np
import pytest
from command_line import run

onnx = pytest.importorskip("onnx", reason="onnx is not installed (CI installs it)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (CI installs it)")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from convalgos.core.errors import missing  # noqa: E402
from convalgos.network.onnx_reader.graph import from_onnx  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tmp_path):
    """A layer, a pool, a gate, a sum and a product, of any batch and size."""
    rng = np.random.default_rng(0)
    w = {
        "w": rng.standard_normal((8, 3, 3, 3), np.float32),
        "gate": rng.standard_normal((8, 8, 1, 1), np.float32),
        "last": rng.standard_normal((5, 8), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "gate"], ["e"]),
        helper.make_node("Sigmoid", ["e"], ["f"]),
        helper.make_node("Mul", ["c", "f"], ["g"]),
        helper.make_node("Add", ["g", "c"], ["h"]),
        helper.make_node("GlobalAveragePool", ["h"], ["i"]),
        helper.make_node("Flatten", ["i"], ["j"]),
        helper.make_node("Gemm", ["j", "last"], ["y"], transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [value("y", TensorProto.FLOAT, ["n", 5])], [numpy_helper.from_array(v, k) for k, v in w.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    return path


def test_a_network_is_run_beside_its_peer(model, tmp_path):
    table, page = tmp_path / "run.json", tmp_path / "run.html"
    given = ("--batch", 2, "--size", "20,24", "--peers", "onnxruntime", "--rounds", 1)
    shown = run("run", model, *given, "--json", table, "--html", page).stdout
    assert "2x3x20x24" in shown and "arena" in shown and "% of" in shown
    found = json.loads(table.read_text())
    ours, theirs = found["times"]
    assert (ours["name"], theirs["name"]) == ("convalgos", "onnxruntime")
    assert 0 <= theirs["error"] < 1e-5 and theirs["median_s"] > 0 and ours["load_s"] > 0
    assert 1e5 < theirs["memory_bytes"] < 1e9 and 1e5 < ours["memory_bytes"] < 1e9
    steps = found["network"]["steps"]
    assert [s["name"] for s in steps if s["what"] == "pooling"][:1] == ["pool"]
    assert all(step["measured_s"] >= 0 for step in steps) and found["filter_bytes"] >= 4 * (8 * 27 + 64 + 40)
    text = page.read_text()
    assert "where time goes" in text.lower() or "Where the time goes" in text
    assert "first" in text and "onnxruntime takes" in text


def test_torch_runs_the_steps_that_are_read(model):
    torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")
    from convalgos.tools.bench.torch_steps import TorchSteps

    network, x = from_onnx(model), torch.randn(2, 3, 12, 10)
    (y,) = TorchSteps(network.graph)(x)
    torch.testing.assert_close(network(x), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--peers", "tensorflow"), "peers='tensorflow' must be none, or some of onnxruntime"),
        (("--size", "20"), "--size has 1 numbers; input 'x' has 2 of pixels"),
        (("--size", "a,b"), "--size 'a,b' must be numbers"),
        (("--random", "--image", "a.png"), "name --image or --random, not both"),
        (("--threads", "63"), "--threads 63: this process runs on 1"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_line(model, given, told, monkeypatch):
    monkeypatch.setenv("CONVALGOS_NUM_THREADS", "1")
    assert told in run("run", model, *given, status=2).output


def test_pictures_are_scaled_and_normalised(model, tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason=missing("PIL") or "")
    from convalgos.tools.bench import network_inputs

    path = tmp_path / "grey.png"
    pillow.new("RGB", (7, 5), (124, 116, 104)).save(path)  # the mean of ImageNet
    (x,) = network_inputs.image_input(path, {"x": (2, 3, 8, 6)}).values()
    assert x.shape == (2, 3, 8, 6) and np.abs(x).max() < 0.02
    with pytest.raises(ValueError, match="not one picture"):
        network_inputs.image_input(path, {"x": (2, 1, 8, 6)})
    (x,) = network_inputs.image_input(path, {"x": (2, 8, 6, 3)}).values()
    assert x.shape == (2, 8, 6, 3) and np.abs(x).max() < 0.02


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        (("n", "h", "w", 3), (2, 20, 30, 3)),  # as TensorFlow has pictures
        (("n", 3, "h", "w"), (2, 3, 20, 30)),
        (("n", "c", "h", "w"), (2, 1, 20, 30)),
        (("n", 8, 9, 3), (2, 8, 9, 3)),
    ],
)
def test_open_sizes_are_those_of_pixels(declared, shape):
    from convalgos.network.graph import NetworkGraph
    from convalgos.tools.bench import network_inputs

    graph = NetworkGraph(("x",), ("x",), (), {"x": declared})
    assert network_inputs.input_shapes(graph, 2, (20, 30)) == {"x": shape}


def test_networks_in_stages_run_and_tell_what_is_not_in_the_table(tmp_path):
    w = numpy_helper.from_array(np.ones((4, 3, 3, 3), "f4"), "w")
    m = numpy_helper.from_array(np.ones((4, 8), "f4"), "m")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "first"),
        helper.make_node("NonZero", ["c"], ["i"], "places"),
        helper.make_node("Cast", ["i"], ["f"], "floats", to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["t"], "rows", perm=[1, 0]),
        helper.make_node("MatMul", ["t", "m"], ["y"], "last"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [w, m])
    path, told = tmp_path / "places.onnx", tmp_path / "run.json"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    output = run("run", path, "--rounds", "1", "--peers", "onnxruntime", "--json", told).output
    found = json.loads(told.read_text())
    (opening,) = found["opens"]
    assert f"not in the table, as they tell sizes of later steps: {opening}" in " ".join(output.split())
    steps = {step["name"]: step for step in found["network"]["steps"]}
    assert opening not in steps and steps["first"]["measured_s"] > 0 and steps["last"]["measured_s"] > 0
    assert [times["name"] for times in found["times"]] == ["convalgos", "onnxruntime"]
    assert found["times"][1]["error"] < 1e-6
