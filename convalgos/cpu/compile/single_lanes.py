"""Stores under a mask of one constant lane, as LLVM (22) gets them wrong.

Where the elements are cut off from wider ones, it stores the whole of the wider one: what lies behind it in
memory is overwritten. An extraction of the lane and a plain store do what is meant.
"""

from __future__ import annotations

import re

STORE = re.compile(
    r"(?:tail )?call void @llvm\.masked\.store\.v\d+i(?P<bits>\d+)\.p\d+"
    r"\((?P<type><[^>]+>) (?P<value>[^,]+), "
    r"ptr (?:(?!align )[\w()]+ )*(?:align (?P<align>\d+) )?(?:[\w()]+ )*(?P<pointer>[%@][^,]+),"
    r"(?: i32 (?P<given>\d+),)? "
    r"<\d+ x i1> <(?P<mask>[^>]+)>\).*"
)


def stored_by_themselves(text: str) -> str:
    """A module in LLVM's text whose integers under a mask of one constant lane are stored by themselves."""
    return STORE.sub(_stored, text) if "@llvm.masked.store" in text else text


def _stored(found: re.Match[str]) -> str:
    lanes = found["mask"].split(", ")
    if lanes.count("i1 true") != 1 or lanes.count("i1 false") != len(lanes) - 1:
        return found[0]
    lane, bits, name = lanes.index("i1 true"), int(found["bits"]), f"%single.{found.start()}"
    align = min(int(found["align"] or found["given"] or 1), bits // 8)
    return (
        f"{name} = extractelement {found['type']} {found['value']}, i64 {lane}\n"
        f"  {name}.to = getelementptr i{bits}, ptr {found['pointer']}, i64 {lane}\n"
        f"  store i{bits} {name}, ptr {name}.to, align {align}"
    )
