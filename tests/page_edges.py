"""Run algorithms on arrays that end, or start, at a page the process may not touch.

`python page_edges.py cpu` runs those of the CPU; with `gpu`, the arrays of every launch of a GPU kernel on
the stand-in lie so, scratch and tables too. It prints what it is about to run; a read or write outside an
array ends the process, so that the last line names the culprit. Bands of NaN (`helpers.Guarded`) show stray
writes and stray reads that are used; this shows stray reads whose value is thrown away, which crash users
once in a while.
"""

import ctypes
import faulthandler
import mmap
import sys
from itertools import product

import numpy as np
from cuda_shim.device import ShimDevice
from helpers import cpu_algorithms, table_problems

from convalgos.core.plan import numpy_dtype
from convalgos.gpu.device import use
from convalgos.gpu.launch.grid import VECTOR_BYTES
from convalgos.select import algorithms
from convalgos.select.measure.accuracy import random_arrays

PROT_NONE = 0
LARGEST = {"cpu": 1e7, "gpu": 2e6}  # flops: the small problems hold all the awkward edges
EDGES = ("start", "end")

libc = ctypes.CDLL(None, use_errno=True)


def at_edge(values: np.ndarray, edge: str, alignment: int = 1) -> np.ndarray:
    """A copy of an array that starts right behind, or ends right before, a forbidden page.

    alignment: bytes; one that has to start at a multiple ends so much closer to the page as that allows.
    """
    page = mmap.PAGESIZE
    inside = max(page, -(-values.nbytes // page) * page)
    block = mmap.mmap(-1, inside + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for forbidden in (address, address + page + inside):
        if libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = page if edge == "start" else page + (inside - values.nbytes) // alignment * alignment
    copy = np.frombuffer(block, values.dtype, values.size, start).reshape(values.shape)
    copy[...] = values
    return copy


class EdgeDevice(ShimDevice):
    """Launches kernels on copies of their arrays at an edge, one array to a block of pages."""

    def __init__(self, edge: str):
        super().__init__()
        self.edge = edge

    def function(self, build, name, shared_bytes):
        plain = super().function(build, name, shared_bytes)

        def launch(grid, block, arguments, shared_mem=0):
            arrays = [isinstance(a, np.ndarray) and a.dtype.names is None for a in arguments]
            moved = [
                at_edge(a, self.edge, VECTOR_BYTES) if is_array else a
                for a, is_array in zip(arguments, arrays, strict=True)
            ]
            plain(grid, block, moved, shared_mem=shared_mem)
            for original, copy, is_array in zip(arguments, moved, arrays, strict=True):
                if is_array and original.flags.writeable:
                    original[...] = copy

        return launch


def run_cpu() -> None:
    for algorithm in cpu_algorithms():
        for problem, reason in table_problems(algorithm, "float32"):
            if reason is not None or problem.is_empty or problem.flops > LARGEST["cpu"]:
                continue
            plan = algorithm.serve(problem)
            x, w = random_arrays(problem)
            y = np.zeros(problem.array_shape(problem.y_shape), np.float32)
            bias = np.ones(problem.K, np.float32)
            for edge in EDGES:
                print(f"{algorithm.id} on {problem}, arrays at the {edge} of their pages", flush=True)
                arrays = [at_edge(array, edge) for array in (x, w, bias, y)]
                plan(arrays[0], arrays[1], bias=arrays[2], out=arrays[3], activation="relu")


def run_gpu() -> None:
    for edge, algorithm, dtype in product(EDGES, algorithms("gpu"), ("float32", "float16")):
        with use(EdgeDevice(edge)):
            for problem, reason in table_problems(algorithm, dtype):
                if reason is not None or problem.is_empty or problem.flops > LARGEST["gpu"]:
                    continue
                print(
                    f"{algorithm.id} on {problem} in {dtype}, arrays at the {edge} of their pages", flush=True
                )
                more = {"bias": np.ones(problem.K, numpy_dtype(dtype)), "activation": "relu"}
                forward = problem.direction == "forward"
                algorithm.serve(problem)(*random_arrays(problem), **(more if forward else {}))


if __name__ == "__main__":
    faulthandler.enable()
    {"cpu": run_cpu, "gpu": run_gpu}[sys.argv[1]]()
    print("nothing was touched outside the arrays")
