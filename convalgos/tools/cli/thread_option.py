"""The option --threads of commands that run other libraries, too, on as many threads."""

from __future__ import annotations

import os

from convalgos.core.setting import thread_count


def threads_asked(asked: int | None) -> int:
    """The threads of this process, which must be as many as are asked for; its children have as many.

    Raises:
        ValueError: it runs on another number already.
    """
    if asked is not None:
        os.environ["CONVALGOS_NUM_THREADS"] = str(asked)
        if thread_count() != asked:
            raise ValueError(f"--threads {asked}: this process runs on {thread_count()}")
    return thread_count()
