// What the five forward programs of depthwise convolutions are told of their launch.
//
// Every filter sees one channel, so there is no product of matrices to share work. Each program is one form of the
// same sums, and gpu/depthwise.py chooses among them. Weights are in sum_t, (K, T, R, S filled up to whole fours) or,
// channels last, (T, R, S, K).
#pragma once
#include "depthwise.cuh"

struct Params {
    small_t threads;             // in all, or staged planes in all
    small_t planes;              // staged: of a block
    small_t block_x, block_y;    // staged: threads of a block over a plane
    small_t pitch, height;       // staged: elements from row to row, and rows, of a plane in shared memory
    small_t filters;             // staged: of a block: 1 where all its planes are images of one
    small_t last;                // plain: whether channels are the fastest index
    Divisor columns, rows;       // of threads over a plane: ceil(Q / TX), ceil(P / TY); staged: of blocks
    Divisor depth, k, images;    // out[0]; filters, or packs of them; images
    Divisor multiplier;          // filters of a channel
    Divisor group, across;       // staged: threads that share their rows; of them, over a row
    Divisor chunks, tile_rows;   // staged: of 32 elements in a pitch; height
    Divisor weights;             // staged: R * taps / 4
};
