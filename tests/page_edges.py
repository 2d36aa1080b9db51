"""Run algorithms on arrays that end, or start, at a page the process may not touch.

`python page_edges.py` prints what it is about to run; a read or write outside an array ends the process,
so that the last line names the culprit. Bands of NaN (`helpers.Guarded`) show stray writes and stray reads
that are used; this shows stray reads whose value is thrown away, which crash users once in a while.
"""

import ctypes
import faulthandler
import mmap

import numpy as np
from helpers import cpu_algorithms, table_problems

from convalgos.measure import random_arrays

PROT_NONE = 0
LARGEST = 1e7  # flops: the small problems hold all the awkward edges

libc = ctypes.CDLL(None, use_errno=True)
kept: list[mmap.mmap] = []  # their memory is in use until the end


def at_edge(values: np.ndarray, edge: str) -> np.ndarray:
    """A copy of an array that starts right behind, or ends right before, a forbidden page."""
    page = mmap.PAGESIZE
    inside = max(page, -(-values.nbytes // page) * page)
    block = mmap.mmap(-1, inside + 2 * page)
    kept.append(block)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for forbidden in (address, address + page + inside):
        if libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    start = page if edge == "start" else page + inside - values.nbytes
    copy = np.frombuffer(block, values.dtype, values.size, start).reshape(values.shape)
    copy[...] = values
    return copy


if __name__ == "__main__":
    faulthandler.enable()
    for algorithm in cpu_algorithms():
        for problem, reason in table_problems(algorithm, "float32"):
            if reason is not None or problem.is_empty or problem.flops > LARGEST:
                continue
            plan = algorithm.serve(problem)
            x, w = random_arrays(problem)
            y = np.zeros(problem.array_shape(problem.y_shape), np.float32)
            bias = np.ones(problem.K, np.float32)
            for edge in ("start", "end"):
                print(f"{algorithm.id} on {problem}, arrays at the {edge} of their pages", flush=True)
                arrays = [at_edge(array, edge) for array in (x, w, bias, y)]
                plan(arrays[0], arrays[1], bias=arrays[2], out=arrays[3], activation="relu")
    print("nothing was touched outside the arrays")
