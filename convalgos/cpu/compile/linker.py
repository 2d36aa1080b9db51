"""Object code of kernels placed in memory that may be executed, without LLVM, whose library takes 45 MB.

Kernels are made for the process that runs them: their code holds 64-bit addresses, of their own constants and
of functions of the process, and that is all that there is to fill in. Code of another kind, as of systems
other than ELF on x86-64, is left to LLVM.

Source: System V ABI, gabi 4 (sections, symbols, relocations) and its supplement for AMD64 (R_X86_64_64).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

HEADER = b"\x7fELF\x02\x01\x01"  # of 64 bits, the low byte first, version 1
RELOCATABLE, X86_64 = 1, 62  # kind of a file, machine
PROGBITS, SYMTAB, RELA = 1, 2, 4  # kinds of sections
WRITE, ALLOC = 1, 2  # flags of a section
UNDEFINED = 0  # section of symbols that the process has
ABSOLUTE_64 = 1  # R_X86_64_64: the address of a symbol, and a number added to it
SECTION, SYMBOL, RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")


class Unlinkable(Exception):
    """Code of a kind that is left to LLVM."""


class Section(NamedTuple):
    """A section of an object file, by the fields of its header."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


def load_object(name: str, needs: list[str], code: bytes) -> int:
    """The address of a function of an object file, which stays in memory.

    Args:
        needs: names of the functions that it needs of the process.

    Raises:
        Unlinkable: it is for LLVM to link. ValueError: it does not define the function, or needs another
            that the process has not.
    """
    if not code.startswith(HEADER) or not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise Unlinkable("no object file of this system")
    for need in needs:
        address_in_process(need)
    try:
        return _Object(code).placed(name)
    except (struct.error, IndexError) as error:
        raise ValueError(f"it is no whole object file: {error}") from None


class _Object:
    """An object file."""

    def __init__(self, code: bytes):
        self.code = code
        kind, machine = struct.unpack_from("<HH", code, 16)
        if (kind, machine) != (RELOCATABLE, X86_64):
            raise Unlinkable("code of another machine")
        (table,) = struct.unpack_from("<Q", code, 40)
        size, count, _ = struct.unpack_from("<HHH", code, 58)
        self.sections = [Section(*SECTION.unpack_from(code, table + i * size)) for i in range(count)]
        self.symbols = next((s for s in self.sections if s.kind == SYMTAB), None)

    def placed(self, name: str) -> int:
        """Lay out what belongs in memory, fill in addresses, and make it code."""
        begins, size = {}, 0
        for i, section in enumerate(self.sections):
            if section.flags & ALLOC and section.size:
                if section.kind != PROGBITS or section.flags & WRITE or section.alignment > mmap.PAGESIZE:
                    raise Unlinkable("it has variables, or tables for the unwinding of calls")
                size = -(-size // max(1, section.alignment)) * max(1, section.alignment)
                begins[i] = size
                size += section.size
        if not size:
            raise ValueError(f"it does not define {name}")
        base, image = _new_memory(size), bytearray(size)
        for i, begin in begins.items():
            section = self.sections[i]
            image[begin : begin + section.size] = self._bytes(section)
        for i, offset, symbol, added in self._relocations():
            if i in begins:
                if not 0 <= offset <= self.sections[i].size - 8:
                    raise ValueError("it fills in what lies outside")
                address = self._address(symbol, begins, base) + added
                struct.pack_into("<Q", image, begins[i] + offset, address % (1 << 64))
        found = self._defined(name, begins)
        _make_code(base, image)
        return base + found

    def _bytes(self, section: Section) -> bytes:
        content = self.code[section.offset : section.offset + section.size]
        if len(content) < section.size:
            raise ValueError("it ends within a section")
        return content

    def _relocations(self) -> Iterator[tuple[int, int, int, int]]:
        """(section, offset in it, symbol, number that is added) of each address to be filled in."""
        for section in self.sections:
            if section.kind == RELA:
                for offset, info, added in RELOCATION.iter_unpack(self._bytes(section)):
                    if info & 0xFFFFFFFF != ABSOLUTE_64:
                        raise Unlinkable(f"relocation {info & 0xFFFFFFFF}")
                    yield section.info, offset, info >> 32, added

    def _symbol(self, index: int) -> tuple[str, int, int]:
        """(name, section, value in it) of a symbol."""
        assert self.symbols is not None
        begin, _, _, section, value, _ = SYMBOL.unpack_from(self._bytes(self.symbols), index * SYMBOL.size)
        names = self._bytes(self.sections[self.symbols.link])
        return names[begin : names.index(b"\0", begin)].decode(), section, value

    def _address(self, index: int, begins: dict[int, int], base: int) -> int:
        name, section, value = self._symbol(index)
        if section in begins:
            return base + begins[section] + value
        if section != UNDEFINED:
            raise Unlinkable("it refers to what is not placed")
        return address_in_process(name)

    def _defined(self, name: str, begins: dict[int, int]) -> int:
        """Where a function begins."""
        count = self.symbols.size // SYMBOL.size if self.symbols else 0
        for found, section, value in map(self._symbol, range(count)):
            if found == name and section in begins:
                return begins[section] + value
        raise ValueError(f"it does not define {name}")


def address_in_process(name: str) -> int:
    """The address of a function that the process has.

    Raises:
        ValueError: it has none of this name.
    """
    try:
        return ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise ValueError(f"it calls {name}, which is not there") from None


@cache
def _process() -> ctypes.CDLL:
    process = ctypes.CDLL(None)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    process.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
    process.mmap.restype = address
    process.mprotect.argtypes = (address, size, number)
    return process


def _new_memory(size: int) -> int:
    """The address of fresh pages, which nobody frees: threads may run their code until the process ends."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    found = _process().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"no memory for {size} bytes of code")
    return int(found)


def _make_code(address: int, image: bytearray) -> None:
    """Fill memory, and let it be executed and not be written any more."""
    ctypes.memmove(address, bytes(image), len(image))
    if _process().mprotect(address, len(image), mmap.PROT_READ | mmap.PROT_EXEC):
        raise Unlinkable("the system does not let this memory be executed")
