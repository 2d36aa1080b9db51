"""ONNX's own cases and whole networks, on auto and on every algorithm that serves them."""

import math
from functools import cache, reduce
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from helpers import cpu_algorithms, may_serve
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import convalgos as ca
from convalgos.cpu.reference import Reference
from convalgos.onnx.operators import ops
from convalgos.select import find_algorithm
from convalgos.tools.bench.onnx_model import read_model

DATA = Path(onnx.backend.test.__file__).parent / "data"
CONVOLUTIONS = ("Conv", "ConvTranspose")
ONE_OF_EACH_FAMILY = ["auto", *{a.family: a.id for a in reversed(cpu_algorithms())}.values()]


def tensor(path: Path) -> np.ndarray:
    return numpy_helper.to_array(onnx.load_tensor(path))


def assert_outputs(outputs, expected):
    """As ONNX's own runner compares them, with an absolute tolerance against the largest element."""
    assert len(outputs) == len(expected)
    for y, answer in zip(outputs, expected, strict=True):
        assert (y.shape, y.dtype) == (answer.shape, answer.dtype)
        np.testing.assert_allclose(y, answer, rtol=1e-3, atol=1e-5 * np.abs(answer).max(initial=0))


def feeds(model, inputs) -> dict[str, np.ndarray]:
    weights = {weight.name for weight in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    return dict(zip(names, inputs, strict=True))


class Chooser:
    """Forces an algorithm where it serves, auto elsewhere, and counts both."""

    def __init__(self, algorithm: str):
        self.algorithm = algorithm
        self.problems = self.forced = 0

    def __call__(self, problem: ca.ConvProblem) -> str:
        self.problems += 1
        if self.algorithm == "auto" or find_algorithm(self.algorithm).why_not(problem):
            return "auto"
        self.forced += 1
        return self.algorithm


# --- single cases ----------------------------------------------------------------------------


@cache
def folder_cases(kind: str) -> list:
    """(name, model, inputs, outputs) of the cases that the wheel keeps as files."""
    cases = []
    for folder in sorted((DATA / kind).iterdir()):
        if not (folder / "model.onnx").exists():
            continue
        model = onnx.load(folder / "model.onnx")
        if any(node.op_type in CONVOLUTIONS for node in model.graph.node):
            data = folder / "test_data_set_0"
            sets = [
                [tensor(data / f"{what}_{i}.pb") for i in range(len(list(data.glob(f"{what}_*.pb"))))]
                for what in ("input", "output")
            ]
            cases.append((folder.name, model, *sets))
    return cases


@cache
def node_cases() -> list:
    """The same of the cases that the wheel keeps as code."""
    for operator in ("conv", "convtranspose"):  # a module lists its cases when it is imported
        import_module(f"onnx.backend.test.case.node.{operator}")
    cases = [case for case in node._NodeTestCases if case.model.graph.node[0].op_type in CONVOLUTIONS]
    return [(case.name, case.model, *sets) for case in cases for sets in case.data_sets]


def run_cases(cases, choice):
    """How many cases gave their outputs, and on how many nodes the choice was in force."""
    chooser, done, failures = Chooser(choice), 0, []
    for name, model, inputs, expected in cases:
        evaluator = ReferenceEvaluator(model, new_ops=ops(chooser))
        try:
            assert_outputs(evaluator.run(None, feeds(model, inputs)), expected)
            done += 1
        except (AssertionError, RuntimeError) as failure:
            failures.append(f"{name}: {failure}")
    assert not failures, "\n".join(failures)
    return done, chooser


@pytest.mark.parametrize("choice", ONE_OF_EACH_FAMILY)
def test_cases_converted_from_pytorch(choice):
    done, chooser = run_cases(folder_cases("pytorch-converted"), choice)
    assert done == 28
    assert chooser.problems == 28
    done, _ = run_cases(folder_cases("pytorch-operator"), choice)
    assert done == 2


@pytest.mark.parametrize("choice", ONE_OF_EACH_FAMILY)
def test_node_cases(choice):
    names = {name for name, *_ in node_cases()}
    assert {"test_basic_conv_with_padding", "test_conv_with_autopad_same", "test_convtranspose_3d"} <= names
    done, _ = run_cases(node_cases(), choice)
    assert done == len(node_cases()) >= 17


def conv_model(**attributes):
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    names = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xwy"]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "one", names[:2], names[2:]))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2])
def test_automatic_padding(auto_pad, stride):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((1, 2, 6, 7), (3, 2, 4, 3)))
    model = conv_model(auto_pad=auto_pad, strides=[stride, stride])
    expected = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    assert_outputs(ReferenceEvaluator(model, new_ops=ops()).run(None, {"x": x, "w": w}), expected)


