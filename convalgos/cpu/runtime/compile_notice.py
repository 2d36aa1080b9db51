"""A word to the user where compiling takes long, once in a process."""

from __future__ import annotations

import logging
import sys

LONG = 1.0  # seconds of compiling in a process after which it says what it does
WORD = (
    "convalgos compiles kernels for this problem, which takes some seconds: they are kept for later, and "
    "`convalgos warm` compiles all ahead"
)
_compiling = 0.0  # seconds so far; infinite where all is said


def say_nothing() -> None:
    """Compile without a word from now on: whoever asked for it knows, and waits for it."""
    spend(float("inf"))


def spend(seconds: float) -> None:
    """Count time that was spent on compiling."""
    global _compiling
    _compiling += seconds


def say_what_takes_long() -> None:
    """Once in a process: to who waits at a terminal, and to a program's log."""
    if LONG <= _compiling < float("inf"):
        say_nothing()
        logging.getLogger("convalgos").info(WORD)
        if sys.stderr is not None and sys.stderr.isatty():
            print(WORD, file=sys.stderr)
