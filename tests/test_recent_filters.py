"""Small filters that are kept prepared between calls: never one that is out of date, nor without a bound."""

import threading

import numpy as np
import pytest

import convalgos as ca
from convalgos.core import plan, recent_filters, workspaces

PROBLEM = ca.ConvProblem.parse("n1 c4 h6 w7 k6 r3 s3 p1")
RNG = np.random.default_rng(5)
X, W = (RNG.integers(-4, 5, s).astype("f4") for s in (PROBLEM.x_shape, PROBLEM.w_shape))
PLAN = ca.plan(PROBLEM, algorithm="cpu.direct")
REFERENCE = ca.plan(PROBLEM, algorithm="cpu.reference")


@pytest.fixture(autouse=True)
def nothing_kept():
    recent_filters.forget_recent()
    yield
    recent_filters.forget_recent()


@pytest.fixture
def prepared(monkeypatch):
    """How many filters were prepared."""
    count, own_form = [], plan.Plan._in_own_form

    def counted(self, *given):
        count.append(self)
        return own_form(self, *given)

    monkeypatch.setattr(plan.Plan, "_in_own_form", counted)
    return count


def check(w, made=PLAN, reference=REFERENCE, **how):
    assert np.array_equal(made(X, w, **how), reference(X, w.copy(), **how))


