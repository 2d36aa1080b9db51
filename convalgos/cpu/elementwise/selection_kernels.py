"""The driver that writes chosen channels of several maps side by side, in every layout."""

from __future__ import annotations

import numpy as np

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors.simd import carray, copy_bytes, pointer

# y is (images, blocks, pixels, `together` channels), of which there are `channels`: what is left of the last
# block is 0. What was there before is computed with, run by run, until it has no full digits, and each
# operation takes a hundred cycles. `sources`: for each channel the address of its first pixel, and bytes to
# the next pixel and image. `whole`: for each block whether it is a block of a map as it is.
SELECT_FIELDS = fields("y sources whole images channels blocks pixels together y_n chunk tasks")
SOURCE = np.dtype([("first", np.int64), ("pixel", np.int64), ("image", np.int64)])


@jit.specialise
def select_share() -> jit.Kernel:
    """The units of a task: runs of pixels of a block. Elements have four bytes."""

    def select_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SELECT_FIELDS)[0]
        sources = carray(pointer(a.sources), a.channels, SOURCE)
        whole = carray(pointer(a.whole), a.blocks, np.int64)
        units = (a.pixels + a.chunk - 1) // a.chunk
        total = a.images * a.blocks * units
        for unit in range(total * task // a.tasks, total * (task + 1) // a.tasks):
            first = unit % units * a.chunk
            block = unit // units % a.blocks
            n = unit // (units * a.blocks)
            count = min(a.chunk, a.pixels - first)
            y = a.y + (n * a.y_n + (block * a.pixels + first) * a.together) * 4
            channel = block * a.together
            if whole[block]:
                source = sources[channel]
                copy_bytes(y, source.first + n * source.image + first * source.pixel, count * a.together * 4)
            else:
                for i in range(min(a.together, a.channels - channel)):
                    source = sources[channel + i]
                    step = source.pixel // 4
                    x = carray(
                        pointer(source.first + n * source.image + first * source.pixel),
                        count * step,
                        np.int32,
                    )
                    to = carray(pointer(y + i * 4), count * a.together, np.int32)
                    for j in range(count):
                        to[j * a.together] = x[j * step]
                for i in range(min(a.together, a.channels - channel), a.together):
                    beyond = carray(pointer(y + i * 4), count * a.together, np.int32)
                    for j in range(count):
                        beyond[j * a.together] = 0

    return select_share
