"""Whether the processor packs words to bytes by the instructions of `cpu/vectors/packing`."""

from __future__ import annotations

from convalgos.cpu.compile import code_generation


def packs_words() -> bool:
    """Whether it is of x86."""
    return code_generation.processor()[0].startswith(("x86", "i386", "i686"))
