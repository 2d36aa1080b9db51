"""Cases of ONNX's own suite that sessions run as ONNX Runtime does: sizes, strings, lists and small types."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from importlib import import_module  # noqa: E402

from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.case import node  # noqa: E402

from convalgos.network import load  # noqa: E402
from convalgos.onnx import Session  # noqa: E402

CASES = {  # of modules of the suite, whose names begin with "test_"
    # numbers that inputs hold tell sizes
    "affinegrid": "affine_grid_2d affine_grid_3d_align_corners",
    "center_crop_pad": "center_crop_pad_crop center_crop_pad_crop_and_pad center_crop_pad_crop_axes_hwc",
    "col2im": "col2im col2im_5d col2im_pads",
    "cumprod": "cumprod_1d_int32_exclusive",
    "maxunpool": "maxunpool_export_with_output_shape",
    "reducel1": "reduce_l1_keep_dims_random reduce_l1_negative_axes_keep_dims_example",
    "reduce_log_sum": "reduce_log_sum_desc_axes",
    "reducesum": "reduce_sum_empty_set_non_reduced_axis_zero",
    "split": "split_variable_parts_2d_opset13 split_variable_parts_1d_opset18 split_zero_size_splits_opset18",
    "squeeze": "squeeze squeeze_negative_axes",
    "unsqueeze": "unsqueeze_axis_2 unsqueeze_three_axes unsqueeze_unsorted_axes",
    "stft": "stft stft_with_window",
    "dft": "dft dft_axis",
    "hannwindow": "hannwindow",
    # operators that ask for fixed sizes
    "resize": "resize_downsample_sizes_cubic_antialias resize_downsample_sizes_nearest_not_larger "
    "resize_tf_crop_and_resize resize_tf_crop_and_resize_axes_3_2",
    "causal_conv_with_state": "causal_conv_with_state_basic causal_conv_with_state_fp16 "
    "causal_conv_with_state_silu_with_past_state",
    # strings, lists, and what may be absent
    "equal": "equal_string",
    "string_concat": "string_concat_broadcasting",
    "string_split": "string_split_maxsplit string_split_empty_tensor",
    "ai_onnx_ml.label_encoder": "ai_onnx_ml_label_encoder_string_int",
    "identity": "identity_sequence identity_opt",
    "if_": "if_seq if_opt",
    "loop": "loop13_seq loop16_seq_none",
    "sequence_map": "sequence_map_add_2_sequences sequence_map_extract_shapes_expanded",
    "splittosequence": "split_to_sequence_nokeepdims",
    # types that NumPy has from others
    "cast": "cast_FLOAT_to_FLOAT8E4M3FN cast_no_saturate_FLOAT16_to_FLOAT8E5M2 cast_FLOAT8E5M2_to_FLOAT",
    "castlike": "castlike_FLOAT_to_FLOAT8E5M2_expanded castlike_FLOAT_to_BFLOAT16_expanded",
    "spacetodepth": "spacetodepth_crd_mode_example spacetodepth_example",
    "qlinearconv": "qlinearconv",
}


def value(x):
    """A value of a case: an array, a list of them, or None."""
    if isinstance(x, onnx.SequenceProto):
        return numpy_helper.to_list(x)
    if isinstance(x, onnx.OptionalProto):
        return numpy_helper.to_optional(x)
    array = numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x
    return np.asarray(array) if isinstance(array, np.generic) else array


@pytest.fixture(scope="module", params=CASES)
def cases(request):
    """Those of a module: it lists them when it is imported."""
    try:
        with np.errstate(all="ignore"):
            import_module(f"onnx.backend.test.case.node.{request.param}")
    except ModuleNotFoundError:
        pytest.skip("this release of ONNX has no such cases")
    wanted = [f"test_{name}" for name in CASES[request.param].split()]
    return [case for case in node._NodeTestCases if case.name in wanted]


def assert_same(y, right):
    if isinstance(right, list):
        assert isinstance(y, list) and len(y) == len(right)
        for part, answer in zip(y, right, strict=True):
            assert_same(part, answer)
    elif right is None or np.asarray(right).dtype.kind == "O":
        assert np.array_equal(y, right)
    else:
        right = np.asarray(right)
        assert (y.shape, y.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(y.astype("f8"), right.astype("f8"), rtol=1e-3, atol=1e-5)


def expected(case):
    """(inputs, outputs of ONNX Runtime, or those of the case where it has no arrays of their types)."""
    theirs = ort.InferenceSession(case.model.SerializeToString())
    for inputs, outputs in case.data_sets:
        names = (v.name for v in case.model.graph.input)
        feed = {name: value(x) for name, x in zip(names, inputs, strict=False)}
        if any("8e" in v.type or "bfloat" in v.type for v in (*theirs.get_inputs(), *theirs.get_outputs())):
            yield feed, [*map(value, outputs)]
        else:
            yield feed, theirs.run(None, feed)


def test_cases_of_onnx(cases):
    for case in cases:
        session = Session(case.model.SerializeToString())
        for feed, outputs in expected(case):
            for _ in range(2):  # what a first call finds out serves the next one
                for y, right in zip(session.run(None, feed), outputs, strict=True):
                    assert_same(y, right)


def test_sizes_that_only_a_run_tells_of_an_operator_of_others(tmp_path):
    """Planning takes a run on ones for what it cannot infer: another axis is met later."""
    nodes = [
        onnx.helper.make_node("ExpandDims", ["x", "axis"], ["e"], domain="com.microsoft"),
        onnx.helper.make_node("Relu", ["e"], ["y"]),
    ]
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3]),
        onnx.helper.make_tensor_value_info("axis", onnx.TensorProto.INT32, []),
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    opset = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    session = Session(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8))
    x = np.arange(-3, 3, dtype="f4").reshape(2, 3)
    for axis in (1, 0, 2, 1):
        (y,) = session.run(None, {"x": x, "axis": np.int32(axis)})
        np.testing.assert_array_equal(y, np.expand_dims(np.maximum(x, 0), axis))
    session.network.save(tmp_path / "opened.cal")
    y = load(tmp_path / "opened.cal")(x, np.int32(0))
    np.testing.assert_array_equal(y, np.maximum(x, 0)[None])
    with pytest.raises(ValueError, match="ExpandDims"):
        session.run(None, {"x": x, "axis": np.int32(7)})
    begun = Session(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)).network
    before = begun.plan(((2, 3), ()))
    begun(x, np.int32(1))
    begun.keep(before)  # as a call of another thread that began before this one
    begun.save(tmp_path / "begun.cal")
    np.testing.assert_array_equal(load(tmp_path / "begun.cal")(x, np.int32(1)), np.maximum(x, 0)[:, None])
