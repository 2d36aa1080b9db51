"""Tables fit the terminal, whatever it is: nothing is cut, and what has no room is named."""

import io
import re

import pytest
from rich.console import Console
from rich.text import Text
from test_bench import layer_result, network, row
from test_training import step

from convalgos import ConvProblem
from convalgos.select.measure.timing import Timing
from convalgos.select.ranking import Rejection
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench.suites import suites
from convalgos.tools.console.text_output import clean, one_line
from convalgos.tools.console.text_table import Column, print_table
from convalgos.tools.report import ranking as report_ranking
from convalgos.tools.report import terminal as report_terminal
from convalgos.tools.report import training

WIDTHS = (20, 40, 60, 80, 120, 200)


def shown(show, width, terminal=True):
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system=None,
        markup=False,
        legacy_windows=False,
    )
    show(console)
    return console.file.getvalue()


def whole(text):
    """The text without what its being broken adds."""
    return re.sub(r"\s+", "", text)


def check(text, width, values):
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for value in values:
        assert value in whole(text), value


@pytest.mark.parametrize("width", WIDTHS)
def test_a_bench_fits_every_width(width):
    results = network()
    text = shown(lambda console: report_terminal.show_results(results, console), width)
    check(text, width, [layer.name for layer in suites()["resnet50"]])
    assert text.count("winograd.f4x3") == len(results.layers) and text.count("1.30") >= len(results.layers)
    gone = re.search(r"no room here for: ((?:.|\n)*?);", text)
    names = " ".join(gone.group(1).split()).split(", ") if gone else []
    assert bool(names) == (40 <= width < 120)
    columns, rows = report_terminal.layer_table(results)
    assert {"layer", "pick", "time ms"}.isdisjoint(names) and set(names) < {c.name for c in columns}
    if width == 20:  # every row is told in lines
        alone = shown(lambda console: print_table(columns, rows, console), width)
        assert all(alone.count(f"  {c.name}:") == len(rows) for c in columns[1:] if c.name != "oracle")
    elif width == 60:  # the peers stay longest
        assert names == ["problem", "±%", "GFLOP /s", "% of peak", "oracle", "regret"]


@pytest.mark.parametrize("width", WIDTHS)
def test_training_steps_fit_every_width(width):
    layers = [step(la.problem, (1.5, 20.25, 3), la.name, them=(10, 100)) for la in suites()["resnet50"]]
    machine = network().machine
    results = bench_results.Results("", machine, {"python": "3"}, {}, layers)
    text = shown(lambda console: training.show_steps(results, console), width)
    check(text, width, [layer.name for layer in suites()["resnet50"]])
    assert text.count("24.8") >= len(layers)  # the step itself is never left out


@pytest.mark.parametrize("terminal_width", [20, 80])
def test_a_file_has_everything_whatever_the_terminal_is(terminal_width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(terminal_width))
    text = shown(
        lambda console: report_terminal.show_results(network(), console), terminal_width, terminal=False
    )
    assert "no room" not in text
    line = next(line for line in text.splitlines() if "res5_3x3" in line)
    assert "n8 c512 h7 w7 k512 r3 s3 p1" in line and line.split()[-11:] == (
        ["winograd.f4x3", "1.30", "5", "1423", "285", "im2col.mkl", "1.30", "2.00", "2.00", "2.00", "2.00"]
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_ranking_and_a_table_fit_every_width(width):
    import convalgos as ca

    problem = ConvProblem.parse("n1 c8 h14 w14 k8 r3 s3 p1")
    ranking = ca.explain(problem)
    text = shown(lambda console: report_ranking.show_ranking(ranking, console), width)
    reasons = [r.why_not for r in ranking.rejected if not r.elsewhere]
    check(text, width, [c.id for c in ranking.candidates] + list(map(whole, reasons)))
    table = layer_result(problem, rows=[row("cpu.a", 1e-3)], failed=[Rejection("cpu.b", "it [broke]")]).table
    check(
        shown(lambda console: report_ranking.show_table(table, console), width), width, ["1000", "it[broke]"]
    )


def test_words_are_broken_only_where_they_must_and_spare_columns_go_first():
    columns = [
        Column("name", wraps=True),
        Column("words", wraps=True),
        Column("n", right=True, spare=1),
        Column("m", right=True, spare=2),
    ]
    rows = [("a", "one two three", "12345", "678"), ("b" * 30, "four", Text("9", style="red"), "0")]
    wide = shown(lambda console: print_table(columns, rows, console, "title"), 100)
    assert "one two three" in wide and "b" * 30 in wide and "title" in wide and "no room" not in wide
    less = shown(lambda console: print_table(columns, rows, console), 40)
    assert "12345" in less and "678" not in less and "no room here for: m;" in less
    narrow = shown(lambda console: print_table(columns, rows, console), 12)
    assert "words:four" in whole(narrow) and "n: 12345" in narrow and "m: 678" in narrow
    assert "no room" not in narrow
    assert whole(narrow).count("b") == 30


def test_wide_characters_are_measured_as_they_show():
    columns = [Column("name"), Column("n", right=True)]
    text = shown(lambda console: print_table(columns, [("畳み込み", "1"), ("x", "22")], console), 16)
    assert "畳み込み" in text and "22" in text and "…" not in text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("[/conv1]", "[/conv1]"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\rb\tc\x00\x7f\x9b", "a\\rb\\tc\\x00\\x7f\\x9b"),
        ("ab\u202edc", "ab\\u202edc"),
        ("half \udc80", "half \\udc80"),
        ("ä 畳 ±", "ä 畳 ±"),
    ],
)
def test_names_are_data(text, seen):
    assert clean(text) == one_line(text) == seen
    peer = bench_results.PeerResult(text, Timing((4.0,)), 0.0)
    results = bench_results.Results("", network().machine, {}, {text: "why"}, [
        layer_result(rows=[row("cpu.a", 1.0)], name=text, found=[peer]),
        layer_result(rows=[row("cpu.a", 1.0, error=0.5)], name=text, suite=text),
    ])  # fmt: skip
    for width, terminal in ((120, True), (80, False)):
        shows = shown(lambda console: report_terminal.show_results(results, console), width, terminal)
        assert shows.count(seen) >= 4 and ("\x1b" not in shows)


def test_a_name_of_several_lines_stays_in_its_cell():
    assert one_line("a\nb") == "a\\nb" and clean("a\nb") == "a\nb"
