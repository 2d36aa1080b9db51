"""Other libraries on the same problem, called as their users would: the yardstick of every claim of speed.

A peer gets its own copy of the data in the layout that it likes, as many threads as we have, and its filter
prepared once where it can do that. No library is imported before a peer is built. On a GPU those of cuDNN are
the best of all plans that it proposes, and torch's pick is that of its own benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from convalgos.core.arrays import like
from convalgos.core.errors import Unsupported, missing
from convalgos.core.near_names import did_you_mean
from convalgos.core.plan import flipped
from convalgos.core.problem import DIRECTIONS, LAYOUTS, ConvProblem
from convalgos.gpu import device as gpu
from convalgos.measure.backends import backend
from convalgos.measure.timing import runner
from convalgos.select import registry

TOO_LONG = 15.0  # seconds
DENSE_RATE, THIN_RATE = 1e11, 2e10  # flop/s that peers reach at least, seen on 2 cores with AVX-512
GPU_RATE = 20  # times these rates on a GPU
THIN = 4  # channels or filters per group, below which a problem runs at the thin rate

Call = Callable[[], Any]  # returns y or a gradient, channels first, as the peer's kind of array
Build = Callable[[ConvProblem, np.ndarray, np.ndarray, int], Call]
Backward = Callable[[ConvProblem, np.ndarray, np.ndarray, np.ndarray, int], Call]


@dataclass(frozen=True)
class Peer:
    """One way to call one library.

    `build(problem, x, w, threads)` gives the call to time, from logical x (N, C, *spatial), and w
    (K, C/groups, *kernel) with any flip done; for gradients from what `problem.arrays` says.
    `backward(problem, x, w, dy, threads)` gives that of both gradients, (dx, dw), of a forward problem.
    """

    name: str  # "package", or "package.variant"
    build: Build
    refuses: Callable[[ConvProblem], str | None] = lambda problem: None
    needs: tuple[str, ...] = ()  # modules beside the package
    direct: bool = True  # its time grows as the flops do
    backward: Backward | None = None  # of those that compute gradients

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def missing(self) -> str | None:
        """What must be installed first, or None."""
        return next(filter(None, map(missing, (self.package, *self.needs))), None)

    def why_not(self, problem: ConvProblem) -> str | None:
        """Why the peer is not run on a problem, in one sentence, or None."""
        if problem.direction != "forward" and self.backward is None:
            return f"compared on forward problems only, not on {problem.direction}"
        if problem.direction == "backward_weights" and problem.mode == "convolution":
            return "has no gradient of a flipped filter"
        if problem.is_empty:
            return "there is nothing to compute"
        rate = THIN_RATE if min(problem.w_shape[1], problem.gemm_n) < THIN else DENSE_RATE
        rate *= GPU_RATE if self in GPU_PEERS else 1
        if self.direct and problem.flops > TOO_LONG * rate:
            return f"not timed: a direct convolution would take about {problem.flops / rate:.0f} s"
        return self.refuses(problem)

    def why_not_trained(self, problem: ConvProblem) -> str | None:
        """Why the peer has no training step of a forward problem, in one sentence, or None."""
        reasons = (self.why_not(problem.replace(direction=direction)) for direction in DIRECTIONS)
        return next(filter(None, reasons), None)

    def call(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> Call:
        """The call to time, from x in the problem's layout and w."""
        first, second, _ = problem.arrays
        x, w = _theirs(problem, {first: x, second: w})
        return self.build(problem, x, w, threads)

    def call_backward(
        self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, dy: np.ndarray, threads: int
    ) -> Call:
        """The call of both gradients, (dx, dw), of a forward problem; arrays in its layout.

        Raises:
            Unsupported: it computes no gradients.
        """
        if self.backward is None:
            raise Unsupported(f"{self.name} computes no gradients")
        x, w, dy = _theirs(problem, {"x": x, "w": w, "dy": dy})
        return self.backward(problem, x, w, dy, threads)


