"""Groups of channels in blocked layouts: a block holds channels of one group only."""

from __future__ import annotations

from convalgos.core.layouts import BLOCKS
from convalgos.core.problem import ConvProblem


def why_not_in_blocks(problem: ConvProblem) -> str | None:
    """Why groups cannot be read or written in the blocks of a problem's layouts, or None.

    Example:
        >>> why_not_in_blocks(ConvProblem.parse("c24 w8 k32 s3 groups2 blocked16"))
        'takes groups of whole blocks of 16 channels only, not of 12'
    """
    p = problem
    for layout, channels in ((p.layout, p.w_shape[1]), (p.y_layout, p.gemm_n)):
        if p.groups > 1 and layout in BLOCKS and channels % BLOCKS[layout]:
            return f"takes groups of whole blocks of {BLOCKS[layout]} channels only, not of {channels}"
    return None
