"""The graphs of gpu.cudnn as NVIDIA's own front end sees them, and the stand-in held to the real calls.

The front end checks and completes a graph without cuDNN and without a device, as long as something tells it
the version of cuDNN: here a library of one function. All that follows (heuristics, plans) needs cuDNN itself.
"""

import ctypes
import inspect
import json
import shutil
import subprocess
from itertools import product
from pathlib import Path

import fake_cudnn
import pytest

from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.gpu.vendor.graph import (
    BIAS,
    FIRST,
    OUTPUT,
    PLAIN,
    SECOND,
    Epilogue,
    describe,
    operands,
    uids,
    with_explicit_padding,
)
from convalgos.gpu.vendor.plans import BARRING
from convalgos.tools.bench.suites import suites

SOURCE = "#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91900; }\n"
SUITE = sorted({str(layer.problem) for layers in suites().values() for layer in layers})
AWKWARD = ("n1 c4 h10 w7 k12 r3 s3 p1:2,0:3 stride2,3 groups4", "n2 c3 w20 k5 s4 p3:0 dilation2")
LAYOUTS = ("channels_first", "channels_last")


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """The real module, with a cuDNN that only knows its version where there is none."""
    try:
        import cudnn
    except (ImportError, OSError) as error:  # before 1.24 it does not import without cuDNN
        pytest.skip(f"nvidia-cudnn-frontend is not there: {error}")
    if shutil.which("gcc") is None:
        pytest.skip("the library of one function needs gcc, which is not installed")
    library = tmp_path_factory.mktemp("cudnn") / "libversion.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    if "libcudnn" not in Path("/proc/self/maps").read_text():
        cudnn._pybind_module._set_dlhandle_cudnn(ctypes.CDLL(str(library))._handle)
    return cudnn


def described(front, problem, epilogue=PLAIN):
    """What the front end makes of a graph; planning alone would look at the handle."""
    handle = front.Handle(1, 0, 0) if hasattr(front, "Handle") else 1
    found = json.loads(repr(describe(front, problem, epilogue, handle=handle)))
    tensors = found["tensors"]
    tensors = tensors.values() if isinstance(tensors, dict) else tensors
    return found["nodes"], {t["name"] if t["is_virtual"] else t["uid"]: t for t in tensors}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_layer_in_every_type_and_layout_is_a_valid_graph(front, direction):
    kinds = ({}, {"compute_dtype": "tf32"}, {"dtype": "float16"}, {"dtype": "bfloat16"})
    if direction == "forward":
        kinds = (*kinds, {"dtype": "int8"}, {"dtype": "float8_e5m2", "y_dtype": "bfloat16"})
    for text, layout, kind in product((*SUITE, *AWKWARD), LAYOUTS, kinds):
        problem = ConvProblem.parse(text).replace(layout=layout, direction=direction, **kind)
        problem = with_explicit_padding(problem)
        (node,), arrays = described(front, problem)
        tag = {"forward": "CONV_FPROP", "backward_data": "CONV_DGRAD", "backward_weights": "CONV_WGRAD"}
        assert node["tag"] == tag[direction] and node["math_mode"] == "CROSS_CORRELATION"
        pads = [(0, 0)] * (problem.ndim == 1) + list(problem.padding)
        assert [*zip(node["pre_padding"], node["post_padding"], strict=True)] == pads, text
        if problem.sums_integers:
            assert [arrays[uid]["data_type"] for uid in (FIRST, SECOND, OUTPUT)] == ["INT8", "INT8", "INT32"]
        if problem.dtype == "float8_e5m2":
            kinds_of = [arrays[uid]["data_type"] for uid in (FIRST, SECOND, OUTPUT)]
            assert kinds_of == ["FP8_E5M2", "FP8_E5M2", "BFLOAT16"]
        for uid, (_, shape) in zip((FIRST, SECOND, OUTPUT), operands(problem), strict=True):
            found = arrays[uid]
            assert [n for n in found["dim"] if n != 1] == [n for n in shape if n != 1], text
            channels = found["stride"][1]
            assert shape[1] == 1 or (channels == 1) == (layout == "channels_last" or set(shape[2:]) == {1})


@pytest.mark.parametrize("relu", [False, True])
def test_the_front_end_infers_the_same_output(front, relu):
    """Of the sums before the bias it is told nothing but padding, stride and dilation."""
    for text, layout in product((*SUITE, *AWKWARD), LAYOUTS):
        problem = ConvProblem.parse(text).replace(layout=layout)
        nodes, arrays = described(front, problem, Epilogue(bias=True, relu=relu))
        assert [n["tag"] for n in nodes] == ["CONV_FPROP"] + ["POINTWISE"] * (1 + relu)
        (sums,) = (a for a in arrays.values() if a["is_virtual"] and a["name"].endswith("::Y"))
        assert sums["data_type"] == "FLOAT" and sums["dim"] == arrays[OUTPUT]["dim"], text
        assert [n for n in sums["dim"] if n != 1] == [n for n in problem.y_shape if n != 1]
        assert arrays[BIAS]["dim"] == [1, problem.K, *[1] * (len(sums["dim"]) - 2)]
        assert sorted(u for u, a in arrays.items() if not a["is_virtual"]) == uids(Epilogue(bias=True))


def test_asymmetric_padding_of_backward_weights_is_made_explicit():
    problem = ConvProblem.parse(AWKWARD[0]).replace(direction="backward_weights")
    found = with_explicit_padding(problem)
    assert found.x_shape == (1, 4, 13, 10) and set(found.padding) == {(0, 0)}
    assert found.y_shape == problem.y_shape and found.w_shape == problem.w_shape
    even = ConvProblem.parse("n1 c4 h10 w7 k12 r3 s3 p1").replace(direction="backward_weights")
    assert with_explicit_padding(even) is even
    forward = problem.replace(direction="forward")
    assert with_explicit_padding(forward) is forward


def test_the_stand_in_has_what_the_front_end_has(front):
    lowered = getattr(front._pybind_module, "backend_graph", front.pygraph)
    for name, member in vars(fake_cudnn.Graph).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            assert hasattr(front.pygraph, name), name
    for name in ("_execute_with_raw_ptrs", "_prepare_variant_pack_template", "_get_variant_pack_uids_sorted"):
        assert hasattr(lowered, name), name
    assert "user_ptrs_array: int, n_user: int, workspace: int, handle: int" in (
        lowered._execute_with_raw_ptrs.__doc__
    )
    words = Path(front._pybind_module.__file__).read_bytes()
    assert all(word.encode() in words for word in BARRING), "by which notes are read"
    accepted = inspect.signature(front.pygraph.execute).parameters
    assert {"workspace", "handle"} <= set(accepted)
    assert set(fake_cudnn.numerical_note.__members__) == set(front.numerical_note.__members__) - {"NOT_SET"}
    assert {m.name for m in fake_cudnn.heur_mode} <= set(front.heur_mode.__members__)
    assert {m.name for m in fake_cudnn.data_type} <= set(front.data_type.__members__)
    for name in ("backend_version", "create_handle", "set_stream", "cudnnGraphNotSupportedError"):
        assert hasattr(front, name), name
