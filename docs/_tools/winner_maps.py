"""Where each algorithm wins: heat maps and tables for its page, made from the recorded tables.

    python docs/_tools/winner_maps.py      # writes docs/_data/winner_maps/*.inc, which the pages include

A page names its algorithms in the line "Ids:". For each direction in which a table has samples of them there
is a map of kinds of layers by sizes of the map: on how many layers the best algorithm of the page is fastest,
and how its time compares with the fastest. What is written depends on the tables and on these lines only.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from convalgos import ConvProblem

DOCS = Path(__file__).parents[1]
TABLES = DOCS.parent / "asv_bench" / "tables"
PAGES = DOCS / "algorithms"
FRAGMENTS = DOCS / "_data" / "winner_maps"
RECORDED = "20 November 2026"
TABLE = "epyc_zen5_2t_avx512"
DIRECTIONS = {
    "forward": "Forward (y)",
    "backward_data": "Gradient of the input (dx)",
    "backward_weights": "Gradient of the filter (dw)",
}
READING = (
    "Each field of a map tells on how many of its layers the algorithm was fastest (the best one, where the "
    "page has several), and below that its median time over that of the fastest, where it was timed. The "
    "darker, the closer to the fastest."
)
KINDS = (
    "1x1",
    "3x3, stride 1",
    "3x3, stride 2",
    "5x5 to 11x11",
    "1 to 4 channels in",
    "grouped",
    "depthwise to 7x7",
    "depthwise from 13x13",
    "1-D, 2 or 3 taps",
    "3x3x3",
    "63 taps and more",
)
SIZES = ((14 * 14, "up to 14x14"), (56 * 56, "up to 56x56"), (math.inf, "larger"))  # outputs of a plane
CLOSE = 1.05  # times the fastest
COLOR, LABEL, CELL, ROW = "#2a9d8f", 160, 104, 38  # units of the drawing


@dataclass(frozen=True)
class Layer:
    """A layer of a table, and the median time of each algorithm over that of the fastest."""

    name: str
    kind: str
    size: int  # index into SIZES
    ratios: dict[str, float]

    def best(self, ids: tuple[str, ...]) -> float | None:
        return min((self.ratios[i] for i in ids if i in self.ratios), default=None)


def kind(p: ConvProblem) -> str:
    longest = max(p.kernel)
    if longest >= 63:
        return "63 taps and more"
    if p.groups > 1:
        if p.groups < p.C:
            return "grouped"
        return "depthwise to 7x7" if longest <= 7 else "depthwise from 13x13"
    if p.C <= 4:
        return "1 to 4 channels in"
    if longest == 1:
        return "1x1"
    if p.ndim != 2:
        return "3x3x3" if p.ndim == 3 else "1-D, 2 or 3 taps"
    if longest == 3:
        return "3x3, stride 1" if max(p.stride) == 1 else "3x3, stride 2"
    return "5x5 to 11x11"


def file_of(direction: str) -> str:
    return f"{TABLE}.json" if direction == "forward" else f"{TABLE}_{direction}.json"


@cache
def table(direction: str) -> dict[str, Any]:
    return json.loads((TABLES / file_of(direction)).read_text("utf-8"))


@cache
def layers(direction: str) -> tuple[Layer, ...]:
    found = []
    for layer in table(direction)["layers"]:
        problem = ConvProblem.parse(layer["problem"])
        outputs = math.prod(problem.spatial_out)
        size = next(i for i, (most, _) in enumerate(SIZES) if outputs <= most)
        medians = {name: median(samples) for name, samples in layer["samples_us"].items()}
        least = min(medians.values())
        ratios = {name: time / least for name, time in medians.items()}
        found.append(Layer(f"{layer['suite']}/{layer['name']}", kind(problem), size, ratios))
    return tuple(found)


@cache
def pages() -> dict[str, tuple[str, ...]]:
    """page -> ids of its algorithms, as its line "Ids:" has them."""
    found = {}
    for path in sorted(PAGES.glob("*.md")):
        if line := re.search(r"^Ids: (.*?)\n\n", path.read_text("utf-8"), re.M | re.S):
            found[path.stem] = tuple(re.findall(r"`([^`]+)`", line[1]))
    return found


def name_of(page: str) -> str:
    """As links on the overview call it: "cpu-fft-tiles" is fft tiles."""
    return page.partition("-")[2].replace("-", " ")


def fragment(ids: tuple[str, ...]) -> str:
    """The maps and tables of a page; empty where nothing of it was recorded."""
    parts, there = [], []
    for direction, heading in DIRECTIONS.items():
        measured = [layer for layer in layers(direction) if layer.best(ids) is not None]
        if measured:
            there.append(direction)
            parts += [f"**{heading}.** {_summary(ids, measured, direction)}", _map(ids, direction, heading)]
            parts += [_of_each(ids, direction)] if len(ids) > 1 else []
    return "\n\n".join([READING, *parts, _source(there)]) + "\n" if parts else ""


def overview() -> str:
    """For each direction, how many layers of each kind the algorithms of a page are fastest on."""
    parts = []
    for direction, heading in DIRECTIONS.items():
        lines = ["| kind of layer | layers | fastest on so many of them |", "|---|---|---|"]
        for name in KINDS:
            of_kind = [layer for layer in layers(direction) if layer.kind == name]
            won = {page: sum(layer.best(ids) == 1 for layer in of_kind) for page, ids in pages().items()}
            ranked = sorted((page for page in won if won[page]), key=lambda page: (-won[page], page))
            told = ", ".join(f"[{name_of(page)}]({page}.md) {won[page]}" for page in ranked)
            lines.append(f"| {name} | {len(of_kind)} | {told} |")
        parts += [f"**{heading}**", "\n".join(lines)]
    return "\n\n".join([*parts, _source(list(DIRECTIONS))]) + "\n"


def fragments() -> dict[str, str]:
    """file name -> text, of all that is included."""
    made = {page: fragment(ids) for page, ids in pages().items()}
    return {f"{page}.inc": text for page, text in made.items() if text} | {"overview.inc": overview()}


# --- parts of a fragment -----------------------------------------------------------------------


def _summary(ids: tuple[str, ...], measured: list[Layer], direction: str) -> str:
    ratios = [layer.best(ids) for layer in measured]
    first, close = sum(r == 1 for r in ratios), sum(r <= CLOSE for r in ratios)
    count = len(layers(direction))
    return f"Fastest on {first} of {count} layers, and within 5 % of the fastest on {close}."


def _source(directions: list[str]) -> str:
    machine = table(directions[0])["machine"]
    commands = []
    for direction in directions:
        option = "" if direction == "forward" else f" --direction {direction}"
        commands.append(f"`convalgos bench all{option} --json table.json` (`{file_of(direction)}`)")
    return (
        f"*{machine['threads']} threads of an {machine['name']} of the Zen 5 generation, vectors of "
        f"{machine['vector_bytes']} bytes, measured peak {machine['peak_float32'] / 1e9:.0f} GFLOP/s and "
        f"{machine['bandwidth'] / 1e9:.0f} GB/s; float32, channels first, filters prepared. Recorded on "
        f"{RECORDED} by {', '.join(commands)}; the tables are in `asv_bench/tables/`.*"
    )


def _of_each(ids: tuple[str, ...], direction: str) -> str:
    lines = [
        "| id | layers timed | fastest on | within 5 % on | median time / fastest |",
        "|---|---|---|---|---|",
    ]
    for name in ids:
        ratios = [layer.ratios[name] for layer in layers(direction) if name in layer.ratios]
        if ratios:
            first, close = sum(r == 1 for r in ratios), sum(r <= CLOSE for r in ratios)
            lines.append(f"| `{name}` | {len(ratios)} | {first} | {close} | {median(ratios):.2f} |")
    return "\n".join(lines)


def _map(ids: tuple[str, ...], direction: str, heading: str) -> str:
    """An SVG as one HTML block: no blank lines."""
    rows = [k for k in KINDS if any(x.kind == k and x.best(ids) is not None for x in layers(direction))]
    width, height = LABEL + len(SIZES) * CELL, 24 + len(rows) * ROW
    lines = [
        '<div class="winner-map">',
        f'<svg viewBox="0 0 {width} {height}" role="img" style="width:100%;max-width:34rem;height:auto" '
        'font-family="inherit" font-size="13">',
        f"<title>{escape(heading)}: where it is fastest, by kind of layer and size of the map</title>",
        '<g fill="currentColor">',
    ]
    for column, (_, name) in enumerate(SIZES):
        x = LABEL + column * CELL + CELL // 2
        lines.append(f'<text x="{x}" y="15" text-anchor="middle">{escape(name)}</text>')
    for row, name in enumerate(rows):
        lines.append(
            f'<text x="{LABEL - 8}" y="{24 + row * ROW + 23}" text-anchor="end">{escape(name)}</text>'
        )
    lines.append("</g>")
    for row, name in enumerate(rows):
        for column in range(len(SIZES)):
            found = [x for x in layers(direction) if x.kind == name and x.size == column]
            lines += _field(ids, found, LABEL + column * CELL, 24 + row * ROW)
    return "\n".join([*lines, "</svg>", "</div>"])


def _field(ids: tuple[str, ...], found: list[Layer], x: int, y: int) -> list[str]:
    if not found:
        return []
    timed = {layer.name: ratio for layer in found if (ratio := layer.best(ids)) is not None}
    typical = median(timed.values()) if timed else math.inf
    shade = max(0.0, 0.65 * (1 - math.log2(typical))) if timed else 0.0
    first = sum(ratio == 1 for ratio in timed.values())
    told = "; ".join(f"{name} {ratio:.2f}" for name, ratio in timed.items()) or "not timed here"
    middle = f'x="{x + CELL // 2}" text-anchor="middle" fill="currentColor"'
    below = f"{typical:.2f}" if timed else "-"
    return [
        f"<g><title>{escape(told)}</title>",
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{ROW - 2}" rx="3" fill="{COLOR}" '
        f'fill-opacity="{shade:.2f}" stroke="currentColor" stroke-opacity="0.25"/>',
        f'<text {middle} y="{y + 17}">{first} of {len(found)}</text>',
        f'<text {middle} y="{y + 31}" font-size="11">{below}</text></g>',
    ]


def main() -> None:
    FRAGMENTS.mkdir(parents=True, exist_ok=True)
    made = fragments()
    for old in FRAGMENTS.glob("*.inc"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FRAGMENTS / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
