"""The part of cuDNN's front end that is used, without cuDNN: graphs that record, and compute in float64.

Calls, keywords and errors are those of nvidia-cudnn-frontend 1.13 to 1.32, whose sources were read for them:
the list of plans keeps those that are barred, building one of these raises, a note bars whole engines, a
workspace over the limit raises with that word in it, `execute` takes a dict of uids. `Front(raw=True)` is a
front end with the call on bare pointers, which wants them in the order of their uids. test_gpu_cudnn_front.py
holds what is described here to the real one.
"""

import ctypes
import threading
from dataclasses import dataclass
from enum import Enum
from types import ModuleType

import ml_dtypes
import numpy as np

from convalgos.core.epilogue import finish
from convalgos.core.problem import ConvProblem
from convalgos.cpu.reference import reference, reference_backward_data, reference_backward_weights
from convalgos.gpu.vendor.plans import KNOWN

data_type = Enum("data_type", "FLOAT HALF BFLOAT16 FP8_E4M3 FP8_E5M2 INT8 INT32")
heur_mode = Enum("heur_mode", "A B FALLBACK")
numerical_note = Enum(
    "numerical_note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD "
    "WINOGRAD_TILE_4x4 WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 STRICT_NAN_PROP",
)
DTYPES = {
    data_type.FLOAT: np.float32,
    data_type.HALF: np.float16,
    data_type.BFLOAT16: ml_dtypes.bfloat16,
    data_type.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    data_type.FP8_E5M2: ml_dtypes.float8_e5m2,
    data_type.INT8: np.int8,
    data_type.INT32: np.int32,
}


@dataclass
class Engine:
    """A plan of the stand-in. `fused`: its name in graphs with bias, or None where there is none."""

    name: str
    notes: tuple[str, ...] = ()
    workspace: int = 0
    mode: str = "A"
    fused: str | None = None
    fails: bool = False  # when it is built
    wrong: bool = False  # computes something else, and says nothing
    drops_nan: bool = False  # in its ReLU


