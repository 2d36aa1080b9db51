// The gradient of any depthwise filters: rows of x and dy go to shared memory, a thread keeps a tile of TR x TS taps in
// registers and slides along rows, four outputs at a time. Threads share the taps of a kernel, and `groups` of threads
// with the same taps share the rows.
//
// Along the last dimension outputs and taps are taken apart so that strides and dilations vanish: with stride a and
// dilation b, output q = b' * j + f and tap s = a' * k + e meet at input lcm(a, b) * (j + k) + f * a + e * b - pad, where
// a' = a / gcd(a, b) and b' likewise. Phase e of taps belongs to a block, phases f of outputs follow one another.
//
// Macros: element_t, TR, TS.
#include "depthwise_weights.cuh"

constexpr int MOST_THREADS = 256;
constexpr int TAPS = TR * TS;

struct Params {
    small_t items;                   // segments of rows, bands, phases f, depths and images of a filter
    small_t rows, run;               // of dy in a band; outputs of a thread along a row
    small_t groups, down;            // of threads in a block; tiles of taps along R in it
    small_t height, step;            // rows of x in shared memory; lcm(stride, dilation)
    small_t spare;
    Divisor e, f;                    // phases of taps and of outputs
    Divisor blocks_s, blocks_r, t;   // of taps; kernel[0]
    Divisor parts;                   // blocks of a filter
    Divisor lanes, across;           // tiles of taps in a block, and of these along S
    Divisor segments, bands, depth;  // of a phase of a row, of a plane; out[0]
    Divisor pitch, columns, runs;    // elements of a row of x and of dy in shared memory; runs of a row
    Divisor multiplier;              // filters of a channel
};

// x, dy as the problem says; dw (K, T, R, S); parts (parts, K, T, R, S) or null.
// Shared: x (height, pitch), dy (rows, columns); in the end sums.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, sizeof(sum_t) == 8 ? 1 : 2)
staged(const element_t* __restrict__ x, const element_t* __restrict__ dy, element_t* __restrict__ dw,
       sum_t* __restrict__ parts, const Conv p, const Params params) {
    const small_t tid = threadIdx.x, threads = blockDim.x;
    unsigned rest = blockIdx.x, group = tid;
    const small_t e = take(rest, params.e), first_s = take(rest, params.blocks_s) * params.across.by * TS;
    const small_t first_r = take(rest, params.blocks_r) * params.down * TR, t = take(rest, params.t);
    const small_t part = take(rest, params.parts), filter = rest;
    take(rest, params.multiplier);
    const small_t channel = rest;
    unsigned tile_r = take(group, params.lanes);
    const small_t tile_s = take(tile_r, params.across), pitch = params.pitch.by, columns = params.columns.by;
    sum_t *x_tile = static_cast<sum_t*>(dynamic_shared()), *dy_tile = x_tile + params.height * pitch;
    const sum_t* x_mine = x_tile + small_t(tile_r) * TR * p.dilation[1] * pitch + tile_s * TS;

    sum_t sums[TAPS] = {};
    for (small_t item = part; item < params.items; item += params.parts.by) {
        unsigned image = item;
        const small_t first_q = take(image, params.segments) * columns;
        const small_t first_p = take(image, params.bands) * params.rows;
        const small_t f = take(image, params.f), depth = take(image, params.depth);
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;  // for all threads
        __syncthreads();
        const small_t first_h = first_p * p.stride[1] + first_r * p.dilation[1] - p.pad[1];
        const small_t first_w = (first_q + first_s) * params.step + f * p.stride[2] + e * p.dilation[2] - p.pad[2];
        const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel;
        for (small_t i = tid; i < params.height * pitch; i += threads) {
            unsigned row = i;
            const small_t w = first_w + take(row, params.pitch) * params.step, h = first_h + row;
            const bool there = inside(h, p.size[1]) && inside(w, p.size[2]);
            x_tile[i] = there ? widen(x_from[((d * p.size[1] + h) * p.size[2] + w) * p.x_pixel]) : sum_t(0);
        }
        const element_t* dy_from = dy + image * p.y_image + index_t(filter) * p.y_channel;
        for (small_t i = tid; i < params.rows * columns; i += threads) {
            unsigned row = i;
            const small_t q = (first_q + take(row, params.columns)) * params.f.by + f, h = first_p + row;
            const bool there = h < p.out[1] && q < p.out[2];
            dy_tile[i] = there ? widen(dy_from[((depth * p.out[1] + h) * p.out[2] + q) * p.y_pixel]) : sum_t(0);
        }
        __syncthreads();
        const small_t runs = least(params.rows, p.out[1] - first_p) * params.runs.by;
        for (small_t run = group; small_t(group) < params.groups && run < runs; run += params.groups) {
            unsigned row = run;
            const small_t at = take(row, params.runs) * params.run;
            const sum_t* dy_row = dy_tile + small_t(row) * columns + at;
            const sum_t* x_row = x_mine + small_t(row) * p.stride[1] * pitch + at;
            sum_t window[TR][TS + 4];
#pragma unroll
            for (int i = 0; i < TR; i++)
#pragma unroll
                for (int j = 0; j < TS; j += 4)
                    widen_pack(load_pack<4>(x_row + i * p.dilation[1] * pitch + j), window[i] + j);
#pragma unroll 2
            for (small_t q = 0; q < params.run; q += 4) {
                const Pack<sum_t, 4> four = load_pack<4>(dy_row + q);
#pragma unroll
                for (int i = 0; i < TR; i++) {
                    widen_pack(load_pack<4>(x_row + i * p.dilation[1] * pitch + q + TS), window[i] + TS);
#pragma unroll
                    for (int s = 0; s < TS; s++)
#pragma unroll
                        for (int j = 0; j < 4; j++) sums[i * TS + s] += four.v[j] * window[i][j + s];
#pragma unroll
                    for (int j = 0; j < TS; j++) window[i][j] = window[i][j + 4];
                }
            }
        }
    }
    const small_t a = params.e.by;  // taps of a phase lie so far apart
    add_groups(sums, x_tile, params.lanes.by, params.groups, [&](int i, sum_t sum) {
        const small_t r = first_r + small_t(tile_r) * TR + i / TS, s = first_s + tile_s * TS + i % TS;
        put(dw, parts, part, {filter, t, r, s * a + e}, p, sum);
    });
}
