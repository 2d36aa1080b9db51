"""The pages: what is in them, that data stay data, and that a real browser shows them."""

import base64
import itertools
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import keep, show
from click.testing import CliRunner

from convalgos.core.errors import missing
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.gpu.device import GpuMachine
from convalgos.select import ranker, registry
from convalgos.select.measure.table import Row, Table
from convalgos.select.measure.timing import Timing
from convalgos.select.ranking import Rejection
from convalgos.tools.bench import results as bench_results
from convalgos.tools.bench import results_file
from convalgos.tools.bench.suites import Layer, suites
from convalgos.tools.cli.main import main
from convalgos.tools.evaluate import recorded_tables, regret
from convalgos.tools.evaluate import report as evaluate_report
from convalgos.tools.evaluate.model_errors import model_errors
from convalgos.tools.report import charts, html, pick_map
from convalgos.tools.report import page as report_page

pytestmark = pytest.mark.skipif(bool(missing("plotly")), reason=str(missing("plotly")))

ROOT = Path(__file__).parents[1]
MACHINE = Machine("a <machine>", 2, 64, 48 << 10, 1 << 20, 32 << 20, 5e11, 2.5e11, 4e10, 2e11, 3e-6)
H200 = GpuMachine("an H200", (9, 0), 132, 1.98e9, 4.29e12, 50 << 20, 232448, 233472, 65536, 2048)
HOSTILE = "<img src=x onerror=alert(1)></script><b>&amp;"
ALGORITHMS = ("cpu.direct", "cpu.winograd.f4x3", "cpu.im2col.own", "cpu.fft.fftw")


def row(algorithm, seconds, error=1e-7):
    samples = tuple(seconds * f for f in (0.98, 1.0, 1.0, 1.05))
    return Row(algorithm, Timing(samples), 1 << 20, error, 1e-6)


def result(layer, turn, peers=("torch.channels_first", "onnxruntime")):
    base = layer.problem.flops / 4e11 + 1e-5
    rows = [row(a, base * (1 + 0.3 * ((i + turn) % 4))) for i, a in enumerate(ALGORITHMS)]
    found = [bench_results.PeerResult(p, Timing((2 * base, 2.2 * base, 3 * base)), 1e-6) for p in peers]
    found.append(bench_results.PeerResult("scipy", None, None, "not on this"))
    table = Table(layer.problem, tuple(sorted(rows, key=lambda r: r.median_s)), (Rejection("cpu.no", "no"),))
    return bench_results.LayerResult(layer, ALGORITHMS[turn % 3 and 1], table, tuple(found))


def results(*names, more=()):
    layers = [layer for name in names for layer in suites()[name]]
    found = [result(layer, i) for i, layer in enumerate(layers)]
    return bench_results.Results("convalgos bench 'x <y>'", MACHINE, {"numpy": "2.0"}, {}, [*found, *more])


def hostile():
    """A layer, a node and a peer that would like to be markup."""
    layer = Layer(HOSTILE, HOSTILE, ConvProblem.parse("n1 c4 h9 w9 k4 r3 s3"))
    made = results("alexnet", more=[result(layer, 1, peers=(HOSTILE,))])
    made.skipped[HOSTILE] = HOSTILE
    made.layers[-1] = bench_results.LayerResult(
        layer,
        "cpu.direct",
        Table(layer.problem, (row("cpu.direct", 1e-5, error=1.0),), (), (Rejection("cpu.bad", HOSTILE),)),
        made.layers[-1].peers,
    )
    return made


def odd():
    """Layers that nothing serves, that failed, that have no peers, that have one sample."""
    a, b, c, d = suites()["wavenet"]
    alone = Row("cpu.direct", Timing((1.0,)), 0, 0.0, 1e-6)
    found = [
        bench_results.LayerResult(a, None, Table(a.problem, (), (Rejection("cpu.direct", "no"),)), ()),
        bench_results.LayerResult(
            b, "cpu.direct", Table(b.problem, (), (), (Rejection("cpu.direct", "broke"),)), ()
        ),
        bench_results.LayerResult(c, "cpu.direct", Table(c.problem, (alone,), ()), ()),
        bench_results.LayerResult(
            d, "cpu.direct", Table(d.problem, (row("cpu.direct", 1.0, error=float("inf")),), ()), ()
        ),
    ]
    return bench_results.Results("convalgos bench", MACHINE, {}, {}, found)


