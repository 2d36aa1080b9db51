"""The cost of indirect convolution: what the busiest thread sums."""

from convalgos import ConvProblem
from convalgos.core.profiles import nominal
from convalgos.cpu.indirect import Indirect


def test_one_panel_of_one_piece_is_summed_by_one_thread():
    one, many = (ConvProblem.parse(f"n{n} c64 h28 w28 k64 r4 s4 stride4 channels_last") for n in (1, 8))
    alone, shared = ([Indirect().cost(p, nominal(threads)) for threads in (1, 2)] for p in (one, many))
    assert alone[1] > 0.9 * alone[0]
    assert shared[1] < 0.6 * shared[0]
