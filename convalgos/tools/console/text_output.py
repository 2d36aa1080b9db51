"""Text for a terminal, where names are data, and a reader that stops early (`| head`) is no error.

A layer, a node or a file may have any name, even `[/conv1]` or an escape sequence. So nothing here reads
markup (rich's `[bold]`), and control characters are shown as Python writes them: data cannot move the cursor.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import IO, Any

from rich.console import Console
from rich.text import Text

UNSEEN = ("C", "Zl", "Zp")  # categories: controls, turns of direction, halves of characters; line separators


def clean(text: str) -> str:
    """A text of any origin with everything that is not seen written out; line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if ch == "\n" or not _unseen(ch) else _written(ch) for ch in text)


def one_line(text: str) -> str:
    """The same with line ends written out, too: for a cell or a name."""
    return clean(text).replace("\n", "\\n")


def cell(value: str | Text, style: str = "") -> Text:
    """What stands in a table: a string as it is, or a text that was made of such.

    A `Text` of a string must not be made elsewhere, as it loses some control characters.
    """
    return Text(clean(value), style=style) if isinstance(value, str) else value


def echo(text: str, err: bool = False) -> None:
    """Print a text of any origin, and a line end."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(clean(text), file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)


def console(err: bool = False) -> Console:
    """A terminal, or a file, that goes on in silence where nobody reads any more."""
    return _Console(stderr=err, markup=False, emoji=False, highlight=False)


def flush_output() -> None:
    """Bring out what is left, before the interpreter does and complains."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)


def silence(stream: IO[Any]) -> None:
    """Send the rest of a stream whose reader has gone to nowhere; its buffer would raise once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would end the program with status 1 here."""
        silence(self.file)


def _unseen(ch: str) -> bool:
    return unicodedata.category(ch).startswith(UNSEEN)


def _written(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")