# What cuDNN 9.19 offers for a 3x3 layer on an H200, cut short and with an FFT and a Winograd engine.
PLANS = (
    Engine("eng67_k2=7_k13=0", ("TENSOR_CORE",), 4096, fused="eng51_k2=7_k13=0"),
    Engine("eng41_k12=-1", ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")),
    Engine("eng3", ("FFT",), 1 << 29),
    Engine("eng6", ("WINOGRAD_TILE_4x4",), 8192),
    Engine("eng70_k2=2_k18=0", (), 2048, "B", fused="eng44_k2=2_k18=0"),
    Engine("eng20_k2=6", ("NONDETERMINISTIC",), 0, "B"),
    Engine("eng1", (), 0, "FALLBACK", fused="eng11"),
    Engine("eng0", ("STRICT_NAN_PROP",), 0, "FALLBACK", fused="eng0"),
)


class cudnnGraphNotSupportedError(RuntimeError):
    pass


class Tensor:
    """Collects what is set of an array; `steps` are those of the graph that lead to it."""

    def __init__(self, steps=(), **given):
        self.steps, self.set = steps, given

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda value: self.set.__setitem__(name[4:], value)

    @property
    def span(self):
        """Elements from the first to the last, as the strides have it."""
        return 1 + sum((n - 1) * s for n, s in zip(self.set["dim"], self.set["stride"], strict=True))


class Handle:
    """Only one thread may be within a call with it."""

    def __init__(self):
        self.stream, self.calls, self.busy = 0, 0, threading.Lock()


class Front(ModuleType):
    """The module `cudnn`. `usual`: the plans of the problem whose engines are known."""

    def __init__(self, plans=PLANS, raw=False, version=91900, usual=PLANS):
        super().__init__("cudnn")
        self.plans, self.raw, self.version, self.usual = list(plans), raw, version, list(usual)
        self.refuses, self.graphs, self.handles = None, [], []
        self.ran = []  # streams
        self.captured = lambda: False  # whether the stream of the caller is
        self.data_type, self.heur_mode, self.numerical_note = data_type, heur_mode, numerical_note
        self.cudnnGraphNotSupportedError = cudnnGraphNotSupportedError

    def backend_version(self):
        return self.version

    def create_handle(self):
        assert not self.captured(), "cudnnCreate allocates, which breaks a capture"
        self.handles.append(Handle())
        return self.handles[-1]

    def set_stream(self, handle, stream):
        handle.stream = stream

    def pygraph(self, *, io_data_type, intermediate_data_type, compute_data_type, handle):
        assert isinstance(handle, Handle)
        wide = data_type.INT32 if io_data_type is data_type.INT8 else data_type.FLOAT
        assert intermediate_data_type is compute_data_type is wide
        self.graphs.append(Graph(self, io_data_type))
        return self.graphs[-1]


class Graph:
    def __init__(self, front, kind):
        self.front, self.kind, self.arrays, self.stage = front, kind, [], "made"
        self.plans, self.barred, self.limit, self.built = [], set(), None, None
        if front.raw:
            self._execute_with_raw_ptrs = self._raw

    # --- what is computed ----------------------------------------------------------------------

    def tensor(self, dim, stride, data_type, name):
        assert len(dim) == len(stride) >= 4 and all(type(n) is int for n in (*dim, *stride))
        self.arrays.append(Tensor(dim=dim, stride=stride, data_type=data_type, name=name))
        return self.arrays[-1]

    def _convolution(self, method, inputs, pre_padding, post_padding, stride, dilation):
        self.method, self.inputs = method, inputs
        self.pads = tuple(zip(pre_padding, post_padding, strict=True))
        self.strides, self.dilations = tuple(stride), tuple(dilation)
        return self._result(method)

    def _result(self, *steps):
        self.output = Tensor(steps)
        return self.output

    def conv_fprop(self, image, weight, **parameters):
        return self._convolution("conv_fprop", (image, weight), **parameters)

    def conv_dgrad(self, loss, filter, **parameters):
        return self._convolution("conv_dgrad", (loss, filter), **parameters)

    def conv_wgrad(self, image, loss, **parameters):
        return self._convolution("conv_wgrad", (image, loss), **parameters)

    def add(self, a, b):
        assert a.set["data_type"] is data_type.FLOAT, "sums stay wide until they are stored"
        return self._result(*a.steps, "add")

    def relu(self, input):
        assert input.set["data_type"] is data_type.FLOAT
        return self._result(*input.steps, "relu")

    # --- plans -----------------------------------------------------------------------------------

    @property
    def usual(self):
        return self.arrays[0].set["dim"] == [*KNOWN[0].x_shape]

    def validate(self):
        assert self.output.set["output"] is True
        uids = [t.set["uid"] for t in (*self.arrays, self.output)]
        assert len(set(uids)) == len(uids)
        self.stage = "validated"

    def build_operation_graph(self):
        assert self.stage == "validated"
        if self.front.refuses:
            raise cudnnGraphNotSupportedError(self.front.refuses)
        self.stage = "operations"

    def create_execution_plans(self, modes):
        assert self.stage == "operations"
        with_bias = "add" in self.output.steps
        assert "relu" not in self.output.steps or with_bias, "cuDNN has no engine for ReLU alone"
        for mode in modes:
            for e in self.front.usual if self.usual else self.front.plans:
                name = e.fused if with_bias else e.name
                if name is not None and (e.mode == mode.name or mode is heur_mode.FALLBACK is not e.mode):
                    self.plans.append((name, e))
        self.stage = "planned"

    def deselect_numeric_notes(self, notes):
        assert self.stage == "planned", "filters set earlier are lost"
        names = {note.name for note in notes}
        self.barred |= {i for i, (_, e) in enumerate(self.plans) if names & set(e.notes)}

    def deselect_workspace_greater_than(self, limit):
        self.limit = limit

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_plan_name_at_index(self, index):
        return self.plans[index][0]

    def build_plan_at_index(self, index):
        name, engine = self.plans[index]
        if index in self.barred:
            raise RuntimeError("[cudnn_frontend] Error: Deselecting execution plan")
        if self.limit is not None and engine.workspace > self.limit:
            raise RuntimeError(f"Error: Skipping plan since workspace violation. Requires {engine.workspace}")
        if engine.fails:
            raise cudnnGraphNotSupportedError(f"{name} is not for this device")
        self.built = engine

    def get_workspace_size(self):
        assert self.built is not None
        return self.built.workspace

    # --- running ---------------------------------------------------------------------------------

    def execute(self, tensor_to_device_buffer, workspace, handle):
        self._run(tensor_to_device_buffer, workspace, handle)

    def _prepare_variant_pack_template(self):
        assert self.built is not None

    def _get_variant_pack_uids_sorted(self):
        return sorted(t.set["uid"] for t in (*self.arrays, self.output))

    def _raw(self, user_ptrs_array, n_user, workspace, handle, plan_index=-1):
        assert plan_index == -1
        pointers = (ctypes.c_void_p * n_user).from_address(user_ptrs_array)
        uids = self._get_variant_pack_uids_sorted()
        self._run(dict(zip(uids, pointers, strict=True)), workspace, handle)

    def _run(self, addresses, workspace, handle):
        assert handle.busy.acquire(blocking=False), "two calls share a handle"
        try:
            handle.calls += 1
            self.front.ran.append(handle.stream)
            assert (workspace != 0) == (self.built.workspace > 0)
            first, second, *added = (self._array(t, addresses) for t in self.arrays)
            result = self._array(self.output, addresses)
            result[...] = self._answer(first, second, result, added[0].reshape(-1) if added else None)
        finally:
            handle.busy.release()

    def _answer(self, first, second, result, bias):
        x, w = {
            "conv_fprop": (first, second),
            "conv_dgrad": (result, second),
            "conv_wgrad": (first, result),
        }[self.method]
        groups = x.shape[1] // w.shape[1]
        problem = ConvProblem(x.shape, w.shape, self.strides, self.pads, self.dilations, groups)
        compute = {
            "conv_fprop": reference,
            "conv_dgrad": reference_backward_data,
            "conv_wgrad": reference_backward_weights,
        }
        found = compute[self.method](problem, first.astype(np.float64), second.astype(np.float64))
        if self.built.wrong:
            found = -found
        if bias is not None:
            finish(found, bias.astype(np.float64), None, problem)
        if "relu" in self.output.steps:
            found = np.fmax(found, 0) if self.built.drops_nan else np.maximum(found, 0)
        return found

    def _array(self, tensor, addresses):
        dtype = np.dtype(DTYPES[tensor.set["data_type"]])
        memory = (ctypes.c_char * (tensor.span * dtype.itemsize)).from_address(addresses[tensor.set["uid"]])
        flat = np.frombuffer(memory, f"u{dtype.itemsize}")  # as some functions know no types of ml_dtypes
        flat.flags.writeable = True
        steps = [dtype.itemsize * s for s in tensor.set["stride"]]
        return np.lib.stride_tricks.as_strided(flat, tensor.set["dim"], steps).view(dtype)
