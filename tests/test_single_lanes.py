"""Stores of one lane, which LLVM makes too wide where it cuts off integers."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from convalgos.cpu.compile import code_generation
from convalgos.cpu.compile.single_lanes import stored_by_themselves

LANES = 8


def stored(name: str, wide: str, narrow: str, mask: list[bool]) -> str:
    """A function (target, source) that cuts off numbers and stores those of a mask."""
    kind, lanes = f"<{LANES} x {narrow}>", ", ".join("i1 true" if m else "i1 false" for m in mask)
    return f"""
declare void @llvm.masked.store.v{LANES}{narrow}.p0({kind}, ptr, i32, <{LANES} x i1>)
define void @{name}(ptr %to, ptr %from) {{
  %numbers = load <{LANES} x {wide}>, ptr %from, align 1
  %cut = trunc <{LANES} x {wide}> %numbers to {kind}
  call void @llvm.masked.store.v{LANES}{narrow}.p0({kind} %cut, ptr %to, i32 1, <{LANES} x i1> <{lanes}>)
  ret void
}}"""


@pytest.mark.parametrize("wide, narrow", [("i32", "i8"), ("i64", "i8"), ("i32", "i16"), ("i64", "i32")])
def test_nothing_behind_a_single_lane_is_written(wide, narrow):
    of_wide, of_narrow = (np.dtype(kind.replace("i", "int")) for kind in (wide, narrow))
    source = np.arange(50, 50 + LANES, dtype=of_wide)
    masks = [[i == lane for i in range(LANES)] for lane in range(LANES)]
    masks += [[i < count for i in range(LANES)] for count in (0, 1, 2, LANES)]
    for number, mask in enumerate(masks):
        name = f"stored_{wide}_{narrow}_{number}"
        address = code_generation.link(name, *code_generation.object_code(stored(name, wide, narrow, mask)))
        y = np.full(3 * LANES, 7, of_narrow)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)(y.ctypes.data, source.ctypes.data)
        expected = np.full(3 * LANES, 7, of_narrow)
        expected[:LANES][mask] = source[mask]
        np.testing.assert_array_equal(y, expected, str(mask))


def test_both_ways_to_write_an_alignment_are_read():
    before = "  tail call void @llvm.masked.store.v4i16.p0(<4 x i16> %v, ptr "
    single = "<4 x i1> <i1 false, i1 true, i1 false, i1 false>"
    two = "<4 x i1> <i1 true, i1 true, i1 false, i1 false>"
    for pointer in ("nonnull align 4 %p, ", "%p, i32 2, ", "align 2 dereferenceable(8) %p, "):
        text = stored_by_themselves(f"{before}{pointer}{single}) #5\n")
        assert "masked" not in text and "store i16 %single" in text and text.endswith("align 2\n")
        assert "i64 1" in text
        assert stored_by_themselves(f"{before}{pointer}{two}) #5\n") == f"{before}{pointer}{two}) #5\n"
