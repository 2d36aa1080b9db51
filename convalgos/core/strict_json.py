"""JSON of files that anybody may have written: what is read is a plain value, or a ValueError."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str) -> Any:
    """The value of a text.

    Raises:
        ValueError: it is not JSON (which has no NaN and no Infinity), nested too deeply, or has half of a
            character, which nobody can print.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def of_format(text: str, version: int) -> dict[str, Any]:
    """The object that a text holds, which says itself in which format it is.

    Raises:
        ValueError: as of `loads`, or it is no object of this format.
    """
    value = loads(text)
    if not isinstance(value, dict) or value.get("format") != version:
        raise ValueError("not a file of this version")
    count_of("format", value["format"], version, version)
    return value


def count_of(name: str, value: Any, least: int, most: int) -> int:
    """A whole number, which True and 1.0 are not.

    Raises:
        ValueError: names it and says what would be valid.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}={excerpt(value)} must be a whole number from {least} to {most:.4g}")
    return value


def number(name: str, value: Any, least: float, most: float) -> float:
    """A finite number, which True is not; errors as of `count_of`."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name}={excerpt(value)} must be a number from {least:g} to {most:g}")
    return float(value)


def text(name: str, value: Any, longest: int) -> str:
    """A string; errors as of `count_of`."""
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{name}={excerpt(value)} must be text of at most {longest} characters")
    return value


def excerpt(value: Any) -> str:
    """A value in an error message: what is nested may be too deep to be written."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)[:40]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
