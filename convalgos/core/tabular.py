"""What results show of themselves: a table in a notebook, plain data, and a frame of pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MOST_ROWS = 30  # of a table in a notebook


class Tabular:
    """Results that `to_dict` gives as plain data: what a notebook shows and pandas takes is made from it."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as `json.dumps` takes it, with units in the names: `median_s` is in seconds."""
        raise NotImplementedError

    def _frame_rows(self) -> list[dict[str, Any]]:
        """The rows of the table, all with the same fields."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The rows as a `pandas.DataFrame`.

        Raises:
            ImportError: pandas is not installed; says how to get it.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ImportError("to_frame needs pandas, which is not installed (pip install pandas)") from None
        return pandas.DataFrame(self._frame_rows())

    def _repr_html_(self) -> str:
        """For a notebook: the first rows as a table."""
        from html import escape  # with the names of all characters, which few processes need

        rows = self._frame_rows()
        heading = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_short(value))}</td>' for value in row.values())}</tr>"
            for row in rows[:MOST_ROWS]
        )
        more = f"<p>and {len(rows) - MOST_ROWS} more</p>" if len(rows) > MOST_ROWS else ""
        table = f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
        return f"<div><p>{escape(repr(self).strip('<>'))}</p>{table}{more}</div>"


def microseconds(seconds: float) -> str:
    """A time as people read it."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def count(number: int, what: str) -> str:
    """A number of things: "1 layer", "2 layers"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _short(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
