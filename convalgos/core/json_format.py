"""The head of the JSON files that commands write: what a file is and in which format, for readers to check.

What was written before there was such a head is read as format 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convalgos.core import strict_json

FORMATS = {  # kind of file -> its format; raise it when a field changes its meaning
    "bench": 1,
    "training": 1,
    "gpu_check": 1,
    "network_run": 1,
    "selector_table": 1,
    "study": 1,
}
WRITERS = {
    "bench": "convalgos bench --json",
    "training": "convalgos training --json",
    "gpu_check": "python -m convalgos.tools.gpu_check",
    "network_run": "convalgos run --json",
    "selector_table": "convalgos select compact",
    "study": "convalgos study --json",
}


def head(kind: str) -> dict[str, Any]:
    """What a file begins with."""
    return {"kind": kind, "format": FORMATS[kind]}


def load(path: str | Path, *kinds: str) -> dict[str, Any]:
    """The object in a file of one of these kinds; its field "kind" tells which.

    Raises:
        ValueError: it is none, or of a format that this version does not read. OSError: it cannot be read.
    """
    with reading(path):
        text = Path(path).read_text("utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        try:
            found = strict_json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON, or was cut off: {error}") from None
        if not isinstance(found, dict):
            raise ValueError("it holds no object with layers")
        kind, version = found.setdefault("kind", _kind(found)), found.get("format", 1)
        if not isinstance(kind, str) or kind not in FORMATS:
            raise ValueError(f"it says that it is of kind {kind!r}")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ValueError(f"its format {version!r} is not a number from 1 on")
        if version > FORMATS[kind]:
            raise ValueError(
                f"it is of format {version}, and this version of convalgos reads format {FORMATS[kind]}: "
                "update convalgos (pip install --upgrade convalgos)"
            )
        if kind not in kinds:
            wanted = " or ".join(WRITERS[k] for k in kinds)
            raise ValueError(f"it was written by {WRITERS[kind]}, and here one of {wanted} is read")
    return found


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Within it, what a file lacks or has wrong is a ValueError that names the file."""
    try:
        yield
    except KeyError as error:
        why = f"it lacks {error.args[0]!r}"
    except (TypeError, AttributeError) as error:
        why = f"a field is not what it should be ({error})"
    except (ValueError, OverflowError, RecursionError) as error:
        why = str(error)
    else:
        return
    # In a context manager the first error is still being handled here.
    raise ValueError(f"{path} is not a table of convalgos bench --json: {why}") from None


def _kind(found: dict[str, Any]) -> str:
    """Of a file that does not say so itself."""
    layers = found.get("layers")
    first = layers[0] if isinstance(layers, list) and layers else {}
    for field, kind in (("passes", "training"), ("samples_us", "selector_table")):
        if field in first:
            return kind
    return "gpu_check" if "checks" in found and "phases" in found else "bench"
