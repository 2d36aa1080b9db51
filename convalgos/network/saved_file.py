"""The file that a network is saved in: plain data in JSON, and arrays behind it, with a hash over all.

A first line has the kind of the file, the hash of all that follows, and the bytes of the JSON; arrays begin
on cache lines. Reading executes nothing. Large arrays stay in the file, as views of a map of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convalgos.core import strict_json
from convalgos.core.allocator import whole_lines
from convalgos.core.cache_files import write_atomic
from convalgos.network.mapped_weights import MAPPED, PIECE, in_memory, let_go, mapped_weights

KIND = b"convalgos network 1"
FIRST_LINE = 128  # bytes, spaces before its end among them
DTYPES = frozenset(
    f"{kind}{size}" for kind in ("float", "int", "uint", "complex") for size in (8, 16, 32, 64, 128)
) | {"bool"}


def write_network_file(path: Path, data: dict[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """Write plain data and arrays, whole or not at all."""
    listed, offset = [], 0
    for array in arrays:
        listed.append({"dtype": array.dtype.name, "shape": list(array.shape), "offset": offset})
        offset += whole_lines(array.nbytes)
    text = json.dumps(data | {"arrays": listed}, allow_nan=False).encode()
    pieces = [text.ljust(whole_lines(len(text))), *_padded(arrays)]
    first = KIND + f" {_hex_digest(pieces)} {len(pieces[0])}".encode()
    write_atomic(path, [first.ljust(FIRST_LINE - 1) + b"\n", *pieces])


def network_file_content(path: Path) -> np.ndarray:
    """The bytes of a file, which stay in it; `check_content` tells whether they are what was saved.

    Raises:
        ValueError: it is no such file. OSError: as of `open`.
    """
    size = path.stat().st_size
    if size < FIRST_LINE:
        raise ValueError(f"{path} is no network that this version of convalgos saved")
    content = mapped_weights(path, np.dtype(np.uint8), 0, (size,))
    if not content[: len(KIND)].tobytes() == KIND:
        raise ValueError(f"{path} is no network that this version of convalgos saved")
    return content


def check_content(path: Path, content: np.ndarray) -> None:
    """Read all of a file for its hash; this leaves Python's lock to others.

    Raises:
        ValueError: it is damaged.
    """
    if _hex_digest(_pieces(content[FIRST_LINE:])).encode() not in content[:FIRST_LINE].tobytes():
        raise ValueError(f"{path} is damaged: its content is not what was saved")


def data_and_arrays(content: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What was written. Where the file is of another hand this may raise any error."""
    length = int(content[:FIRST_LINE].tobytes().split()[-1])
    data = strict_json.loads(content[FIRST_LINE : FIRST_LINE + length].tobytes().decode())
    rest = content[FIRST_LINE + length :]
    arrays = [_array(rest, **listed) for listed in data["arrays"]]
    let_go(content)
    return data, arrays


def _hex_digest(pieces: Iterable[bytes | memoryview]) -> str:
    """The SHA-256 of what may be large."""
    import hashlib  # OpenSSL's is the fastest, and 3.5 MB of a process: `convalgos.core.digests`

    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _pieces(content: np.ndarray) -> Iterator[memoryview]:
    """The bytes of a file, which leave memory again on the way."""
    for begin in range(0, len(content), PIECE):
        yield content[begin : begin + PIECE].data
        let_go(content)


def _padded(arrays: Sequence[np.ndarray]) -> Iterator[bytes | memoryview]:
    """The bytes of each array, up to whole cache lines."""
    for array in arrays:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        yield bytes(whole_lines(array.nbytes) - array.nbytes)


def _array(rest: np.ndarray, dtype: str, shape: list[int], offset: int) -> np.ndarray:
    if dtype not in DTYPES:
        raise ValueError(f"an array has dtype {dtype!r}")
    count = 1
    for n in shape:
        count *= n
    nbytes = count * np.dtype(dtype).itemsize
    if min([offset, *shape]) < 0 or offset + nbytes > len(rest):
        raise ValueError("an array lies beyond the end")
    array = rest[offset : offset + nbytes].view(dtype).reshape(shape)
    return array if nbytes >= MAPPED else in_memory(array)
