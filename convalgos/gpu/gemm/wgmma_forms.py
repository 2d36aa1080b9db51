"""The tiles of `gpu.implicit_gemm.wgmma_*`, and the forms of its kernel: how warps and blocks share the work.

In the plain form two warpgroups sum up one tile, then both stop to write it. The others are further builds,
to be raced on hardware: in `pingpong` each is a team with a tile of its own, and writes while the other
multiplies; in `cluster` two blocks with the same filters copy half of them each, to both; in `bulk` sums are
rounded into shared memory, from where the copy engine brings them to y while the next tile is summed.

Never run on hardware. Source: CUTLASS 3's documentation ("Efficient GEMM in CUDA") for the ideas; the costs
are estimates, made of counts of instructions.
"""

from __future__ import annotations

from typing import NamedTuple

from convalgos.core.problem import ConvProblem

ROW_BYTES = 128  # of channels in a step, as in implicit_gemm_wgmma.cu
ALIGNED = 1024  # bytes: of stages; dynamic shared memory itself starts at a multiple of 128
BULK_STOP = 0.5  # of the plain stop: 800 instructions a warp for 1,880, and half the tile to wait for


class WgmmaTile(NamedTuple):
    """Outputs of a block or a team: pixels x filters channels last, filters x pixels channels first."""

    rows: int
    columns: int
    stages: int  # that copies run ahead
    blocks: int  # that share a multiprocessor

    def pixels(self, problem: ConvProblem) -> int:
        return self.rows if problem.layout == "channels_last" else self.columns

    def filters(self, problem: ConvProblem) -> int:
        return self.columns if problem.layout == "channels_last" else self.rows


class WgmmaForm(NamedTuple):
    name: str  # the last part of the id
    tiles: tuple[WgmmaTile, ...]
    pingpong: bool = False
    cluster: int = 1  # blocks that share filters
    bulk: bool = False

    def shared_bytes(self, tile: WgmmaTile) -> int:
        """Stages; sums on their way to y; two barriers a stage, and one for the turns of each warpgroup."""
        stage = (tile.rows + tile.columns) * ROW_BYTES + 2 * 8
        block = 32 if tile.blocks == 1 else 16  # columns of 16 rows that each of eight warps writes at once
        staged = 16 * (256 + 16) if self.bulk else 16 * (block + 8) * 4
        return ALIGNED - 128 + tile.stages * stage + 8 * staged + 2 * 8

    def read_bytes(self, tile: WgmmaTile, problem: ConvProblem) -> float:
        """That a block asks of L2 in a step."""
        return (tile.pixels(problem) + tile.filters(problem) / self.cluster) * ROW_BYTES

    def duration(self, tiles: int, steps: float, stop: float) -> float:
        """Of so many tiles one after the other, in steps, where a tile stops its warpgroups for some."""
        if self.pingpong:  # half as many warps write a tile
            return max(tiles * steps + 2 * stop, tiles * (steps / 2 + stop))
        return tiles * (steps + stop * (BULK_STOP if self.bulk else 1.0))


PLAIN = WgmmaForm(
    "",
    (
        WgmmaTile(128, 256, 4, 1),
        WgmmaTile(256, 128, 4, 1),
        WgmmaTile(128, 192, 5, 1),
        WgmmaTile(128, 128, 6, 1),
        WgmmaTile(128, 64, 4, 2),
        WgmmaTile(64, 256, 5, 1),
    ),
)
WIDE, TALL, _, SQUARE, SMALL, _ = PLAIN.tiles
# Of 8 bits. Those of floats have two sums for each output of a thread: of a step, and of all before.
FORMS = {
    "int8": WgmmaForm("", (WIDE, TALL, SQUARE, SMALL)),
    "float8": WgmmaForm("", (SQUARE, SMALL)),
}
RACED = (
    WgmmaForm("pingpong", (SQUARE, WgmmaTile(64, 256, 5, 1)), pingpong=True),
    WgmmaForm("cluster", (WIDE, TALL), cluster=2),
    WgmmaForm("pingpong_cluster", (SQUARE,), pingpong=True, cluster=2),
    WgmmaForm("bulk_cluster", (WIDE,), cluster=2, bulk=True),
)
