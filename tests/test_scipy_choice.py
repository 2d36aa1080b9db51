"""Our choices beside SciPy's, on problems drawn as SciPy drew its own."""

import numpy as np
import pytest
from click.testing import CliRunner

from convalgos.tools.cli.main import main
from convalgos.tools.evaluate import scipy_choice
from convalgos.tools.evaluate.scipy_choice import ChoiceTimed


def judged(shape=(100,), pick="cpu.direct", **more):
    times = {"cpu.direct": 2e-5, "cpu.im2col.own": 1.6e-5, "cpu.fft.overlap": 4e-5}
    values = {
        "shape1": shape, "shape2": (9,) * len(shape), "mode": "full", "scipy_pick": "fft", "pick": pick,
        "scipy_s": {"direct": 1e-5, "fft": 3e-5}, "scipy_call_s": 3e-5, "algorithms_s": times, "call_s": 2e-5,
    }  # fmt: skip
    return ChoiceTimed(**values | more)


def test_problems_are_drawn_from_the_ranges():
    rng = np.random.default_rng(0)
    for _ in range(200):
        (n,), (k,) = scipy_choice.draw_shapes(1, "full", rng)
        assert min(n, k) >= 3 and max(n, k) < 5e4
        (n1, n2), (k1, k2) = scipy_choice.draw_shapes(2, "same", rng)
        assert 10 <= n1 <= n2 < 3 * n1 and 3 <= k1 <= k2 < 3 * k1 and n1 < 500 and k1 < 75
        shape1, shape2 = scipy_choice.draw_shapes(2, "valid", rng)
        assert min(shape1) >= max(shape2)


def test_regrets():
    assert judged().theirs == pytest.approx(3) and judged(scipy_pick="direct").theirs == 1
    assert judged().ours == pytest.approx(1.25) and judged(pick="cpu.im2col.own").ours == 1
    assert judged().ours_of_two == 1 and judged(pick="cpu.fft.overlap").ours_of_two == pytest.approx(2.5)


@pytest.mark.parametrize(("shapes", "mode"), [(((40,), (7,)), "same"), (((9, 12), (3, 4)), "valid")])
def test_everything_is_timed(shapes, mode, monkeypatch, wisdom):
    monkeypatch.setattr(scipy_choice, "HOPELESS", 1.0)
    found = scipy_choice.time_choice(*shapes, mode, rounds=1)
    assert found.scipy_s.keys() == {"direct", "fft"} and found.pick in found.algorithms_s
    assert min(found.theirs, found.ours, found.ours_of_two) >= 1
    monkeypatch.setattr(scipy_choice, "LONGEST", -1.0)
    again = scipy_choice.time_choice(*shapes, mode, rounds=1)
    assert again.scipy_pick == "direct" or again.scipy_s.keys() == {"fft"}


def test_the_command_prints_what_was_recorded(tmp_path, monkeypatch):
    def record(count, seed, progress):
        return [judged(), judged((9, 9), "cpu.im2col.own")][:count]

    monkeypatch.setattr(scipy_choice, "record_choices", record)
    path = str(tmp_path / "times.json")
    first = CliRunner().invoke(main, ["select", "scipy", "--count", "2", "--json", path])
    assert first.exit_code == 0, first.output
    assert scipy_choice.read_choices([path]) == record(2, 0, None)
    again = CliRunner().invoke(main, ["select", "scipy", path])
    assert again.output == first.output
    assert "1-D: SciPy's, of direct and fft" in again.output and "1.50x in 2-D" in again.output
    (tmp_path / "times.json").write_text('[{"shape1": 3}]')
    bad = CliRunner().invoke(main, ["select", "scipy", path])
    assert bad.exit_code == 2 and "is not a table of convalgos select scipy" in bad.output
