"""Makes asv's pages work anywhere: opened from a folder, without a network, on a phone.

asv's page loads libraries from the network, and its data by requests, which browsers refuse to a page that
was opened as a file. Here the libraries are copied beside the page, and all data become one script.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

FROM_NETWORK = re.compile(r'(src|href)="https://[^"]*/([^"/]+)"[^>]*>')
OUR_SCRIPTS = ("data.js", "data_transport.js")  # between jQuery and what asks for data
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def make_offline(pages: Path, site: Path) -> None:
    """Make the pages in a folder need nothing else.

    Args:
        pages: what `asv publish` wrote.
        site: our scripts and styles, and the libraries in its folder `vendor`.

    Raises:
        ValueError: the page takes something from the network that is not in `vendor`; it is left as it was.
    """
    index = pages / "index.html"
    vendored = {_plain(p.name): p.name for p in (site / "vendor").iterdir() if p.suffix in (".js", ".css")}
    text = _local(index.read_text("utf-8"), vendored)
    shutil.copytree(site / "vendor", pages / "vendor", dirs_exist_ok=True)
    for path in (p for p in site.iterdir() if p.is_file()):
        shutil.copy(path, pages)
    (pages / "data.js").write_text(_data(pages), "utf-8")
    index.write_text(text, "utf-8")


def _local(page: str, vendored: dict[str, str]) -> str:
    """The page with its libraries beside it, and with ours."""
    lines = []
    for line in page.splitlines():
        found = FROM_NETWORK.search(line) if re.match(r"\s*<(script|link)\b", line) else None
        if found:
            name = vendored.get(_plain(found[2]))
            if name is None:
                raise ValueError(f"asv's page takes {found[2]} from the network, which is not vendored")
            line = FROM_NETWORK.sub(f'{found[1]}="vendor/{name}">', line)
        lines.append(line)
        if "vendor/jquery-" in line:
            lines += [f'    <script src="{name}"></script>' for name in OUR_SCRIPTS]
    text = "\n".join(lines) + "\n"
    last = '    <script src="choices.js"></script>\n    <link rel="stylesheet" href="narrow.css">\n  </head>'
    return text.replace("<head>", f"<head>\n    {VIEWPORT}", 1).replace("  </head>", last, 1)


def _plain(name: str) -> str:
    """The name of a library's file, whether it is minified or not."""
    return name.replace(".min.", ".")


def _data(pages: Path) -> str:
    """A script that holds every JSON file by its path."""
    found = {p.relative_to(pages).as_posix(): json.loads(p.read_text("utf-8")) for p in pages.rglob("*.json")}
    return f"const ASV_DATA = {json.dumps(found, sort_keys=True)};\n"
