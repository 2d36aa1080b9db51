"""What Table, Ranking and Plan show of themselves: in a shell, in a notebook, as plain data, as a frame."""

import json
import sys
from types import SimpleNamespace

import pytest
from test_bench import layer_result, row

import convalgos as ca
from convalgos.select.ranking import Rejection

PROBLEM = ca.ConvProblem.parse("n1 c8 h14 w14 k8 r3 s3 p1")


def table(**more):
    return layer_result(PROBLEM, rows=[row("cpu.a", 1e-3), row("cpu.b", 2e-3)], **more).table


@pytest.fixture(params=["table", "ranking", "plan"])
def shown(request):
    return {"table": table, "ranking": lambda: ca.explain(PROBLEM), "plan": lambda: ca.plan(PROBLEM)}[
        request.param
    ]()


def test_repr_is_a_short_paragraph_with_the_gist(shown):
    text = repr(shown)
    assert str(PROBLEM) in text and "cpu." in text and len(text) < 300 and "\n" not in text
    assert text.startswith(f"<{'Plan' if isinstance(shown, ca.core.plan.Plan) else type(shown).__name__} of ")


def test_repr_tells_times_and_counts():
    assert "cpu.a is the fastest, 1000.0 us" in repr(
        table()
    ) and "2 candidates, 0 rejected, 0 failed" in repr(table())
    ranking = ca.explain(PROBLEM)
    assert f"{ranking.candidates[0].id}, " in repr(ranking) and "x faster than" in repr(ranking)
    assert f"{len(ranking.candidates)} candidates, {len(ranking.rejected)} rejected" in repr(ranking)
    nothing = layer_result(PROBLEM, None, [], failed=[Rejection("cpu.a", "no")]).table
    assert "nothing was measured" in repr(nothing) and "1 failed" in repr(nothing)
    assert "no algorithm can serve it" in repr(ca.explain(PROBLEM, allow="cpu.depthwise"))
    assert "workspace 0." in repr(ca.plan(PROBLEM, algorithm="cpu.direct"))


def test_to_dict_is_plain_and_has_units_in_its_names(shown):
    found = shown.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["problem"] == str(PROBLEM)
    for candidate in found.get("candidates", [found]):
        assert isinstance(candidate["workspace_bytes"], int) and candidate["algorithm"].startswith("cpu.")


def test_to_dict_has_what_was_found():
    found = table().to_dict()
    assert [c["median_s"] for c in found["candidates"]] == [1e-3, 2e-3]
    assert all(len(c["samples_s"]) >= 1 and c["error"] <= c["error_bound"] for c in found["candidates"])
    unknown = layer_result(PROBLEM, rows=[row("cpu.a", 1.0, error=float("nan"))]).table.to_dict()
    assert unknown["candidates"][0]["error"] is None
    ranking = ca.explain(PROBLEM, strict_nan=True)
    found = ranking.to_dict()
    assert found["pick"] == ranking.candidates[0].id and found["limit_costs"]["strict_nan"] >= 1
    assert found["candidates"][0]["predicted_s"] == ranking.candidates[0].predicted
    assert {r["algorithm"] for r in found["rejected"]} == {r.id for r in ranking.rejected}


def test_a_notebook_gets_a_small_escaped_table(shown):
    html = shown._repr_html_()
    assert html.count("<table>") == 1 and html.count("<tr>") <= 32 and str(PROBLEM) in html
    assert len(html) < 20_000


def test_names_are_escaped_in_a_notebook():
    html = layer_result(PROBLEM, rows=[row("<script>alert(1)</script>", 1.0)]).table._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html
    many = layer_result(PROBLEM, rows=[row(f"cpu.a{i}", 1.0) for i in range(50)]).table._repr_html_()
    assert "and 20 more" in many


def test_a_frame_has_a_row_for_each_candidate(shown, monkeypatch):
    rows = []
    pandas = SimpleNamespace(DataFrame=lambda records: rows.extend(records) or "frame")
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert shown.to_frame() == "frame"
    assert len(rows) == len(shown.to_dict().get("candidates", [1]))
    assert len({tuple(r) for r in rows}) == 1 and rows[0]["algorithm"].startswith("cpu.")


def test_without_pandas_a_frame_says_how_to_get_it(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ImportError, match=r"to_frame needs pandas, which is not installed \(pip install pandas\)"
    ):
        shown.to_frame()
