"""Whole networks on one image: how long a run takes, beside ONNX Runtime too, and what a new size costs."""

import io
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import convalgos as ca

from .library import module

NETWORKS = {  # shape of the input of each
    "resnet18": (1, 3, 224, 224),
    "mobilenet_v2": (1, 3, 224, 224),
    "light squeezenet": (1, 3, 224, 224),
    "rapidocr detection": (1, 3, 640, 640),
    "rapidocr recognition": (1, 3, 48, 320),
}
FILES = {  # of models that wheels bring: the module, and where it has them
    "light squeezenet": ("onnx", "backend/test/data/light/light_squeezenet.onnx"),
    "rapidocr detection": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "rapidocr recognition": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
}
WIDER = 32  # steps of the width of an input that has any


def model_of(name):
    """The ONNX model of a network, as bytes; torchvision's have random weights.

    Raises:
        NotImplementedError: what has it is not installed.
    """
    home, path = FILES.get(name, ("torchvision", None))
    if (found := find_spec(home)) is None:
        raise NotImplementedError(f"{home} is not installed")
    if path is not None:
        return (Path(found.origin).parent / path).read_bytes()
    import torch
    import torchvision

    made, model = io.BytesIO(), torchvision.models.get_model(name, weights=None).eval()
    torch.onnx.export(model, (torch.zeros(NETWORKS[name]),), made, dynamo=False, opset_version=17)
    return made.getvalue()


class Networks:
    params = (list(NETWORKS),)
    param_names = ("network",)

    def setup(self, name):
        if not hasattr(ca, "network"):
            raise NotImplementedError("this version runs no networks")
        self.model = model_of(name)
        self.x = np.random.default_rng(0).random(NETWORKS[name], np.float32)
        self.net = ca.network.from_onnx(self.model)
        self.call = lambda: self.net(self.x)
        self.call()

    def time_run(self, name):
        self.call()

    def track_time_vs_onnxruntime(self, name):
        """Our time / that of ONNX Runtime, in turns in one process; below 1 ours is faster."""
        timing = module("convalgos.select.measure.timing")
        found = timing.interleave({"network": self.call, "onnxruntime": self.theirs()})
        return found["network"].median / found["onnxruntime"].median

    track_time_vs_onnxruntime.unit = "times onnxruntime"

    def track_new_width(self, name):
        """Median of what the first run of a new width takes over a later one, in seconds.

        Raises:
            NotImplementedError: its sizes are fixed.
        """
        if not name.startswith("rapidocr"):
            raise NotImplementedError("its sizes are fixed")
        over = []
        for step in range(1, 9):
            x = np.zeros((*self.x.shape[:3], self.x.shape[3] + WIDER * step), np.float32)
            first, *later = (self._seconds(x) for _ in range(4))
            over.append(first - min(later))
        return float(np.median(over))

    track_new_width.unit = "seconds"

    def theirs(self):
        """The same by ONNX Runtime, whose threads do not spin while ours run.

        Raises:
            NotImplementedError: it is not installed.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise NotImplementedError("onnxruntime is not installed") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = ca.select.current_machine().threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])
        feeds = {session.get_inputs()[0].name: self.x}
        return lambda: session.run(None, feeds)[0]

    def _seconds(self, x):
        begin = time.perf_counter()
        self.net(x)
        return time.perf_counter() - begin