class Reader(HTMLParser):
    """The elements, the attributes that run script, and the text of cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.events, self.cells, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.events += [name for name, _ in attributes if name.startswith("on")]
        self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data


def figures(text):
    return [
        json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text)
    ]


# --- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [lambda: results("resnet50"), lambda: results("alexnet", "c3d"), odd, hostile]
)
def test_figures_are_what_plotly_takes(made):
    from plotly.graph_objects import Figure

    found = figures(report_page.results_page(made()))
    assert len(found) >= 5
    for figure in found:
        assert Figure(figure).data


def test_everything_is_in_the_page():
    made = results("resnet50")
    text = report_page.results_page(made)
    read = Reader(text)
    shown = set(read.cells)
    for r in made.layers:
        assert {r.layer.name, str(r.problem), "winograd.f4x3"} <= shown
    for words in (
        "Roofline",
        "Regret",
        "What was picked",
        "Error against speed",
        "numpy",
        "a &lt;machine&gt;",
    ):
        assert words in text
    assert "convalgos bench &#x27;x &lt;y&gt;&#x27;" in text
    assert text.count('class="plot"') == len(figures(text)) >= 6
    assert "torch.channels_first" in text and "mean regret" in text


def test_what_is_data_stays_data():
    text = report_page.results_page(hostile())
    read, plain = Reader(text), Reader(report_page.results_page(results("alexnet", more=[])))
    assert not read.events
    assert set(read.tags) <= set(plain.tags) | {"ul", "li", "details", "summary"}
    assert "img" not in read.tags and HOSTILE not in text
    assert f"{HOSTILE}/{HOSTILE}" in read.cells
    for figure in figures(text):  # Plotly, too, takes some text for markup
        assert "<img" not in json.dumps(figure)


def test_what_failed_is_told():
    text = report_page.results_page(odd())
    assert "broke" in text and "over its bound" in text
    assert "failed" in Reader(text).cells and "none" in Reader(text).cells


def test_nothing_measured_is_a_page_too():
    assert "nothing" in report_page.results_page(bench_results.Results("x", MACHINE, {}, {}))


def test_the_same_family_has_the_same_colour_on_every_page():
    some = charts.family_colors(["cpu.winograd.f4x3", "cpu.direct"])
    more = charts.family_colors(["cpu.winograd.f2x3", "cpu.fft.fftw", "cpu.direct", "gpu.direct"])
    assert some.keys() < more.keys() and some["winograd"] == more["winograd"]
    assert len(set(more.values())) == len(more)


def test_the_map_has_a_point_for_each_layer():
    problems = (
        "n1 c8 h9 w9 k8 r3 s3 p1",
        "n9 c8 h9 w9 k8 r3 s3 p1",
        "n1 c8 h4 w4 k2 r3 s3",
        "n1 c8 w9 k8 s3",
    )
    layers = [Layer("s", f"l{i}", ConvProblem.parse(p)) for i, p in enumerate(problems)]
    found = [result(layer, i) for i, layer in enumerate(layers)]
    (others,) = pick_map.picks(
        bench_results.Results("", MACHINE, {}, {}, found)
    )  # kinds of few layers share a map
    assert others[0] == pick_map.OTHERS
    points = [
        (told.split("<br>")[0], x, y)
        for trace in others[1]["data"]
        for told, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
    ]
    at = {name: (x, y) for name, x, y in points}
    assert len(points) == len(at) == 4 and at["l2"] == (4, 4)
    assert at["l0"] != at["l1"] and at["l0"][1] == at["l1"][1] == 8  # of the same sizes: side by side
    assert at["l0"][0] * at["l1"][0] != 81 or at["l3"][0] != 9  # three of the size 9: the middle one is there
    maps = {t: f for t, f, _ in pick_map.picks(results("resnet50", "wavenet"))}
    assert "1-D" in maps and len(maps) > 2
    assert all(sum(len(trace["x"]) for trace in f["data"]) >= pick_map.FEW for f in maps.values())


@pytest.mark.parametrize("made", [lambda: results("resnet50"), odd, lambda: results("alexnet", "c3d")])
def test_axes_cover_their_points_and_have_ticks(made):
    """Also where there is one point, and where a whisker reaches beyond it."""
    checked = 0
    for figure in figures(report_page.results_page(made())):
        for letter in "xy":
            axis = figure["layout"][f"{letter}axis"]
            if "range" not in axis:
                continue
            low, high = (10**v for v in axis["range"]) if axis.get("type") == "log" else axis["range"]
            for trace in figure["data"]:
                if trace.get("mode") == "lines":  # a roof, which goes on
                    continue
                values = [v for v in trace[letter] if v is not None]
                bars = trace.get(f"error_{letter}")
                if bars:
                    values += [v + e for v, e in zip(trace[letter], bars["array"], strict=True)]
                    values += [v - e for v, e in zip(trace[letter], bars["arrayminus"], strict=True)]
                assert all(low < v < high for v in values), (axis["title"], low, high, values)
            if axis.get("type") == "log":
                assert len(axis["tickvals"]) >= 2
                assert all(
                    float(t) == pytest.approx(v)
                    for t, v in zip(axis["ticktext"], axis["tickvals"], strict=True)
                )
                checked += 1
    assert checked >= 3


def test_colours_are_apart():
    """In OKLab (Ottosson 2020), where equal distances look alike."""

    def oklab(color):
        rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        lms = np.array(
            [
                [0.41222147, 0.53633254, 0.05144599],
                [0.2119035, 0.68069955, 0.10739696],
                [0.08830246, 0.28171884, 0.62997870],
            ]
        )
        to_lab = np.array(
            [
                [0.21045426, 0.79361779, -0.00407205],
                [1.9779985, -2.42859221, 0.45059371],
                [0.02590404, 0.78277177, -0.80867577],
            ]
        )
        return to_lab @ np.cbrt(lms @ linear)

    known = charts.family_colors(a.id for a in registry.algorithms())
    colors = [oklab(c) for c in html.COLORS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2)) > 0.12
    looks = [tuple(mark.values()) for mark in charts.marks(known).values()]
    assert len({symbol for _, symbol in looks}) == len(looks) <= len(html.COLORS)


def test_a_bench_of_a_gpu():
    layers = [replace(la, problem=la.problem.replace(dtype="float16")) for la in suites()["alexnet"]]
    found = [
        bench_results.LayerResult(
            la,
            "gpu.cudnn",
            Table(
                la.problem,
                (replace(row("gpu.cudnn", 1e-4), host_s=7e-6), replace(row("gpu.direct", 2e-4), host_s=3e-6)),
                (),
            ),
            (bench_results.PeerResult("torch.channels_last", Timing((2e-4,)), 1e-4),),
        )
        for la in layers
    ]
    text = report_page.results_page(
        bench_results.Results("convalgos bench --device cuda", H200, {}, {}, found)
    )
    cells = Reader(text).cells
    assert "cudnn" in cells and "7.00" in cells and "host us" in text and H200.name in text
    assert any("peak float16" in json.dumps(figure) for figure in figures(text))


@pytest.mark.parametrize("made", [lambda: results("alexnet"), odd, hostile], ids=["usual", "odd", "hostile"])
def test_a_table_is_read_as_it_was_written(made, tmp_path):
    path, out = tmp_path / "table.json", tmp_path / "page.html"
    written = bench_results.as_json(made())
    path.write_text(json.dumps(written))
    assert bench_results.as_json(results_file.read_results(path)) == written
    done = CliRunner().invoke(main, ["report", str(path), str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text() == report_page.results_page(results_file.read_results(path))
    assert made().layers[0].layer.name in CliRunner().invoke(main, ["report", str(path)]).stdout


def test_a_table_of_a_gpu_is_read(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(bench_results.as_json(bench_results.Results("", H200, {}, {}))))
    assert results_file.read_results(path).machine == H200


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:200],
        lambda text: "[]",
        lambda text: text.replace('"layers"', '"lairs"'),
        lambda text: text.replace('"samples_s": [', '"samples_s": [-1.0, ', 1),
        lambda text: text.replace("n16 c3", "q16 c3"),
    ],
)
def test_what_is_no_table_is_refused(damage, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(damage(json.dumps(bench_results.as_json(results("alexnet")))))
    done = CliRunner().invoke(main, ["report", str(path)])
    assert done.exit_code == 2 and "bad.json is not a table of convalgos bench --json" in done.stderr


def test_the_command_writes_the_page(tmp_path):
    path = tmp_path / "new" / "page.html"
    words = ["bench", "n1 c4 h9 w9 k4 r3 s3 p1", "--peers", "none", "--rounds", "1", "--html", str(path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "n1 c4 h9 w9 k4 r3 s3 p1" in path.read_text()


def test_without_plotly_nothing_is_measured_first(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    missing.cache_clear()
    try:
        done = CliRunner().invoke(main, ["bench", "n1 c4 w9 k4 s3", "--html", str(tmp_path / "x.html")])
        assert done.exit_code == 2 and done.stdout == ""
        assert "needs plotly, which is not installed (pip install 'convalgos[report]')" in done.stderr
    finally:
        monkeypatch.undo()
        missing.cache_clear()


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "one": results("resnet50"),
        "several": results("alexnet", "mobilenet_v2", "c3d"),
        "hostile": hostile(),
    }
    for name, found in made.items():
        (folder / f"{name}.html").write_text(report_page.results_page(found))
    tables = [
        recorded_tables.read_table_file(path) for path in (ROOT / "asv_bench" / "tables").glob("epyc*.json")
    ]
    cases = regret.measured_layers(tables)
    judged = [regret.evaluate("analytic", ranker.analytic, cases)]
    selectors = evaluate_report.evaluation_page(judged, judged[0], model_errors(cases), tables)
    (folder / "selectors.html").write_text(selectors)
    return folder


@pytest.mark.parametrize("name", ["one", "several", "hostile", "selectors"])
def test_charts_are_drawn_without_a_complaint_or_a_request(browser, pages, name):
    browser.get_log("browser"), browser.get_log("performance")
    show(browser, pages / f"{name}.html")
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map("
        "p => p.querySelectorAll('.main-svg').length"
        " && p.querySelectorAll('.point, .hm image, .lines path').length)"
    )
    assert len(drawn) >= (1 if name == "selectors" else 5) and all(drawn), drawn
    assert browser.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in asked if e["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(("file:", "data:")) for url in urls)


def cells(browser, column):
    rows = "[...document.querySelector('.table tbody').rows].filter(r => !r.hidden)"
    return browser.execute_script(f"return {rows}.map(r => r.cells[{column}].textContent)")


def test_the_table_sorts_and_filters(browser, pages):
    show(browser, pages / "one.html")
    first = browser.find_element("css selector", ".table")
    headings = first.find_elements("css selector", "thead button")
    names = [h.text.strip() for h in headings]
    for column in ("ms", "onnxruntime", "layer"):
        at = names.index(column)
        kind = str if column == "layer" else float
        for turned in (False, True):
            browser.execute_script("arguments[0].click()", headings[at])
            found = [kind(v) for v in cells(browser, at)]
            assert len(found) == len(suites()["resnet50"])
            key = (
                (lambda v: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", v)])
                if kind is str
                else None
            )
            assert found == sorted(found, key=key, reverse=turned)
    field = browser.find_element("css selector", ".table input")
    field.send_keys("RES2 3x3")
    assert cells(browser, 0) == ["res2_3x3"]
    assert (
        browser.find_element("css selector", ".table output").text == f"1 of {len(suites()['resnet50'])} rows"
    )


def test_ratios_to_the_peers_are_in_sight(browser, pages):
    """On a small laptop, without scrolling sideways."""
    show(browser, pages / "one.html", 1280)
    beyond = browser.execute_script(
        "const box = document.querySelector('.scroll').getBoundingClientRect();"
        "return [...document.querySelectorAll('.table')[0].querySelectorAll('th')]"
        ".filter(th => th.getBoundingClientRect().right > box.right).map(th => th.textContent)"
    )
    assert not {"torch.channels_first", "onnxruntime", "regret"} & set(beyond), beyond


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_whiskers_stand_out_from_their_bars(browser, pages, scheme):
    show(browser, pages / "one.html", 1280, scheme)
    whisker, bar = browser.execute_script(
        "const plot = document.querySelector('.plot'), of = s => getComputedStyle(plot.querySelector(s));"
        "return [of('.errorbar path').stroke, of('.bars .point path').fill]"
    )
    assert abs(light(whisker) - light(bar)) > 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_fits_and_follows_the_scheme(browser, pages, width, scheme):
    for name in ("one", "several", "selectors"):
        show(browser, pages / f"{name}.html", width, scheme)
        keep(browser, f"page-{name}-{width}-{scheme}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        too_wide = (
            "[...document.querySelectorAll('.plot')].filter(p => p.scrollWidth > p.parentNode.clientWidth)"
        )
        assert browser.execute_script(f"return {too_wide}.length") == 0
    style = "getComputedStyle(document.querySelector(arguments[0]))"
    paper = browser.execute_script(f"return {style}.backgroundColor", "body")
    ink = browser.execute_script(f"return {style}.fill", ".plot .xtick text")
    assert (light(paper) > light(ink)) == (scheme == "light")
    assert abs(light(paper) - light(ink)) > 120


def light(color):
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


def test_it_prints_in_light_colours(browser, pages):
    show(browser, pages / "one.html", scheme="dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert light(browser.execute_script("return getComputedStyle(document.body).backgroundColor")) > 250
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert 2 <= len(re.findall(rb"/Type ?/Page\b(?!s)", printed)) <= 20
    plot = (
        "const plot = document.querySelector('.plot');"
        "return [plot.clientWidth, plot.querySelector('.main-svg').clientWidth]"
    )
    assert len(set(browser.execute_script(plot))) == 1  # as wide as before


def test_tables_of_few_rows_have_no_filter():
    few = html.html_table(["a"], [["x"]] * 3, label="t")
    many = html.html_table(["a", "b"], [["x", (2.0, "two")]] * 30, label="t", numeric=["b"])
    assert "<input" not in few and "<input" in many
    assert '<td class="number" data-order="2.0">two</td>' in many
