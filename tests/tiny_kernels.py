"""Kernels that compile in no time and tell which they are.

As a program: `tiny_kernels.py PROCESSES VALUE...` compiles or loads the kernels of some values, in another
order in each of several processes at once, and checks every one.
"""

import ctypes
import os
import sys

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors.simd import carray, pointer


@jit.specialise
def number(value):
    def number(address):
        carray(pointer(address), 1, np.int64)[0] = value

    return number


@jit.specialise
def sum_to(value):
    def sum_to(address):
        y = carray(pointer(address), 1, np.int64)
        y[0] = 0
        for i in range(value + 1):
            y[0] += i

    return sum_to


def result(kernel: int) -> int:
    """What a kernel writes."""
    y = np.full(1, -1, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(kernel)(y.ctypes.data)
    return int(y[0])


def check(values: list[int]) -> None:
    for value in values:
        assert result(number(value)) == value, f"number({value}) gives {result(number(value))}"
        assert result(sum_to(value)) == value * (value + 1) // 2, f"sum_to({value})"


def check_at_once(processes: int, values: list[int]) -> None:
    check([0])  # all that compiling needs is loaded once
    children = []
    start, ready = os.pipe()
    for i in range(processes):
        if not (child := os.fork()):
            turn = i % len(values)
            failed = True
            try:
                os.close(ready)
                os.read(start, 1)  # ends when the parent closes its end: all begin at once
                check(values[turn:] + values[:turn])
                failed = False
            finally:
                os._exit(failed)
        children.append(child)
    os.close(ready)
    ended = [os.waitpid(child, 0)[1] for child in children]
    assert not any(ended)


if __name__ == "__main__":
    check_at_once(int(sys.argv[1]), [int(v) for v in sys.argv[2:]])
