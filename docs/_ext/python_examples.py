"""Blocks of Python that begin with a prompt are examples: `sphinx -b doctest` runs them.

In the source they are plain fences, which every reader of Markdown shows in colour. A block that cannot run
where the pages are built is marked `py` and has no prompt; one that needs an optional library is a
`{doctest}` with `:skipif:`.
"""

from __future__ import annotations

import re
from typing import Any

EXAMPLE = re.compile(r"^```python\n(?=>>> )", re.M)


def mark(app: Any, docname: str, source: list[str]) -> None:
    source[0] = EXAMPLE.sub("```{doctest}\n", source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", mark)
    return {"parallel_read_safe": True}
