"""From a CUDA source and its macros to the text that NVRTC compiles.

A `Build` names a source of `kernels` and fixes its tuning through macros. Headers are put into the text
instead of being included, so that neither CuPy nor NVRTC's wheel needs a folder of headers; `#line` marks
make the compiler name the file and the line of the source as it lies in `kernels`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from convalgos.gpu.compile.sources import source

# Of every compilation, beside the architecture. CuPy adds -ftz=true: subnormal float32 numbers are zeros.
OPTIONS = ("-std=c++17",)
INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)

# What a problem's element types are called in the sources (`ptx.cuh`).
ELEMENTS = {"float32": "float", "float64": "double", "float16": "float16_t", "bfloat16": "bfloat16_t"}
INTEGER_ELEMENTS: dict[str, str | int] = {
    "element_t": "s8_t",
    "QUANTIZED": 1,
}  # macros of builds of 8-bit integers (`integers.cuh`)


LONG = 20  # characters of a macro that is code, not tuning


class CompileError(RuntimeError):
    """A CUDA source that does not compile; the message shows the compiler's, with the source line."""


@dataclass(frozen=True)
class Build:
    """One compiled module: a source of `kernels` and the macros of its tuning, in a fixed order.

    Example:
        >>> Build.of("direct.cu", element_t="float", TILE_M=64).macros
        (('element_t', 'float'), ('TILE_M', 64))
    """

    source: str
    macros: tuple[tuple[str, str | int], ...] = ()

    @classmethod
    def of(cls, source: str, **macros: str | int) -> Build:
        return cls(source, tuple(macros.items()))

    def also(self, **macros: str | int) -> Build:
        """The same source with more macros."""
        return Build(self.source, (*self.macros, *macros.items()))

    def __str__(self) -> str:
        return " ".join((self.source, *(f"{n}={v}" for n, v in self.macros if len(str(v)) < LONG)))


@cache
def source_text(build: Build, replaced: tuple[tuple[str, str], ...] = ()) -> str:
    """The whole text of a build: macros, then its headers, then the source.

    Args:
        replaced: (header, text) pairs that stand in for headers of `kernels`, as a machine without PTX needs.
    """
    macros = "".join(f"#define {name} {value}\n" for name, value in build.macros)
    done: set[str] = set()
    return macros + _expanded(build.source, dict(replaced), done)


def compile_error(build: Build, log: str) -> CompileError:
    """The error to raise for a compilation that failed with this log."""
    return CompileError(f"{build} does not compile:\n{log.strip()}")


def _expanded(name: str, replaced: dict[str, str], done: set[str]) -> str:
    """A source with each header in the place of its first #include."""
    body = replaced[name] if name in replaced else source(name)
    parts = [f'#line 1 "{name}"\n']
    start = 0
    for include in INCLUDE.finditer(body):
        parts.append(body[start : include.start()])
        header = include[1]
        if header not in done:
            done.add(header)
            parts.append(_expanded(header, replaced, done))
            parts.append(f'\n#line {body.count(chr(10), 0, include.end()) + 2} "{name}"')
        start = include.end()
    parts.append(body[start:])
    return "".join(parts)
