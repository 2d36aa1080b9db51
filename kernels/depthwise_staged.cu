// Depthwise convolution, channels first, any kernel: a block brings planes of x to shared memory; a thread slides a
// window of registers along each row, four taps at a time. Bound by arithmetic.
//
// Macros: element_t; TX and TY (outputs of a thread along a row and a column); STRIDE (along both).
#include "depthwise_forward.cuh"

constexpr int HELD = round_up((TX - 1) * STRIDE, 4);  // of the window, from one four taps to the next
constexpr int MOST_THREADS = 256;

// The products of one row of x with the taps s .. s + count of the rows of a filter that it meets: row i of the
// inputs of a thread and row i - o * STRIDE of the filter make sums[o]. ALL: every o has one.
template <bool ALL>
__device__ inline void multiply(const sum_t* w_row, small_t i, small_t kernel_h, small_t taps, small_t count,
                                const sum_t (&window)[HELD + 4], sum_t (&sums)[TY][TX]) {
#pragma unroll
    for (int o = 0; o < TY; o++) {
        if (!ALL && !inside(i - o * STRIDE, kernel_h)) continue;
        const Pack<sum_t, 4> four = load_pack<4>(w_row - o * STRIDE * taps);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (e < count)
#pragma unroll
                for (int j = 0; j < TX; j++) sums[o][j] += window[j * STRIDE + e] * four.v[e];
    }
}

// Planes are numbered with the images of a filter next to one another.
// w (K, T, R, taps): taps = round_up(S, 4). Shared: params.planes of (height, pitch), then weights of params.filters.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
staged(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
       element_t* __restrict__ y, const Conv p, const Params params) {
    const small_t tid = threadIdx.x, threads = blockDim.x, lane = tid % 32;
    unsigned rest = blockIdx.x;
    const small_t first_q = take(rest, params.columns) * params.block_x * TX;
    const small_t first_p = take(rest, params.rows) * params.block_y * TY;
    const small_t depth = take(rest, params.depth);
    const small_t first_plane = rest * params.planes;
    // Rows of padding are not stored: what lies outside of x is skipped.
    const small_t top = most(first_p * STRIDE - p.pad[1], 0), first_w = first_q * STRIDE - p.pad[2];

    const small_t taps = round_up(p.kernel[2], 4), weights = p.kernel[1] * taps;
    const small_t plane_size = params.height * params.pitch;
    sum_t* x_tile = static_cast<sum_t*>(dynamic_shared());
    sum_t* w_tile = x_tile + params.planes * plane_size;

    // Threads of the same rows follow one another, so that whole warps skip rows together.
    rest = tid;
    unsigned mine = take(rest, params.group);
    const small_t column = take(mine, params.across), row = rest;
    const bool works = mine < params.planes && row < params.block_y && first_plane + small_t(mine) < params.threads;
    const small_t first_h = (first_p + row * TY) * STRIDE - p.pad[1];
    const sum_t* x_mine = x_tile + small_t(mine) * plane_size + column * TX * STRIDE;
    const sum_t* w_mine = w_tile + (params.filters == 1 ? 0 : small_t(mine)) * weights;
    sum_t sums[TY][TX] = {};

    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;  // for all threads
        __syncthreads();
        const small_t items = params.planes * params.height * params.chunks.by;
#pragma unroll 4
        for (small_t item = tid / 32; item < items; item += threads / 32) {  // a warp to 32 elements of a row
            unsigned left = item;
            const small_t j = take(left, params.chunks) * 32 + lane, at = left * params.pitch + j;
            const small_t h = top + take(left, params.tile_rows), column_w = first_w + j;
            unsigned filter = first_plane + left;
            const bool there = filter < params.threads && h < p.size[1] && inside(column_w, p.size[2]);
            const small_t image = take(filter, params.images);
            take(filter, params.multiplier);  // now the channel
            const element_t* plane = x + image * p.x_image + index_t(filter) * p.x_channel;
            const sum_t v = there ? widen(plane[(d * p.size[1] + h) * p.size[2] + column_w]) : sum_t(0);
            if (j < params.pitch) x_tile[at] = v;
        }
        for (small_t i = tid; i < params.filters * small_t(params.weights.by); i += threads) {
            unsigned left = i;
            const small_t at = take(left, params.weights) * 4;
            unsigned filter = first_plane + left;
            const bool there = filter < params.threads;
            take(filter, params.images);
            const sum_t* from = w + (index_t(filter) * p.kernel[0] + t) * weights + at;
            store_pack<4>(w_tile + i * 4, load_pack_or_zeros<4>(from, there));
        }
        __syncthreads();
        if (!works) continue;
        for (small_t i = 0; i < (TY - 1) * STRIDE + p.kernel[1]; i++) {
            const small_t h = first_h + i;
            if (!inside(h, p.size[1])) continue;
            const bool all = i >= (TY - 1) * STRIDE && i < p.kernel[1];  // the same for all threads
            const sum_t *from = x_mine + (h - top) * params.pitch, *w_row = w_mine + i * taps;
            sum_t window[HELD + 4];
#pragma unroll
            for (int j = 0; j < HELD; j += 4) widen_pack(load_pack<4>(from + j), window + j);
            for (small_t s = 0; s < p.kernel[2]; s += 4) {
                widen_pack(load_pack<4>(from + HELD + s), window + HELD);
                if (p.kernel[2] - s < 4)
                    multiply<false>(w_row + s, i, p.kernel[1], taps, p.kernel[2] - s, window, sums);
                else if (all)
                    multiply<true>(w_row + s, i, p.kernel[1], taps, 4, window, sums);
                else
                    multiply<false>(w_row + s, i, p.kernel[1], taps, 4, window, sums);
#pragma unroll
                for (int j = 0; j < HELD; j++) window[j] = window[j + 4];
            }
        }
    }
    const small_t q = first_q + column * TX, first_row = first_p + row * TY;
    if (!works || q >= p.out[2]) return;
    unsigned filter = first_plane + mine;
    const small_t image = take(filter, params.images);
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + image * p.y_image + index_t(filter) * p.y_channel + depth * p.out[1] * p.out[2];
#pragma unroll
    for (int o = 0; o < TY; o++) {
        const small_t at = first_row + o;
        if (at < p.out[1])
            store_row<TX>(y_plane + at * p.out[2] + q, sums[o], b, p.out[2] - q, p.out[2], p.relu);
    }
}