def test_a_forced_algorithm_is_never_replaced(monkeypatch):
    monkeypatch.setattr(Reference, "why_not", lambda self, problem: "is not in the mood")
    inputs = {"x": np.ones((1, 2, 8, 11), "f4"), "w": np.ones((3, 2, 3, 3), "f4")}
    with pytest.raises(ca.Unsupported, match=r"cpu\.reference cannot serve .* is not in the mood"):
        ReferenceEvaluator(conv_model(), new_ops=ops("cpu.reference")).run(None, inputs)


# --- whole networks --------------------------------------------------------------------------

LIGHT = DATA / "light"


class MaxPool(OpRun):
    """The evaluator's own takes longer than all convolutions of the network."""

    op_domain = ""

    def _run(self, x, kernel_shape=None, pads=None, strides=None, **defaults):
        low_high = [(0, 0), (0, 0), *zip(pads[:2], pads[2:], strict=True)] if pads else [(0, 0)] * 4
        padded = np.pad(x, low_high, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel_shape, (2, 3))
        windows = windows[:, :, :: strides[0], :: strides[1]]  # (N, C, P, Q, R, S)
        taps = [windows[..., r, s] for r in range(kernel_shape[0]) for s in range(kernel_shape[1])]
        return (reduce(np.maximum, taps),)


@cache
def constant(shape: tuple[int, ...], value: float) -> np.ndarray:
    return np.full(shape, value, np.float32)


@cache
def random(shape: tuple[int, ...], value: float) -> np.ndarray:
    """Random filters; what normalises them keeps its constant value."""
    if len(shape) == 1:
        return constant(shape, value)
    fan_in = math.prod(shape[1:])
    return np.random.default_rng(fan_in).standard_normal(shape, np.float32) * np.float32((2 / fan_in) ** 0.5)


def filler(fill) -> type[OpRun]:
    """ConstantOfShape, in which the light models carry a value in place of weights, kept between runs."""

    def run(self, shape, value=None):
        return (fill(tuple(map(int, shape)), float(np.ravel(value)[0])),)

    return type("ConstantOfShape", (OpRun,), {"op_domain": "", "_run": run})


@cache
def light_model(name: str):
    return onnx.load(LIGHT / f"{name}.onnx")


@pytest.mark.parametrize("choice", ["auto", "cpu.direct"])
@pytest.mark.parametrize(("name", "convs"), [("light_resnet50", 53), ("light_vgg19", 16)])
def test_networks_give_their_expected_outputs(name, convs, choice):
    """Their outputs are all the same number, so that the algorithms are told apart by the test after this."""
    model, chooser = light_model(name), Chooser(choice)
    shape = (1, 3, 224, 224)
    x = (np.arange(math.prod(shape)).reshape(shape) / math.prod(shape)).astype("f4")  # as ONNX's runner does
    evaluator = ReferenceEvaluator(model, new_ops=[*ops(chooser), MaxPool, filler(constant)])
    outputs = evaluator.run(None, feeds(model, [x]))
    assert (chooser.problems, chooser.forced) == (convs, convs if choice == "cpu.direct" else 0)
    assert_outputs(outputs, [tensor(LIGHT / f"{name}_output_0.pb")])


@cache
def first_stages():
    """ResNet-50 up to the end of its second stage: 7 sums, 23 convolutions of every kind it has."""
    model = onnx.ModelProto()
    model.CopyFrom(light_model("light_resnet50"))
    nodes = list(model.graph.node)
    sums = [i for i, n in enumerate(nodes) if n.op_type == "Sum"]
    del model.graph.node[sums[7] :]
    last = nodes[sums[6] + 1]
    assert last.op_type == "Relu"
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(last.output[0], 1, None))
    return model


def run_first_stages(choice):
    x = np.random.default_rng(0).standard_normal((2, 3, 72, 80), np.float32)
    evaluator = ReferenceEvaluator(first_stages(), new_ops=[*ops(Chooser(choice)), MaxPool, filler(random)])
    return evaluator.run(None, feeds(first_stages(), [x]))[0]


expected_stages = cache(lambda: run_first_stages("cpu.reference"))


def choices_of_resnet50():
    """Those that serve a node of it: the run of any other would be that of auto."""
    problems = [layer.problem for layer in read_model(LIGHT / "light_resnet50.onnx")[0]]
    families = (c for c in ONE_OF_EACH_FAMILY if c not in ("auto", "cpu.reference"))
    return ["auto", *(c for c in families if may_serve(find_algorithm(c), *problems))]


@pytest.mark.parametrize("choice", choices_of_resnet50())
def test_a_network_of_random_weights_agrees_with_the_reference(choice):
    """The light models' outputs are all the same number; here every weight tells."""
    expected = expected_stages()
    assert expected.shape == (2, 512, 9, 10)
    assert expected.std() > 0.01 * expected.max() > 0
    assert np.abs(run_first_stages(choice) - expected).max() < 1e-4 * expected.max()
