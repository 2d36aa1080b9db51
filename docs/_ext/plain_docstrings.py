"""Docstrings are plain text with `names` in backticks; reStructuredText would read more into them.

`max|y|` and `(N, C, *spatial)` mean what they show, and a colon in what a call returns ends no type. Examples
of what is only imitated here, such as torch where it is not installed, are shown and not run. An example may
call what it documents without an import.
"""

from __future__ import annotations

from typing import Any

SPECIAL = str.maketrans({"*": r"\*", "|": r"\|"})


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape, in place, what stands outside of examples."""
    imitated = any(name.startswith(f"convalgos.{module}.") for module in app.config.autodoc_mock_imports)
    example = returns = False
    for i, line in enumerate(lines):
        text = line.lstrip()
        example = text.startswith(">>>") or (example and bool(text))
        if returns and text:
            line = f"{line[: -len(text)]}: {text}"  # an empty type, then the description
        returns = text == "Returns:"
        if text.startswith(">>>") and imitated and "# doctest:" not in text:
            line += "  # doctest: +SKIP"
        lines[i] = line if example else line.translate(SPECIAL)
    own = getattr(obj, "__qualname__", ".")
    if own.isidentifier() and not imitated and any(">>>" in line for line in lines):
        lines[:0] = [".. testsetup::", "", f"    from {obj.__module__} import {own}", ""]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", plain, priority=100)  # before napoleon
    return {"parallel_read_safe": True}