def test_a_filter_is_prepared_once_while_its_bytes_are_the_same(prepared):
    w = W.copy()
    y = np.empty(PROBLEM.y_shape, "f4")
    first = PLAN(X, w)
    assert np.array_equal(PLAN(X, w, out=y), first)
    assert np.array_equal(ca.conv(X, w, padding=1, algorithm="cpu.direct"), first)
    assert np.array_equal(PLAN(X, w, bias=np.zeros(6, "f4"), activation="relu"), np.maximum(first, 0))
    assert np.array_equal(PLAN(X, w, residual=first), 2 * first)
    assert len(prepared) == 1  # that of `conv` is another plan, of the same form
    for at in (0, 1, W.size // 2, W.size - 1):
        w.flat[at] += 1
        check(w), check(w)
    w[...] = W
    assert np.array_equal(PLAN(X, w), first)
    w[...] = np.where(W == 0, -0.0, W)  # equal, and of other bytes
    before = len(prepared)
    assert np.array_equal(PLAN(X, w), first) and len(prepared) == before + 1


def test_plans_for_many_sizes_share_a_filter(prepared):
    w = W.copy()
    forms = set()
    for h, width in ((6, 7), (9, 4), (12, 12), (5, 30), (6, 7)):
        problem = ca.ConvProblem((1, 4, h, width), W.shape, padding=1)
        x = RNG.integers(-4, 5, problem.x_shape).astype("f4")
        made = ca.plan(problem, algorithm="cpu.direct")
        check_of = ca.plan(problem, algorithm="cpu.reference")
        assert np.array_equal(made(x, w), check_of(x, w))
        forms.add(made._key)
    of_direct = [p for p in prepared if p.algorithm == "cpu.direct"]
    assert len(of_direct) == len(forms) < 5


def test_other_views_of_the_same_memory_are_other_filters():
    w = W.copy()
    check(w)
    for view in (w.transpose(0, 1, 3, 2), w[:, :, ::-1], np.ascontiguousarray(w.T).T, w):
        check(view), check(view)
    turned = w.reshape(4, 6, 3, 3).swapaxes(0, 1)
    check(turned), check(w)
    for wrong, error in ((w.reshape(4, 6, 3, 3), ValueError), (w.view("i4"), TypeError)):
        with pytest.raises(error):
            PLAN(X, wrong)
    check(w)


def test_plans_keep_to_themselves():
    """One array as the filter of several plans, of which one turns it round."""
    w = W.copy()
    for _ in range(2):
        check(w)
        for change in ({"mode": "convolution"}, {"layout": "channels_last"}, {"padding": 2}):
            problem = PROBLEM.replace(**change)
            x = X if problem.layout == "channels_first" else np.moveaxis(X, 1, -1)
            made, reference = (ca.plan(problem, algorithm=f"cpu.{a}") for a in ("direct", "reference"))
            assert np.array_equal(made(x, w), reference(x, w))
        dy = np.ones(PROBLEM.y_shape, "f4")
        found, expected = (
            ca.conv_backward_data(dy, w, X.shape, padding=1, algorithm=f"cpu.{a}")
            for a in ("direct", "reference")
        )
        assert np.array_equal(found, expected)
        w += 1


@pytest.mark.parametrize(
    "change, name",
    [({"layout": "channels_last"}, "cpu.direct.reordered"), ({"boundary": "wrap"}, "cpu.direct")],
)
def test_plans_around_another_keep_filters_as_that_one_does(change, name, prepared):
    problem = PROBLEM.replace(**change)
    made, w = ca.plan(problem, algorithm=name), W.copy()
    x = np.ones(problem.array_shapes[0], "f4")
    first = made(x, w)
    assert np.array_equal(made(x, w), first) and prepared.count(made) == 1
    w += 1
    assert not np.array_equal(made(x, w), first) and prepared.count(made) == 2


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gradients_keep_filters_that_do_not_change(stride, prepared):
    problem = PROBLEM.replace(stride=stride, direction="backward_data")
    made, exact = (ca.plan(problem, algorithm=f"cpu.{a}") for a in ("direct", "reference"))
    dy, w = np.ones(problem.y_shape, "f4"), W.copy()
    for counted in (1, 1, 1):
        assert np.array_equal(made(dy, w), exact(dy, w.copy())) and prepared.count(made) == counted


def test_a_filter_that_changed_is_kept_when_it_comes_again(prepared):
    w = W.copy()
    for step in range(4):  # of training
        w[...] = W + step
        check(w)
    assert prepared.count(PLAN) == 4 and recent_filters.bytes_held() < 8 * w.nbytes
    for _ in range(4):
        check(w)
    assert prepared.count(PLAN) == 5


def test_what_is_kept_is_of_one_moment(monkeypatch):
    """Another thread writes to a filter while it is prepared, and later writes back what was there."""
    w, pack = W.copy(), type(PLAN).pack_filter

    def written_meanwhile(self, given):
        w[...] = 7
        return pack(self, given)

    monkeypatch.setattr(type(PLAN), "pack_filter", written_meanwhile)
    PLAN(X, w)
    monkeypatch.undo()
    w[...] = W
    check(w)


def test_an_answer_written_over_the_filter():
    memory = np.zeros(PLAN.problem.y_shape, "f4")
    w = memory.reshape(-1)[: W.size].reshape(W.shape)
    for _ in range(3):
        w[...] = W
        y = PLAN(X, w, out=memory)
        assert y is memory and np.array_equal(y, REFERENCE(X, W))


def test_memory_is_bounded_and_given_back(monkeypatch, prepared):
    filters = [np.full(PROBLEM.w_shape, value, "f4") for value in range(40)]
    monkeypatch.setattr(workspaces, "most", lambda: 32 * 10 * 2 * W.nbytes)
    for w in filters:
        check(w)
        assert 2 * W.nbytes <= recent_filters.bytes_held() <= 10 * 2 * W.nbytes
    count = len(prepared)
    check(filters[-1])
    check(filters[0])
    assert len(prepared) == count + 2 + 1  # of the reference twice, and of the one that was let go
    ca.forget_plans()
    assert recent_filters.bytes_held() == 0 and not recent_filters._kept
    large = ca.ConvProblem.parse("n1 c128 h2 w2 k129 r1 s1")
    ca.plan(large, algorithm="cpu.direct")(np.ones(large.x_shape, "f4"), np.ones(large.w_shape, "f4"))
    assert recent_filters.bytes_held() == 0


def test_threads_with_filters_of_their_own():
    wrong = []

    def use(value):
        w = W.copy()
        for turn in range(60):
            w[...] = W * (value + turn % 3)
            if not np.array_equal(PLAN(X, w), first * (value + turn % 3)):
                wrong.append(value)

    first = REFERENCE(X, W)
    threads = [threading.Thread(target=use, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
