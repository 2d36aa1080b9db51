"""Whole models give the outputs of torch and of ONNX Runtime, for other batches and sizes too."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it)")

import networks  # noqa: E402

import convalgos.torch as ct  # noqa: E402
from convalgos.network.graph import Foreign  # noqa: E402
from convalgos.network.onnx_reader.graph import from_onnx  # noqa: E402
from convalgos.network.torch_reader.graph import from_torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ERROR = 2e-5  # relative to the largest output: of a hundred layers, in another order of sums

TRAINED_ERROR = 1e-3  # of probabilities, relative to the largest


def error_of(y, expected):
    y, expected = (np.asarray(v, np.float64) for v in (y, expected))
    assert y.shape == expected.shape
    return np.abs(y - expected).max() / np.abs(expected).max()


def checked(model, *shapes):
    """The steps of a model, whose outputs are those of torch for each shape."""
    network = None
    for shape in shapes:
        x = torch.randn(shape)
        network = from_torch(model, x)
        with torch.inference_mode():
            assert error_of(network(x), model(x)) < ERROR
    return [type(step).__name__ for step in network.graph.steps]


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("resnet", 0),
        ("mobilenet_v3_small", 0),
        ("convnext", 0),
        ("densenet", 0),
    ],
)
def test_models_of_torchvision(name, foreign):
    if why := networks.why_no_torchvision():
        pytest.skip(why)
    steps = checked(networks.torchvision_model(name), (3 if name == "resnet" else 1, 3, 64, 64))
    assert steps.count("Foreign") == foreign


@pytest.mark.parametrize("model", [networks.UNet(8, 2), networks.RRDB(16, 8, 1)], ids=["unet", "rrdb"])
def test_maps_to_maps(model):
    torch.manual_seed(0)
    model = networks.with_own_norms(model)
    assert "Foreign" not in checked(model, (1, 3, 40, 24))
    frozen = ct.freeze(model, torch.randn(1, 3, 32, 32))
    for shape in ((3, 3, 32, 32), (1, 3, 48, 16)):
        x = torch.randn(shape)
        assert error_of(frozen(x), model(x).detach()) < ERROR


@pytest.mark.parametrize(
    ("part", "shapes"),
    [
        ("det", [(1, 3, 64, 96)]),
        ("cls", [(3, 3, 48, 192)]),
        ("rec", [(1, 3, 48, 64), (3, 3, 48, 104)]),
    ],
)
def test_trained_models_of_rapidocr(part, shapes):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (CI installs it)")
    path = networks.rapidocr_model(part)
    if path is None:
        pytest.skip("rapidocr-onnxruntime is not installed (CI installs it, for its models)")
    network = from_onnx(path)
    assert not any(isinstance(step, Foreign) for step in network.graph.steps)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shape in shapes:
        x = np.ones(shape, np.float32)  # a page with strokes on it
        x[..., shape[2] // 4 : shape[2] // 2, 8:-8:5] = -1
        (expected,) = session.run(None, {network.graph.inputs[0]: x})
        assert expected.max() > 0.01  # else all is rounding
        assert error_of(network(x), expected) < TRAINED_ERROR
