"""Names that the measuring and the telling of the study share."""

from __future__ import annotations

STAGES = ("input", "copy to device", "forward", "loss", "backward", "update")
OURS, BY_GEMM, CUDNN, TORCH = "convalgos", "im2col+GEMM", "cuDNN", "torch"
ALGORITHMS = {  # device -> library -> the algorithm that calls it; "auto" is the pick
    "cpu": {OURS: "auto", BY_GEMM: "cpu.im2col.mkl"},
    "gpu": {OURS: "auto", BY_GEMM: "gpu.im2col", CUDNN: "gpu.cudnn"},
}

StageSeconds = tuple[float, ...]  # in the order of STAGES
