"""Object code placed in memory without LLVM: the right addresses, never beyond its ends, the rest by LLVM."""

import ctypes
import platform
import struct
import sys

import pytest

pytest.importorskip("llvmlite", reason="compiles kernels")

from tiny_kernels import number, result, sum_to

from convalgos.cpu.compile import code_generation, linker
from convalgos.cpu.runtime import jit

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="places ELF on x86-64"
)

# A table that the code looks up, and a function of the process that it calls.
TEXT = """
@table = internal constant [4 x i64] [i64 7, i64 -11, i64 13, i64 1000000007]
declare i32 @Py_IsInitialized() nounwind
define i64 @looked_up(i64 %i) nounwind {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %found = load i64, ptr %at
  %one = call i32 @Py_IsInitialized()
  %ones = sext i32 %one to i64
  %same = mul i64 %found, %ones
  ret i64 %same
}
"""
VARIABLE = """
@count = internal global i64 41
define i64 @counted(i64 %by) nounwind {
  %before = load i64, ptr @count
  %after = add i64 %before, %by
  store i64 %after, ptr @count
  ret i64 %after
}
"""
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def test_constants_and_functions_of_the_process_are_found():
    needs, code = code_generation.object_code(TEXT)
    assert needs == ["Py_IsInitialized"]
    first, second = (FUNCTION(linker.load_object("looked_up", needs, code)) for _ in range(2))
    assert [first(i) for i in range(4)] == [second(i) for i in range(4)] == [7, -11, 13, 1000000007]


def test_code_is_not_writable():
    begin = linker.load_object("looked_up", *code_generation.object_code(TEXT))
    with open("/proc/self/maps") as maps:
        ranges = ((line.split()[0].split("-"), line.split()[1]) for line in maps)
        modes = [mode for (low, high), mode in ranges if int(low, 16) <= begin < int(high, 16)]
    assert modes == ["r-xp"]


def test_what_is_not_there_is_told():
    needs, code = code_generation.object_code(TEXT)
    with pytest.raises(ValueError, match="it calls no_such_function, which is not there"):
        linker.load_object("looked_up", [*needs, "no_such_function"], code)
    with pytest.raises(ValueError, match="it does not define another"):
        linker.load_object("another", needs, code)
    with pytest.raises(ValueError, match="it calls Py_IsInitialised, which is not there"):
        linker.load_object("looked_up", [], code.replace(b"Py_IsInitialized", b"Py_IsInitialised"))


def test_code_that_ends_early_is_refused():
    needs, code = code_generation.object_code(TEXT)
    for length in range(0, len(code), 7):
        with pytest.raises((ValueError, linker.Unlinkable)):
            linker.load_object("looked_up", needs, code[:length])


def test_an_address_outside_of_its_section_is_refused():
    needs, code = code_generation.object_code(TEXT)
    sections = linker._Object(code).sections
    changed = bytearray(code)
    (table,) = (s for s in sections if s.kind == linker.RELA and sections[s.info].flags & linker.ALLOC)
    struct.pack_into("<Q", changed, table.offset, sections[table.info].size - 7)
    with pytest.raises(ValueError, match="it fills in what lies outside"):
        linker.load_object("looked_up", needs, bytes(changed))


def test_variables_are_left_to_llvm():
    needs, code = code_generation.object_code(VARIABLE)
    with pytest.raises(linker.Unlinkable):
        linker.load_object("counted", needs, code)
    counted = FUNCTION(code_generation.link("counted", needs, code))
    assert [counted(1), counted(2)] == [42, 44]


def test_other_systems_are_left_to_llvm(monkeypatch):
    monkeypatch.setattr(linker.platform, "machine", lambda: "aarch64")
    for factory, value, right in ((number, 5, 5), (sum_to, 9, 45)):
        assert result(jit.compile_kernel(factory.__wrapped__(value))) == right
