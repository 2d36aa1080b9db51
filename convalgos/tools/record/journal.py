"""The journal of a recording: what was found by now, complete after every layer, however the process ends.

Lines of JSON: the head of the table, then a layer in each. A layer is appended in one go; what a killed
process left of a line is cut off. A journal with a line that cannot be read is set aside, and the lines that
can are kept.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from convalgos.core import strict_json
from convalgos.core.cache_files import set_aside, write_atomic
from convalgos.core.json_format import FORMATS
from convalgos.tools.evaluate.recorded_tables import (
    Recorded,
    RecordedLayer,
    head_json,
    layer_json,
    read_head,
    read_layer,
)


class Journal:
    """A recording as it grows.

    Args:
        path: of the file; what is in it is gone on with.
        head: the table to record, without layers.

    Attributes:
        head: the same, or as it was when the recording began.
        layers: those recorded by now.

    Raises:
        ValueError: the file is of another recording, or of another machine. OSError: it cannot be written.
    """

    def __init__(self, path: Path, head: Recorded):
        self._path = path
        self.head, self.layers = head, list[RecordedLayer]()
        if path.exists():
            self._go_on()
        else:
            self._write()

    def append(self, layer: RecordedLayer) -> None:
        """Add a layer; when this returns, it is on the disk."""
        with open(self._path, "ab") as file:
            file.write(_line(layer_json(layer)))
            file.flush()
            os.fsync(file.fileno())
        self.layers.append(layer)

    def _go_on(self) -> None:
        *lines, cut = self._path.read_bytes().split(b"\n")
        try:
            found = _head(lines[0] if lines else b"")
        except (ValueError, KeyError, TypeError) as error:
            set_aside(self._path, f"its head: {error!r}")
            self._write()
            return
        _check_same(self._path, self.head, found)
        self.head = found
        damage = ""
        for number, line in enumerate(lines[1:], 2):
            try:
                self.layers.append(read_layer(_object(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                damage = damage or f"line {number}: {error!r}"
        if damage:
            set_aside(self._path, damage)
            self._write()
        elif cut:
            os.truncate(self._path, self._path.stat().st_size - len(cut))

    def _write(self) -> None:
        lines = [head_json(self.head), *map(layer_json, self.layers)]
        write_atomic(self._path, b"".join(map(_line, lines)).decode())


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    value = strict_json.loads(line.decode("utf-8"))
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def _head(line: bytes) -> Recorded:
    found = _object(line)
    version = found["format"]
    strict_json.count_of("format", version, 1, FORMATS["selector_table"])
    return read_head(found)


def _check_same(path: Path, asked: Recorded, found: Recorded) -> None:
    """That a recording is gone on with only as it began."""
    ours, theirs = asked.protocol.get("asked"), found.protocol.get("asked")
    if ours != theirs:
        raise ValueError(f"{path} is of {_told(theirs)}, and not of {_told(ours)}: name another folder")
    if _hardware(asked) != _hardware(found):
        raise ValueError(
            f"{path} was recorded on {found.machine.summary}, and this is {asked.machine.summary}: name "
            "another folder"
        )
    if asked.versions != found.versions:
        names = sorted(dict(asked.versions.items() ^ found.versions.items()))
        told = ", ".join(names)
        raise ValueError(f"{path} was recorded with other versions of {told}: name another folder")


def _hardware(table: Recorded) -> tuple[Any, ...]:
    """What does not change when the figures of a machine are measured again."""
    m = table.machine
    return m.name, getattr(m, "threads", None), getattr(m, "vector_bytes", None)


def _told(asked: Any) -> str:
    return json.dumps(asked)
