"""Judging selectors on recorded tables: the figures where the answers are known, and the tables shipped."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import run

import convalgos as ca
from convalgos.core.errors import missing
from convalgos.select import choose, devices, ranker, registry
from convalgos.select.measured import Measured
from convalgos.select.ranking import Candidate
from convalgos.tools.bench.suites import sampling, suite
from convalgos.tools.cli.main import main
from convalgos.tools.evaluate import adapting, other_machine, recorded_tables, regret, splits
from convalgos.tools.evaluate import report as evaluate_report
from convalgos.tools.evaluate.learned import Learned
from convalgos.tools.evaluate.model_errors import model_errors
from convalgos.tools.evaluate.recorded_tables import Recorded, RecordedLayer
from convalgos.tools.evaluate.regret import MeasuredLayer

SHIPPED = sorted((Path(__file__).parents[1] / "asv_bench" / "tables").glob("*.json"))
PROBLEM = ca.ConvProblem.parse("n1 c16 h12 w12 k16 r3 s3 p1")
OWN, BLAS, DIRECT = "cpu.im2col.own", "cpu.im2col.blas", "cpu.direct"


def case(suite="net", count=1, **samples):
    """A layer with samples by id, dots as double underscores."""
    times = {k.replace("__", "."): Measured(tuple(v)) for k, v in samples.items()}
    layer = RecordedLayer(suite, "layer", PROBLEM, count, times)
    candidates = tuple(
        Candidate.of(registry.find_algorithm(i), layer.problem, m.median_s) for i, m in times.items()
    )
    return MeasuredLayer(layer, devices.current_machine(), candidates, ())


def always(name):
    return lambda problem, candidates, machine: [0.0 if c.id == name else 1.0 for c in candidates]


def flat(seconds):
    return [seconds] * 4


# --- the parts ---------------------------------------------------------------------------------


def test_no_two_parts_have_a_network_or_a_kind_in_common():
    layers = sampling.sample(suite("convbench"), 600, 4)
    cases = [
        MeasuredLayer(RecordedLayer(la.suite, la.name, la.problem, la.count, {}), None, (), ())
        for la in layers
    ]
    for held_out, of in (
        ("network", lambda c: c.group),
        ("kind", lambda c: c.kind),
        ("random", lambda c: c.layer.name),
    ):
        parts = splits.parts_of(cases, held_out)
        placed = {}
        for part, c in zip(parts, cases, strict=True):
            assert placed.setdefault(of(c), part) == part
        *others, largest = sorted(Counter(parts).values())
        if held_out == "kind":
            assert len(others) == 4
        else:
            most = max(Counter(map(of, cases)).values())  # of a network, which nothing divides
            assert len(others) == splits.FOLDS - 1 and others[-1] - others[0] <= 2
            assert largest <= max(most, others[-1] + 2)
    assert splits.parts_of(cases, "random") == parts != splits.parts_of(cases, "random", seed=1)
    names = {"resnet50_3": "resnet", "resnet18_7": "resnet", "tf_efficientnet_b0_1": "tf"}
    for name, kin in names.items():
        assert splits.network_of(replace(cases[0].layer, name=name)) == kin


# --- the figures -----------------------------------------------------------------------------


def test_regret_and_all_that_follows():
    found = [
        case(cpu__direct=flat(1.0), cpu__im2col__own=flat(2.0)),
        case(cpu__direct=flat(1.0), cpu__im2col__own=flat(1.04), count=3),
        case(cpu__direct=flat(20.0), cpu__im2col__own=flat(4.0)),
    ]
    e = regret.evaluate("own", always(OWN), found)
    assert e.regrets.tolist() == pytest.approx([2.0, 1.04, 1.0])
    assert e.mean == pytest.approx((2.0 * 1.04) ** (1 / 3))
    assert (e.quantile(0.5), e.regrets.max()) == pytest.approx((1.04, 2.0))
    assert (e.within(1.05), e.within(2.0)) == (pytest.approx(2 / 3), 1.0)
    assert e.right == pytest.approx(1 / 3)
    assert e.lost_s == pytest.approx(1.0 + 3 * 0.04)
    single = regret.single_best(found)
    assert single.selector == OWN and single.mean == pytest.approx(e.mean)
    assert e.gap_closed(single) == pytest.approx(0)
    best = regret.evaluate("best", lambda p, candidates, m: [c.predicted for c in candidates], found)
    assert best.mean == 1.0 and best.gap_closed(single) == 1.0 and best.right == 1.0


def test_a_winner_by_luck_does_not_win():
    """One that is fast in one half only would be the oracle by all samples; the other half scores it."""
    lucky = case(cpu__direct=[0.5, 1.5] * 3, cpu__im2col__own=flat(1.0))
    e = regret.evaluate("own", always(OWN), [lucky])
    # even samples: direct wins and is scored 1.5 on the odd ones; odd samples: own wins
    assert e.mean == pytest.approx(math.sqrt((1.0 / 1.5) * 1.0))


def test_ties_count_as_right():
    tied = case(cpu__direct=[1.0, 1.1, 0.9, 1.0], cpu__im2col__own=[1.02, 1.12, 0.92, 1.02])
    e = regret.evaluate("own", always(OWN), [tied])
    assert e.right == 1.0 and e.mean > 1.0
    clear = case(cpu__direct=flat(1.0), cpu__im2col__own=flat(1.02))
    assert regret.evaluate("own", always(OWN), [clear]).right == 0.0


def test_an_algorithm_that_was_not_measured_stands_for_the_slowest():
    found = [
        case(cpu__direct=flat(1.0), cpu__im2col__own=flat(3.0)),
        case(cpu__im2col__own=flat(1.0), cpu__im2col__blas=flat(5.0)),
    ]
    single = regret.single_best(found)
    assert single.selector == OWN and single.mean == pytest.approx(math.sqrt(3.0))


class Learner:
    """Remembers which suites it was fitted to, and picks what was fastest there."""

    fitted: list = []  # noqa: RUF012

    def fit(self, cases):
        Learner.fitted.append(sorted({c.group for c in cases}))
        return always(cases[0].oracle)

    def __call__(self, problem, candidates, machine):
        raise AssertionError("it was not fitted")


def test_what_learns_never_sees_the_network_it_is_judged_on():
    Learner.fitted.clear()
    found = [
        case("a", cpu__direct=flat(1.0), cpu__im2col__own=flat(2.0)),
        case("b", cpu__direct=flat(2.0), cpu__im2col__own=flat(1.0)),
        case("a", cpu__direct=flat(1.0), cpu__im2col__own=flat(2.0)),
    ]
    e = regret.evaluate("learner", Learner(), found)
    assert Learner.fitted == [["b"], ["a"]]
    assert [j.pick for j in e.judged] == [OWN, DIRECT, OWN]
    assert {name: len(g.judged) for name, g in e.by_group().items()} == {"a": 2, "b": 1}
    assert {name: len(g.judged) for name, g in e.by_kind().items()} == {"dense": 3}
    assert e.name == "learner, network held out" != regret.evaluate("own", always(OWN), found).name == "own"


def test_what_learns_never_sees_the_machine_it_is_judged_on():
    Learner.fitted.clear()
    found = [case(suite, cpu__direct=flat(1.0), cpu__im2col__own=flat(2.0)) for suite in "aab"]
    with pytest.raises(ValueError, match="needs the tables of two machines"):
        regret.evaluate("learner", Learner(), found, held_out="machine")
    with pytest.raises(
        ValueError, match="held_out='suite' must be one of 'network', 'kind', 'random', 'machine'"
    ):
        regret.evaluate("learner", Learner(), found, held_out="suite")
    other = replace(found[0].machine, name="other")
    found[1:] = [replace(c, machine=other) for c in found[1:]]
    regret.evaluate("learner", Learner(), found, held_out="machine")
    assert Learner.fitted == [["a", "b"], ["a"]]


def test_candidates_are_those_of_the_machine_of_a_table():
    here = devices.current_machine()
    problems = [PROBLEM, ca.ConvProblem.parse("n2 c3 w20 k4 s3")]
    plain = [choose.survey(p, "cpu", here)[0] for p in problems]
    assert other_machine.survey_there(problems, here) == plain
    (there,) = {16, 32, 64} - {here.vector_bytes, 16 if here.vector_bytes > 16 else 64}
    other = replace(here, vector_bytes=there, threads=here.threads + 1, l2_bytes=here.l2_bytes // 2)
    seen = other_machine.survey_there(problems, other)
    # but for matrix tiles, which need vectors of 64 bytes
    ids = [
        [[c.id for c in found if not c.id.endswith(("bf16x3", "int8x3"))] for found in of]
        for of in (seen, plain)
    ]
    assert ids[0] == ids[1]
    assert all(c.predicted > 0 for found in seen for c in found)
    assert [c.workspace_bytes for c in seen[0]] != [c.workspace_bytes for c in plain[0]]
    assert other_machine.survey_there(problems, here) == plain  # this process still plans for its own


def test_the_errors_of_the_models():
    found = [case(cpu__im2col__own=flat(1.0), cpu__im2col__blas=flat(2.0), cpu__direct=flat(9.0))]
    doubled = [
        c if c.id == OWN else Candidate.of(c.algorithm, c.problem, 2 * c.predicted_s)
        for c in found[0].candidates
    ]
    found = [MeasuredLayer(found[0].layer, found[0].machine, tuple(doubled), ())]
    (error,) = model_errors(found)  # direct is more than 3 times the fastest
    assert (error.name, error.count, error.bias) == ("cpu.im2col", 2, pytest.approx(math.sqrt(2)))
    assert error.scatter == pytest.approx(math.sqrt(2))


def test_errors_of_the_models_are_told_by_kind():
    found = [case(cpu__im2col__own=flat(1.0)), case(cpu__im2col__own=flat(1.0))]
    one = ca.ConvProblem.parse("c8 h9 w9 k8 r1 s1")
    found[1] = replace(found[1], layer=replace(found[1].layer, problem=one))
    found = [mistaken([c], {OWN: wrong})[0] for c, wrong in zip(found, (2.0, 0.5), strict=True)]
    errors = {e.kind: e for e in model_errors(found, by_kind=True)}
    assert {kind: (e.name, e.count, round(e.bias, 9)) for kind, e in errors.items()} == {
        "": (OWN, 2, 1.0), "dense": (OWN, 1, 0.5), "1x1": (OWN, 1, 2.0),
    }  # fmt: skip
    assert (errors[""].low, errors[""].high) == (pytest.approx(0.5 * 4**0.1), pytest.approx(2 / 4**0.1))
    stopped = [replace(c, layer=replace(c.layer, stopped=(OWN,))) for c in found]
    assert model_errors(stopped) == []


# --- noise -------------------------------------------------------------------------------------


def noisy(ratio, sigma, layers=1500):
    """Two candidates of which the second takes this much longer, with a sample of each in each half."""
    rng = np.random.default_rng(0)
    logs = sigma * rng.standard_normal((layers, 2, 2)) + np.log([[1.0], [ratio]])
    return [case(cpu__direct=a, cpu__im2col__own=b) for a, b in np.exp(logs).tolist()]


def test_what_is_noise_of_a_regret_is_told():
    """Of two equal times one is the larger by the noise: half the mean of |a - b| = sigma / sqrt(pi)."""
    sigma = 0.05
    e = regret.evaluate("own", always(OWN), noisy(1.0, sigma))
    expected = math.exp(sigma / math.sqrt(math.pi))
    assert regret.geometric(e.floors) - 1 == pytest.approx(expected - 1, rel=0.05)
    assert regret.geometric(e.timed) - 1 == pytest.approx(expected - 1, rel=0.05), "all of it is noise"
    assert e.mean == pytest.approx(1.0, abs=0.003)
    assert regret.geometric(e.timed) == pytest.approx(e.mean * regret.geometric(e.floors))
    worse = regret.evaluate("own", always(OWN), noisy(1.5, sigma))
    assert regret.geometric(worse.floors) == pytest.approx(1.0, abs=1e-3), "they are told apart"
    assert worse.mean == pytest.approx(1.5, rel=0.005)


# --- the learned correction --------------------------------------------------------------------


def mistaken(found, wrong):
    """The same cases, predicted right but for a factor of each id."""
    return [
        MeasuredLayer(
            c.layer,
            c.machine,
            tuple(replace(k, predicted_s=c.seconds(k.id) / wrong.get(k.id, 1.0)) for k in c.candidates),
            (),
        )
        for c in found
    ]


def test_what_a_model_is_off_by_is_learned():
    found = [
        case(f"net{i}", cpu__direct=flat(1.0 + i % 3), cpu__im2col__own=flat(1.2 + i % 3 / 2))
        for i in range(60)
    ]
    found = mistaken(found, {OWN: 2.0, DIRECT: 0.8})
    fitted = Learned().fit(found)
    one = found[0]
    seconds = dict(
        zip(
            (c.id for c in one.candidates),
            fitted(one.layer.problem, one.candidates, one.machine),
            strict=True,
        )
    )
    assert seconds[OWN] == pytest.approx(one.seconds(OWN), rel=0.1)
    assert seconds[DIRECT] == pytest.approx(one.seconds(DIRECT), rel=0.1)
    assert (
        regret.evaluate("learned", Learned(), found).mean
        < regret.evaluate("analytic", always(OWN), found).mean
    )
    assert regret.evaluate("learned", Learned(), found).right == 1.0


def test_what_was_never_seen_is_not_corrected():
    one = case(cpu__direct=flat(1.0), cpu__im2col__own=flat(2.0))
    assert Learned()(one.layer.problem, one.candidates, one.machine) == [1.0, 2.0]
    fitted = Learned().fit(mistaken([one] * 30, {OWN: 2.0, DIRECT: 2.0}))
    near = one.layer.problem.replace(x_shape=(1, 16, 13, 13))
    assert min(fitted(near, one.candidates, one.machine)) > 1.9
    for text in ("c16 h12 w12 k16 r1 s1", "c16 h12 w12 k16 r3 s3 p1 float64", "c16384 h12 w12 k2 r3 s3 p1"):
        far = fitted(ca.ConvProblem.parse(text), one.candidates, one.machine)
        assert far == pytest.approx([1.0, 2.0], rel=0.01), "another kind, or type, or sizes far away"
    fitted = Learned().fit(mistaken([case(cpu__direct=flat(1.0))] * 30, {DIRECT: 2.0}))
    assert fitted(one.layer.problem, one.candidates, one.machine)[1] == 2.0


@cache
def shipped(path):
    """A hundred layers or more of a table that is kept in git."""
    table = recorded_tables.read_table_file(path)
    return regret.measured_layers([replace(table, layers=table.layers[:: len(table.layers) // 100 or 1])])


@cache
def by_models(path):
    return regret.evaluate("analytic", ranker.analytic, shipped(path))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_correction_does_no_harm_on_networks_it_has_not_seen(path):
    assert regret.evaluate("learned", Learned(), shipped(path)).mean < 1.02 * by_models(path).mean


def test_what_plans_that_adapt_would_do():
    """The second in the order of the predictions is the fastest; the third is not tied, whatever it takes."""
    told = {"cpu.direct": 1.0, OWN: 1.2, BLAS: 2.0}
    one = case(cpu__direct=flat(1.5), cpu__im2col__own=flat(1.0), cpu__im2col__blas=flat(0.8))
    candidates = tuple(replace(c, predicted_s=told[c.id], estimate_s=told[c.id]) for c in one.candidates)
    found = adapting.replay_adapting([replace(one, candidates=candidates)])
    assert found.mean == pytest.approx(1.25) and found.calls == (4.0,) and found.needed == (2.0,)
    assert found.overheads == pytest.approx([(2 * 1.5 + 8 * 1.0) / 10 / 0.8])
    alone = adapting.replay_adapting([replace(one, candidates=candidates[:1])])
    assert alone.calls == (0.0,) and alone.regrets == (1.0,) and "mean regret 1.000" in str(alone)


def test_nothing_to_judge():
    with pytest.raises(ValueError, match="no layer with a candidate"):
        regret.evaluate("x", always(OWN), [])


# --- tables ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench_json(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "table.json"
    done = CliRunner().invoke(
        main, ["bench", "n1 c4 h9 w9 k4 r3 s3 p1", "--peers", "none", "--rounds", "1", "--json", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


def test_a_table_of_bench_is_read_and_made_compact(bench_json, tmp_path):
    table = recorded_tables.read_table_file(bench_json)
    (layer,) = table.layers
    written = json.loads(bench_json.read_text())["layers"][0]
    assert layer.times.keys() == {c["algorithm"] for c in written["candidates"]}
    assert str(layer.problem) == written["problem"]
    small = tmp_path / "small.json"
    small.write_text(recorded_tables.compact_text(table))
    again = recorded_tables.read_table_file(small)
    assert again.machine == table.machine and again.versions == table.versions
    for name, times in layer.times.items():
        assert again.layers[0].times[name].samples_s == pytest.approx(times.samples_s, rel=1e-3)
    assert recorded_tables.compact_text(again) == recorded_tables.compact_text(table)


def test_wrong_results_are_left_out(bench_json, tmp_path):
    found = json.loads(bench_json.read_text())
    found["layers"][0]["candidates"][0]["error"] = None
    found["layers"][0]["candidates"][1]["error"] = 1.0
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(found))
    left = recorded_tables.read_table_file(path).layers[0].times
    assert left.keys() == {c["algorithm"] for c in found["layers"][0]["candidates"][2:]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: text.replace('"layers"', '"lairs"'),
        lambda text: text.replace("n1 c4", "q1 c4"),
        lambda text: text.replace('"samples_s": [', '"samples_s": ["soon", '),
        lambda text: text.replace('"samples_s": [', '"samples_s": [-1.0, '),
    ],
)
def test_a_table_that_is_none_is_refused(bench_json, tmp_path, damage):
    path = tmp_path / "bad.json"
    path.write_text(damage(bench_json.read_text()))
    with pytest.raises(ValueError, match=r"bad\.json is not a table of convalgos bench"):
        recorded_tables.read_table_file(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_shipped_tables_can_be_replayed(path):
    table = recorded_tables.read_table_file(path)
    assert recorded_tables.compact_text(table) == path.read_text()
    assert table.machine.name and table.versions["convalgos"]
    found = shipped(path)
    assert len(found) >= min(100, len(table.layers))
    assert (
        by_models(path).gap_closed(regret.single_best(found)) > 0.5
    )  # the models know far more than one rule does


def test_tables_are_shipped():
    tables = [recorded_tables.read_table_file(path) for path in SHIPPED]
    assert max(len(t.layers) for t in tables) >= 100
    assert max(len({layer.suite for layer in t.layers}) for t in tables) >= 20
    assert len({t.machine for t in tables}) >= 2


# --- what is shown ---------------------------------------------------------------------------


@pytest.mark.skipif(bool(missing("plotly")), reason=str(missing("plotly")))
def test_the_command_judges_loaded_selectors_and_writes_a_page(bench_json, tmp_path, monkeypatch):
    monkeypatch.setattr(ranker, "_rankers", dict(ranker._rankers))
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import convalgos as ca\n"
        "def slowest(problem, candidates, machine):\n"
        "    return [1e9 - c.predicted for c in candidates]\n"
        "ca.select.register('slowest', slowest)\n"
    )
    page = tmp_path / "picks.html"
    text = run("select", "evaluate", bench_json, "--load", mine, "--html", page).stdout
    assert "analytic" in text and "slowest" in text and "cpu.reference" in text
    assert "noise floor" in text and all(f"learned, {part} held out" in text for part in splits.DEFAULT)
    html = page.read_text()
    assert html.count('class="plot"') >= 2
    assert "Picks of slowest" in html and "n1 c4 h9 w9 k4 r3 s3 p1" in html
    how = "--selector", "slowest", "--selector", "learned", "--hold-out", "kind", "--models"
    only = run("select", "evaluate", bench_json, *how).stdout
    assert "analytic" not in only and "network held out" not in only and "kind held out" in only
    assert re.search(r"cpu\.\S+ +dense +1 ", only)
    missing = run("select", "evaluate", bench_json, "--selector", "none", status=2)
    assert "selector='none' must be one of analytic, learned, slowest" in missing.stderr


def test_the_command_that_compacts(bench_json, tmp_path):
    path = tmp_path / "small.json"
    assert "1 layers" in run("select", "compact", bench_json, path).stdout
    assert recorded_tables.read_table_file(path).layers
    assert "is not a table" in run("select", "evaluate", mangled(path), status=2).stderr


def mangled(path):
    path.write_text(path.read_text()[:-30])
    return path


@pytest.mark.skipif(bool(missing("plotly")), reason=str(missing("plotly")))
def test_names_are_escaped():
    bad = case("<b>net</b>", cpu__direct=flat(1.0), cpu__im2col__own=flat(3.0))
    e = regret.evaluate("own", always(OWN), [bad])
    page = evaluate_report.evaluation_page(
        [e], regret.single_best([bad]), [], [Recorded(bad.machine, {}, ())]
    )
    assert "<b>" not in page and "&lt;b&gt;net" in page
