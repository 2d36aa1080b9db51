"""Networks that nothing was tuned on: models of timm, with random weights, beside ONNX Runtime.

`python benchmarks/timm_models.py [NAME ...]` prints a row for each, and the geometric mean; by default those
of timm_models.txt. It needs timm and onnx, and some seconds for each model.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import timm
import torch
from turns import medians

from convalgos.onnx import Session

SECONDS, TURN, THREADS = 1.5, 0.2, 2
WARM = 8  # calls before it: a session also measures in its first ones
NAMES = Path(__file__).with_suffix(".txt")


def export(name: str, path: str) -> np.ndarray:
    """Write a model for any number of images; returns one image."""
    torch.manual_seed(0)
    model = timm.create_model(name, exportable=True).eval()
    for module in model.modules():  # heads that begin as zeros would hide what is wrong before them
        if isinstance(module, torch.nn.Linear) and not module.weight.any():
            torch.nn.init.normal_(module.weight, std=0.02)
    x = torch.randn(1, *model.default_cfg["input_size"])
    torch.onnx.export(
        model, (x,), path, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes={"x": {0: "n"}}
    )
    return x.numpy()


def main() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    ratios: list[float] = []
    print("| model | ms | x ONNX Runtime | largest error |\n|---|---|---|---|")
    for name in sys.argv[1:] or NAMES.read_text().split():
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "model.onnx"))
            x = export(name, path)
            ours, theirs = Session(path), onnxruntime.InferenceSession(path, options)
            (y,), (expected,) = (session.run(None, {"x": x}) for session in (ours, theirs))
            error = np.abs(y - expected).max() / np.abs(expected).max()
            for _ in range(WARM):
                ours.run(None, {"x": x})
            calls = [partial(session.run, None, {"x": x}) for session in (ours, theirs)]
            own, other = medians(calls, SECONDS, 2, TURN)
        ratios.append(other / own)
        print(f"| {name} | {own * 1e3:.3g} | {other / own:.2f} | {error:.1e} |", flush=True)
    print(f"\n{len(ratios)} models: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
