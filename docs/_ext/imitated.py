"""Lets autodoc's imitations of missing modules stand in a `with` statement, as `torch.inference_mode()`."""

from __future__ import annotations

from typing import Any

from sphinx.ext.autodoc.mock import _MockObject


def _enter(self: Any) -> Any:
    return self


def _leave(self: Any, *error: object) -> None:
    return None


_MockObject.__enter__, _MockObject.__exit__ = _enter, _leave  # type: ignore[attr-defined]
