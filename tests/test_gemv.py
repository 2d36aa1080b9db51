"""Direct convolutions of few outputs, as products of the filter by few vectors."""

import numpy as np
import pytest
from helpers import check

from convalgos import ConvProblem
from convalgos.cpu import direct
from convalgos.cpu.gemm import gemv
from convalgos.cpu.runtime.threads import on_one_thread
from convalgos.cpu.vectors import simd

FEW = [
    "n1 c26 h1 w1 k70 r1 s1",
    "n2 c5 h1 w1 k1 r1 s1",
    "n7 c10 h2 w2 k130 r2 s2",
    "n1 c6 h2 w1 k20 r1 s1",
    "n1 c6 h2 w2 k20 r3 s3 p1",
    "n5 c4 h6 w6 k40 r6 s6",
    "n1 c3 h9 w9 k17 r3 s3 dilation4 stride5",
    "n2 c3 d2 h2 w2 k17 t2 r2 s2",
    "n1 c2 w8 k128 s8 stride8",
    "n1 c600 h1 w1 k700 r1 s1",  # shared by threads
]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("text", FEW)
def test_few_outputs(text, layout):
    for dtype in ("float32", "float64"):
        problem = ConvProblem.parse(text).replace(dtype=dtype, layout=layout)
        assert isinstance(direct.Direct().plan(problem), gemv.GemvPlan)
        check(direct.Direct(), problem)


@pytest.mark.parametrize(
    "text", ["n9 c4 h2 w2 k8 r2 s2", "n1 c4 h1 w1 k8 r1 s1 groups2", "n1 c2 h1024 w1024 k3 r2 s2 stride1023"]
)
def test_others_are_cut_into_blocks(text):
    assert isinstance(direct.Direct().plan(ConvProblem.parse(text)), direct.DirectPlan)


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("n2 c9 h1 w1 k3 r1 s1", False),
        ("n2 c9 h3 w4 k3 r3 s4", False),  # a kernel as large as the map
        ("n1 c1 w12 k3 s4 stride4", False),
        ("n1 c9 h3 w4 k3 r3 s3", True),
        ("n1 c9 h1 w1 k3 r3 s3 p1", True),
        ("n1 c1 h1 w2 k1 r1 s1 p0:1,0", True),  # outputs of nothing but the border,
        ("n1 c1 w1 k3 s2 p1:0", True),  # and a tap of the border before the first element
    ],
)
def test_inputs_that_lie_in_a_row_are_read_there(text, copied):
    for layout in ("channels_first", "channels_last"):
        plan = direct.Direct().plan(ConvProblem.parse(text).replace(layout=layout))
        assert plan.record["copied"][0] == copied


def test_panels_hold_every_filter_once():
    lanes = simd.lanes(4)
    for filters in (1, lanes, 5 * lanes + 1, 9 * lanes, 17 * lanes - 3, 40 * lanes):
        for images in (1, 3, 8):
            cut = gemv.gemv_blocking(ConvProblem((images, 512, 1, 1), (filters, 512, 1, 1)))
            widths = np.diff(cut.vectors_of * np.arange(cut.panels + 1) // cut.panels)
            assert widths.min() > 0 and widths.max() == cut.vectors <= gemv.widest_panel(cut.rows)


@pytest.mark.parametrize("text", ["n1 c4099 h1 w1 k80 r1 s1", "n13 c2099 h1 w1 k30 r1 s1"])  # and rows
def test_bits_do_not_depend_on_the_threads(text):
    problem = ConvProblem.parse(text)
    rng = np.random.default_rng(1)
    x, w, _ = (rng.standard_normal(s, np.float32) for s in problem.array_shapes)
    shared = direct.Direct().plan(problem)
    with on_one_thread():
        alone = direct.Direct().plan(problem)
    assert alone.steps != shared.steps
    assert np.array_equal(shared(x, w), alone(x, w))