def _theirs(problem: ConvProblem, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Arrays by their names as peers take them: channels first, and the filter not to be flipped."""
    found = []
    for name, array in arrays.items():
        if name != "w" and problem.layout == "channels_last":
            array = np.ascontiguousarray(np.moveaxis(array, -1, 1))
        elif name == "w" and problem.mode == "convolution":
            array = np.ascontiguousarray(flipped(array))
        found.append(array)
    return found


def choose(words: str | None, device: str = "cpu") -> tuple[Peer, ...]:
    """The peers of a comma-separated list of names or packages; all that are installed for None.

    Args:
        device: "cpu", "cuda" or "cuda:N": only the peers that run there.

    Raises:
        ValueError: there is no such peer. Unsupported: it is not installed.
    """
    there = PEERS if device == "cpu" else GPU_PEERS
    if words is None:
        return tuple(peer for peer in there if not peer.missing())
    if words.strip() == "none":
        return ()
    chosen: dict[str, Peer] = {}
    for word in map(str.strip, words.split(",")):
        named = [peer for peer in there if word in (peer.name, peer.package)]
        if not named:
            known = list(dict.fromkeys(w for peer in there for w in (peer.package, peer.name)))
            raise ValueError(
                f"peers={word!r} must be none, or some of {', '.join(known)}{did_you_mean(word, known)}"
            )
        for peer in named:
            if reason := peer.missing():
                raise Unsupported(f"peer {word} {reason}")
            chosen[peer.name] = peer
    return tuple(chosen.values())


# --- torch -----------------------------------------------------------------------------------


def _torch(
    problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int, *, channels_last: bool, device: str = ""
) -> Call:
    import torch
    from torch.nn import functional

    x_tensor, w_tensor = _tensors(problem, (x, w), threads, channels_last, device)
    if problem.direction != "forward":
        return _torch_gradient(problem, x_tensor, w_tensor)
    conv = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[problem.ndim]
    padding: Any = tuple(low for low, _ in problem.padding)
    first: list[int] = []  # torch pads both sides alike; anything else its user has to pad before
    if any(low != high for low, high in problem.padding):
        padding, first = 0, [size for pair in reversed(problem.padding) for size in pair]

    @torch.inference_mode()
    def call():
        padded = functional.pad(x_tensor, first) if first else x_tensor
        return conv(padded, w_tensor, None, problem.stride, padding, problem.dilation, problem.groups)

    return call


def _torch_backward(
    problem: ConvProblem,
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    threads: int,
    *,
    channels_last: bool,
    device: str = "",
) -> Call:
    """Both gradients in one call, as autograd asks for them."""
    x_tensor, w_tensor, dy_tensor = _tensors(problem, (x, w, dy), threads, channels_last, device)
    return _aten_backward(problem, dy_tensor, x_tensor, w_tensor, (True, True))


def _tensors(
    problem: ConvProblem, arrays: Sequence[np.ndarray], threads: int, channels_last: bool, device: str
) -> list[Any]:
    """Arrays as torch takes them, with its threads and its cuDNN set as the problem asks for."""
    import torch

    found = [like(array, torch.empty(0)) for array in arrays]
    if device:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = problem.compute_dtype == "tf32"
        found = [t.to(device) for t in found]
    else:
        torch.set_num_threads(threads)
    if channels_last:
        memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[problem.ndim]
        found = [t.to(memory_format=memory_format) for t in found]
    return found


def _torch_gradient(problem: ConvProblem, first: Any, second: Any) -> Call:
    """What autograd calls for one of the gradients, of tensors in the order of `problem.arrays`."""
    import torch

    p, of_filter = problem, problem.direction == "backward_weights"
    # The array that is not there gives the shape of the gradient.
    dy, x, w = (second, first, None) if of_filter else (first, None, second)
    x = dy.new_empty(1).expand(p.x_shape) if x is None else x
    w = dy.new_empty(1).expand(p.w_shape) if w is None else w
    if first.is_contiguous(memory_format=torch.contiguous_format):
        x, w = x.contiguous(), w.contiguous()
    else:
        kept = torch.channels_last if p.ndim == 2 else torch.channels_last_3d
        x, w = x.contiguous(memory_format=kept), w.contiguous(memory_format=kept)
    backward = _aten_backward(p, dy, x, w, (not of_filter, of_filter))
    return lambda: backward()[int(of_filter)]


def _aten_backward(problem: ConvProblem, dy: Any, x: Any, w: Any, wanted: tuple[bool, bool]) -> Call:
    """(dx, dw) of those that are wanted."""
    import torch

    p = problem
    low = [low for low, _ in p.padding]

    @torch.inference_mode()
    def call():
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, p.stride, low, p.dilation, False, [0] * p.ndim, p.groups, [*wanted, False]
        )[:2]

    return call


def _no_uneven_gradients(problem: ConvProblem) -> str | None:
    uneven = problem.direction != "forward" and any(low != high for low, high in problem.padding)
    return "torch pads both sides alike in its gradients" if uneven else None


def _only_planes(problem: ConvProblem) -> str | None:
    if problem.ndim == 1:
        return "torch has channels_last in 2-D and 3-D only"
    return _no_uneven_gradients(problem)


# --- ONNX Runtime ----------------------------------------------------------------------------


def _onnxruntime(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> Call:
    """A model of one node; the filter is an initializer, so that it is packed once; y is allocated once."""
    import onnxruntime
    from onnx import helper, numpy_helper

    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=problem.stride,
        dilations=problem.dilation,
        pads=[low for low, _ in problem.padding] + [high for _, high in problem.padding],
        group=problem.groups,
    )
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", dtype, x.shape)],
        [helper.make_tensor_value_info("y", dtype, problem.y_shape)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors are raised already
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    y = np.empty(problem.y_shape, x.dtype)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)

    def call(x=x):  # binding knows only the address of x: keep the array
        session.run_with_iobinding(binding)
        return y

    return call


# --- SciPy -----------------------------------------------------------------------------------


def _scipy(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> Call:
    """`oaconvolve` of single planes; it has no argument for threads."""
    from scipy.signal import oaconvolve

    plane, kernel = x[0, 0], np.flip(w[0, 0])
    if all(pair == (0, 0) for pair in problem.padding):
        return lambda: oaconvolve(plane, kernel, "valid")[None, None]
    inside = tuple(
        slice(r - 1 - low, r - 1 - low + size)
        for r, (low, _), size in zip(problem.kernel, problem.padding, problem.spatial_out, strict=True)
    )
    return lambda: oaconvolve(plane, kernel, "full")[inside][None, None]


def _only_single_planes(problem: ConvProblem) -> str | None:
    if (problem.N, problem.C, problem.K) != (1, 1, 1):
        return "scipy.signal.oaconvolve is compared on single planes only (N = C = K = 1)"
    if any(v != 1 for v in (*problem.stride, *problem.dilation)):
        return "scipy.signal.oaconvolve has no stride and no dilation"
    if any(max(pair) >= r for pair, r in zip(problem.padding, problem.kernel, strict=True)):
        return "scipy.signal.oaconvolve pads by less than the kernel only"
    return None


# --- on a GPU --------------------------------------------------------------------------------


def _on_gpu(function: Callable[..., Call], channels_last: bool) -> Callable[..., Call]:
    """With torch's own search for the best of cuDNN, and TF32 only where the problem asks for it."""

    def build(*arguments: Any) -> Call:
        return function(*arguments, channels_last=channels_last, device=gpu.current().name)

    return build


def _cudnn(layout: str) -> Build:
    """The fastest of all its plans in one sample of each, the result allocated once."""

    def build(problem: ConvProblem, x: np.ndarray, w: np.ndarray, threads: int) -> Call:
        here = backend(gpu.current().name)
        problem = problem.replace(layout=layout, mode="cross_correlation")
        last = layout == "channels_last"
        first, second = (
            here.put(np.ascontiguousarray(np.moveaxis(a, 1, -1)) if last and name != "w" else a)
            for a, name in zip((x, w), problem.arrays[:2], strict=True)
        )
        y = here.empty(problem.array_shapes[2], x.dtype)
        calls = {}
        usual = registry.find_algorithm("gpu.cudnn")
        for algorithm in (usual, *usual.variants(problem)):
            with suppress(Unsupported):  # a plan that is known to be wrong, or takes too much workspace
                call = runner(algorithm.serve(problem), first, second, y)
                here.ready(call)
                calls[here.seconds(call)] = call
        best, logical = calls[min(calls)], problem.logical(2, y)

        def run() -> Any:
            best()
            return logical

        return run

    return build


def _cudnn_backward(layout: str) -> Backward:
    """One gradient after the other."""
    build = _cudnn(layout)

    def both(problem: ConvProblem, x: np.ndarray, w: np.ndarray, dy: np.ndarray, threads: int) -> Call:
        data = build(problem.replace(direction="backward_data"), dy, w, threads)
        weights = build(problem.replace(direction="backward_weights"), x, dy, threads)
        return lambda: (data(), weights())

    return both


def _cudnn_refuses(layout: str) -> Callable[[ConvProblem], str | None]:
    return lambda problem: registry.find_algorithm("gpu.cudnn").why_not(problem.replace(layout=layout))


_REFUSES = {"channels_first": _no_uneven_gradients, "channels_last": _only_planes}  # of torch, by layout

PEERS = (
    *(
        Peer(
            f"torch.{layout}",
            partial(_torch, channels_last=layout == "channels_last"),
            refuses,
            backward=partial(_torch_backward, channels_last=layout == "channels_last"),
        )
        for layout, refuses in _REFUSES.items()
    ),
    Peer("onnxruntime", _onnxruntime, needs=("onnx",)),
    Peer("scipy", _scipy, _only_single_planes, direct=False),
)
GPU_PEERS = (
    *(
        Peer(f"cudnn.{layout}", _cudnn(layout), _cudnn_refuses(layout), backward=_cudnn_backward(layout))
        for layout in LAYOUTS
    ),
    *(
        Peer(
            f"torch.{layout}",
            _on_gpu(_torch, layout == "channels_last"),
            refuses,
            backward=_on_gpu(_torch_backward, layout == "channels_last"),
        )
        for layout, refuses in _REFUSES.items()
    ),
)
