"""llvmlite's instructions, imported when something is compiled: the only file that imports them.

Without llvmlite the module imports, and only compiling fails.
"""

from __future__ import annotations

from typing import Any


class _Instructions:
    """The module, as its names are asked for."""

    def __getattr__(self, name: str) -> Any:
        from llvmlite import ir as instructions

        found = getattr(instructions, name)
        setattr(self, name, found)
        return found


ir: Any = _Instructions()
