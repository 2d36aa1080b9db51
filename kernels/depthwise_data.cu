// The gradient of the input of depthwise layers of stride 2: a thread computes TY rows of TX inputs, of all four phases
// of the stride together, so that dy is read and dx written once, in whole vectors.
//
// Columns 2a + b, with b = 0 or 1, meet taps b + 2i at output a + low - i, and rows likewise: the filter begins with a
// zero where the padding is odd, so that twice `low` is the padding with that tap. Weights are in sum_t,
// (K, T, TAPS, TAPS), zeros behind the filter, or channels last (T, TAPS, TAPS, K).
//
// Macros: element_t, TAPS (even), TX and TY (even), CHANNELS_LAST.
#include "depthwise.cuh"

constexpr int THREADS = 128;
constexpr int MET = TAPS / 2;            // taps that an input meets along a dimension
constexpr int SPAN = TX / 2 + MET - 1;   // outputs of a thread in a row
constexpr int ROWS = TY / 2 + MET - 1;

struct Params {
    small_t threads;               // in all
    small_t low[2];                // of rows and columns
    small_t spare;
    Divisor columns, rows, depth;  // of threads over a plane: ceil(W / TX), ceil(H / TY); size[0]
    Divisor channels;
    Divisor stride_d;
};

// The weights of a filter and a plane of taps.
__device__ inline void load_weights(const sum_t* w, small_t filter, small_t t, const Conv& p,
                                    sum_t (&taps)[TAPS * TAPS]) {
#if CHANNELS_LAST
    const sum_t* from = w + index_t(t) * TAPS * TAPS * p.filters + filter;
#pragma unroll
    for (int i = 0; i < TAPS * TAPS; i++) {
        taps[i] = *from;
        from = forget(from + p.filters);  // step by step: all addresses together would fill the registers
    }
#else
    const sum_t* from = w + (index_t(filter) * p.kernel[0] + t) * (TAPS * TAPS);
#pragma unroll
    for (int i = 0; i < TAPS * TAPS; i += 4) widen_pack(load_pack<4>(from + i), taps + i);
#endif
}

// bias (C,) or null; dx and dy as the problem says, in which dx is x and dy is y.
extern "C" __global__ void __launch_bounds__(THREADS, TAPS == 4 ? 5 : 3)
squares(const element_t* __restrict__ dy, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
        element_t* __restrict__ dx, const Conv p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    small_t channel = CHANNELS_LAST ? take(rest, params.channels) : 0;
    const small_t first_w = take(rest, params.columns) * TX, first_h = take(rest, params.rows) * TY;
    const small_t depth = take(rest, params.depth);
    if (!CHANNELS_LAST) channel = take(rest, params.channels);
    const small_t image = rest, multiplier = p.filters / p.channels;
    const small_t first_q = first_w / 2 + params.low[1] - (MET - 1), first_p = first_h / 2 + params.low[0] - (MET - 1);
    const small_t pixel = CHANNELS_LAST ? p.y_pixel : 1;

    sum_t sums[TY][TX] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        unsigned d = depth + p.pad[0] - t * p.dilation[0];
        if (small_t(d) < 0 || take(d, params.stride_d) || small_t(d) >= p.out[0]) continue;
        for (small_t filter = channel * multiplier; filter < (channel + 1) * multiplier; filter++) {
            const element_t* plane =
                dy + image * p.y_image + index_t(filter) * p.y_channel + d * p.out[1] * p.out[2] * p.y_pixel;
            sum_t taps[TAPS * TAPS];
            load_weights(w, filter, t, p, taps);
            sum_t all[ROWS][SPAN];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const bool there = inside(first_p + i, p.out[1]);
                // tested anew in every row: known for all, tests fill the registers
                const small_t at = forget(first_q);
                const element_t* row = plane + ((first_p + i) * p.out[2] + at) * pixel;
#pragma unroll
                for (int j = 0; j < SPAN; j++)
                    widen_pack(load_pack_or_zeros<1>(row + j * pixel, there && inside(at + j, p.out[2])), all[i] + j);
            }
#pragma unroll
            for (int o = 0; o < TY; o++)
#pragma unroll
                for (int j = 0; j < TX; j++)
#pragma unroll
                    for (int r = 0; r < MET; r++)
#pragma unroll
                        for (int s = 0; s < MET; s++)
                            sums[o][j] += taps[(o % 2 + 2 * r) * TAPS + j % 2 + 2 * s] *
                                          all[o / 2 + MET - 1 - r][j / 2 + MET - 1 - s];
        }
    }
    const sum_t b = bias_of<sum_t>(bias, channel);
    const small_t left = p.size[2] - first_w;
    element_t* to = dx + image * p.x_image + index_t(channel) * p.x_channel +
                    ((depth * p.size[1] + first_h) * p.size[2] + first_w) * p.x_pixel;
#pragma unroll
    for (int o = 0; o < TY; o++) {
        if (first_h + o >= p.size[1]) break;
#if CHANNELS_LAST
#pragma unroll
        for (int j = 0; j < TX; j++)
            if (j < left) to[j * p.x_pixel] = narrow<element_t>(finished(sums[o][j], b, p.relu));
#else
        store_row<TX>(to, sums[o], b, left, p.size[2], p.relu);
#endif
        to += p.size[2] * p.x_pixel;
    }
}
