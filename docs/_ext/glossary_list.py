"""Writes the page of the glossary from its one list, `docs/glossary.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "glossary.toml"
MARK = "<!-- the list -->"


def text(terms: dict[str, dict[str, Any]]) -> str:
    """The terms as MyST's glossary."""
    lines = ["```{glossary}"]
    for term, told in terms.items():
        code = ", ".join(f"`{name}`" for name in told.get("code", ()))
        lines += [term, f"    {told['means']}" + (f" In the code: {code}." if code else ""), ""]
    return "\n".join([*lines, "```"])


def fill(app: Any, docname: str, source: list[str]) -> None:
    if docname == "glossary":
        app.env.note_dependency(str(LIST), docname=docname)
        source[0] = source[0].replace(MARK, text(tomllib.loads(LIST.read_text("utf-8"))))


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
