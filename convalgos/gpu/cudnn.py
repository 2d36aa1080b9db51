"""cuDNN, through NVIDIA's front end: the first plan of its heuristics that the asked precision admits.

A graph of one convolution is built from dims and strides alone, channels first or last; cuDNN proposes plans,
of which those are barred that round more than was asked for, or take more workspace than WORKSPACE_BYTES.
float32 is strict: neither tensor cores nor inputs of fewer bits. Wins channels last on tensor cores, where
its engines are the fastest there are.

Source: nvidia-cudnn-frontend (pygraph); cuDNN's numerical notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from convalgos.algorithm import finish
from convalgos.gpu.device import Device, current
from convalgos.gpu.plan import GpuAlgorithm, GpuPlan
from convalgos.problem import ConvProblem

WORKSPACE_BYTES = 1 << 28  # FFT engines ask for gigabytes
X, W, Y = 101, 102, 103  # names of the arrays in a graph
STRICT, TENSOR_FIRST, TENSOR_LAST = 0.7, 0.3, 0.6  # of a peak that dense layers reach, by layout; H200
GROUPED = 0.05  # of the peak that grouped layers reach

# --- shapes ----------------------------------------------------------------------------------


def graph_dims(shape: tuple[int, ...], last: bool) -> tuple[list[int], list[int]]:
    """(dims, strides) as cuDNN takes them: always N, C, spatial, with at least two spatial dimensions."""
    dims = [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else list(shape)
    order = [0, *range(2, len(dims)), 1] if last else list(range(len(dims)))  # from slow to fast
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis]
    return dims, strides


def graph_parameters(problem: ConvProblem) -> dict[str, list[int]]:
    """Padding, stride and dilation of at least two dimensions."""
    flat = problem.ndim == 1
    pads = [(0, 0)] * flat + list(problem.padding)
    return {
        "pre_padding": [low for low, _ in pads],
        "post_padding": [high for _, high in pads],
        "stride": [1] * flat + list(problem.stride),
        "dilation": [1] * flat + list(problem.dilation),
    }


# --- graphs ------------------------------------------------------------------------------------


@lru_cache(64)
def handle(device: str, stream: int) -> Any:
    """One of cuDNN's handles for each stream: setting it is paid once."""
    import cudnn

    made = cudnn.create_handle()
    cudnn.set_stream(made, stream)
    return made


@lru_cache(256)
def graph(problem: ConvProblem, device: Device) -> Any:
    """A graph with a plan that is ready to run; any exception of cuDNN where it has none."""
    import cudnn

    last = problem.layout == "channels_last"
    kinds = cudnn.data_type
    kind = {"float32": kinds.FLOAT, "float16": kinds.HALF, "bfloat16": kinds.BFLOAT16}[problem.dtype]
    with device.active():
        stream = device.xp.cuda.get_current_stream().ptr
        made = cudnn.pygraph(
            io_data_type=kind,
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=handle(device.name, stream),
        )
        inputs = []
        for name, uid, shape in (("x", X, problem.x_shape), ("w", W, problem.w_shape)):
            dims, strides = graph_dims(shape, last)
            inputs.append(made.tensor(dim=dims, stride=strides, data_type=kind, uid=uid, name=name))
        y = made.conv_fprop(*inputs, **graph_parameters(problem))
        dims, strides = graph_dims(problem.y_shape, last)
        y.set_uid(Y).set_output(True).set_dim(dims).set_stride(strides).set_data_type(kind)
        made.validate()
        made.build_operation_graph()
        made.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if problem.dtype == "float32" and problem.compute_dtype == "float32":
            notes = cudnn.numerical_note
            made.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        made.deselect_workspace_greater_than(WORKSPACE_BYTES)
        made.check_support()
        made.build_plans()
    return made


# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Cudnn(GpuAlgorithm):
    family: ClassVar[str] = "gpu.cudnn"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    needs: ClassVar[tuple[str, ...]] = ("cudnn",)
    computes: ClassVar[dict[str, tuple[str, ...]]] = {
        "float32": ("float32", "tf32"),
        "float16": ("float32",),
        "bfloat16": ("float32",),
    }
    deterministic: ClassVar[bool] = False  # some engines add in any order
    spreads_nan: ClassVar[bool] = True  # some transform

    def builds(self):
        return ()  # the kernels are cuDNN's

    def why_not(self, problem):
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        try:
            graph(problem, current())
        except Exception as error:  # cuDNN's own kinds, and those of a library that does not load
            return f"cuDNN has no plan for it ({str(error).strip().splitlines()[0][:120]})"
        return None

    def cost(self, problem, machine):
        half = problem.itemsize == 2
        if problem.compute_dtype == "float32" and not half:
            rate = machine.peak("float32") * STRICT
        else:
            share = TENSOR_LAST if problem.layout == "channels_last" else TENSOR_FIRST
            rate = machine.tensor_peak("float16" if half else "tf32") * share
        if problem.groups > 1:
            rate = machine.peak("float32") * GROUPED
        return max(problem.flops / rate, machine.stream(problem.bytes)) + 2 * machine.launch

    def workspace_bytes(self, problem):
        return 0 if problem.is_empty else int(graph(problem, current()).get_workspace_size())

    def error_bound(self, problem):
        # Sums of gemm_k products; engines may use Winograd in float32, or tensor cores that cut sums off.
        sums = 2**-23 * (16 * max(1, problem.gemm_k) ** 0.5 + 16)
        tf32 = 4 * 2**-11 * (problem.compute_dtype == "tf32")
        return sums + tf32 + (problem.itemsize == 2) * problem.eps

    def plan(self, problem):
        return CudnnPlan(problem, self)


# --- the plan ----------------------------------------------------------------------------------


class CudnnPlan(GpuPlan):
    def __init__(self, problem: ConvProblem, algorithm: Cudnn):
        super().__init__(problem, algorithm, algorithm.workspace_bytes(problem))
        self._graph = graph(problem, self.device)

    def prepare_filter(self, w):
        """(K, C/groups, *kernel), or channels last (K, *kernel, C/groups)."""
        xp = self.device.xp
        return xp.array(xp.moveaxis(w, 1, -1) if self.problem.layout == "channels_last" else w, order="C")

    def run(self, x, w, bias, activation, y, workspace):
        address = self.device.address
        stream = self.device.xp.cuda.get_current_stream().ptr
        self._graph.execute(
            (address(x), address(w), address(y)),
            0 if workspace is None else address(workspace),
            handle=handle(self.device.name, stream),
            tensor_uids=[X, W, Y],
        )
        finish(y, bias, activation, self.problem)


ALGORITHMS = (Cudnn(),)
