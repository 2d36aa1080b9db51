"""Winograd: both kinds of schedule, every form, stride, dilation and layout, against the reference."""

import pytest
from helpers import check

from convalgos import ConvProblem
from convalgos.cpu.winograd import Winograd


@pytest.mark.parametrize("m", [2, 4, 6])
def test_answers(m):
    check(Winograd(m), ConvProblem.parse("n2 c20 h15 w33 k36 r3 s3 p1"))
