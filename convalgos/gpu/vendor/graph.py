"""The graph of one convolution as cuDNN's front end takes it: arrays by dims and strides, then what is done.

Dims are always N, C, spatial with at least two spatial dimensions; the memory order is in the strides alone.
The filter lies as the data do: (K, C/groups, *kernel), or channels last (K, *kernel, C/groups). Groups follow
from the dims. All three directions are described here; their arrays are

    forward           x, w  -> y       backward_data  dy, w -> dx       backward_weights  x, dy -> dw

Only calls that the front end has had since 1.13 are used, in their portable form.

Source: nvidia-cudnn-frontend (pygraph).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from convalgos.core.problem import ConvProblem

FIRST, SECOND, OUTPUT, BIAS = 101, 102, 103, 104  # names of the arrays, in the order of their pointers
CALLS = {  # direction -> method of the graph, and what it calls the two arrays
    "forward": ("conv_fprop", "image", "weight"),
    "backward_data": ("conv_dgrad", "loss", "filter"),
    "backward_weights": ("conv_wgrad", "image", "loss"),
}
KINDS = {  # dtype -> cuDNN's name
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float8_e4m3fn": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2",
    "int8": "INT8",
    "int32": "INT32",
}


class Epilogue(NamedTuple):
    """What the graph does with the sums before it stores them."""

    bias: bool = False
    relu: bool = False


PLAIN = Epilogue()

# --- shapes ----------------------------------------------------------------------------------


def operands(problem: ConvProblem) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name, logical shape) of the two inputs and the output of a direction."""
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    return tuple((name, shapes[name[-1]]) for name in problem.arrays)


def dims_strides(shape: tuple[int, ...], last: bool) -> tuple[list[int], list[int]]:
    """(dims, strides) of a dense array of a logical shape; `last`: its channels are the fastest dimension."""
    dims = [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else list(shape)
    order = [0, *range(2, len(dims)), 1] if last else list(range(len(dims)))  # from slow to fast
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis]
    return dims, strides


def parameters(problem: ConvProblem) -> dict[str, list[int]]:
    """Padding, stride and dilation of at least two dimensions."""
    flat = problem.ndim == 1
    pads = [(0, 0)] * flat + list(problem.padding)
    return {
        "pre_padding": [low for low, _ in pads],
        "post_padding": [high for _, high in pads],
        "stride": [1] * flat + list(problem.stride),
        "dilation": [1] * flat + list(problem.dilation),
    }


def with_explicit_padding(problem: ConvProblem) -> ConvProblem:
    """The problem to describe: itself, or the one on a padded copy of x.

    backward_weights with padding that differs from side to side is computed silently wrong by one of cuDNN's
    engines (float32, cuDNN 9.19: an error of 1.4), so that its caller pads x with zeros and asks for this.
    """
    if problem.direction != "backward_weights" or all(low == high for low, high in problem.padding):
        return problem
    grown = (n + low + high for n, (low, high) in zip(problem.spatial, problem.padding, strict=True))
    return problem.replace(x_shape=(*problem.x_shape[:2], *grown), padding=0)


# --- graphs ------------------------------------------------------------------------------------


def describe(front: Any, problem: ConvProblem, epilogue: Epilogue = PLAIN, **where: Any) -> Any:
    """A graph that the front end has validated.

    Args:
        front: the module `cudnn`.
        epilogue: forward only, and none of integers, of which the result is their sums, and 8-bit floats.
        where: `handle` of the device that it is for; or `device_property`, which plans without a device.

    Raises:
        Exception: one of the front end's, where it refuses the graph.
    """
    last = problem.layout == "channels_last"
    sums = "int32" if problem.sums_integers else "float32"
    kind, wide = (getattr(front.data_type, KINDS[dtype]) for dtype in (problem.dtype, sums))
    graph = front.pygraph(io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide, **where)
    first, second, (output, shape) = operands(problem)

    def kind_of(name: str) -> Any:
        return getattr(front.data_type, KINDS[problem.dtype_of(name)])

    def array(name: str, uid: int, shape: tuple[int, ...]) -> Any:
        dims, strides = dims_strides(shape, last)
        kind = kind_of(output if name == "bias" else name)
        made = graph.tensor(dim=dims, stride=strides, data_type=kind, name=name)
        made.set_uid(uid)
        return made

    method, *names = CALLS[problem.direction]
    inputs = array(first[0], FIRST, first[1]), array(second[0], SECOND, second[1])
    result = getattr(graph, method)(**dict(zip(names, inputs, strict=True)), **parameters(problem))
    if epilogue.bias:
        result.set_data_type(wide)
        result = graph.add(a=result, b=array("bias", BIAS, (1, problem.K, *(1,) * problem.ndim)))
    if epilogue.relu:
        result.set_data_type(wide)
        result = graph.relu(input=result)
    dims, strides = dims_strides(shape, last)
    result.set_uid(OUTPUT)
    result.set_output(True)
    result.set_dim(dims)
    result.set_stride(strides)
    result.set_data_type(kind_of(output))
    graph.validate()
    return graph


def uids(epilogue: Epilogue) -> list[int]:
    """The names of the arrays that a graph reads and writes, in the order in which it takes them."""
    return [FIRST, SECOND, OUTPUT, BIAS] if epilogue.bias else [FIRST, SECOND, OUTPUT]
