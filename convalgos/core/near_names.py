"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 3  # that are suggested


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """ "; did you mean a or b?", or nothing where no name is near.

    Example:
        >>> did_you_mean("cpu.directly", ["cpu.direct", "cpu.reference"])
        '; did you mean cpu.direct?'
    """
    close = near(given, known)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def near(given: object, known: Iterable[str]) -> list[str]:
    """The nearest of the names, best first; those that have the last part in common count, too."""
    if not isinstance(given, str):
        return []
    import difflib  # which only mistakes need

    names = list(dict.fromkeys(known))
    by_lower = {name.lower(): name for name in names}
    found = [by_lower[n] for n in difflib.get_close_matches(given.lower(), by_lower, MOST)]
    ending = [n for n in names if given and n.lower().endswith("." + given.lower())]
    return list(dict.fromkeys([*ending, *found]))[:MOST]
