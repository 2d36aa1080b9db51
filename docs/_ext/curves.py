"""Puts asv's pages of curves beside ours, in the folder `curves` of the site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.util import logging

ROOT = Path(__file__).parents[2]
NONE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>convalgos: no curves</title>
<p>These pages were built outside of a git repository, so there are no commits to draw.
<code>convalgos history publish</code> draws them in one.</p></html>
"""


def publish(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir) / "curves"
    if not (ROOT / ".git").exists():
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text(NONE)
        return
    command = [sys.executable, "-m", "convalgos", "history", "publish", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        logging.getLogger(__name__).warning("the curves could not be drawn: %s", done.stderr + done.stdout)


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", publish)
    return {"parallel_read_safe": True}
