// Depthwise convolution in both layouts, with any kernel, stride and dilation: every tap loads its own input.
//
// Macros: element_t; VECTOR (channels of a thread).
#include "depthwise_forward.cuh"

constexpr int THREADS = 128;
constexpr int TX = 4;  // outputs of a thread, a fourth of a row apart: neighbours in neighbouring lanes

// w (K, T, R, taps) with taps = round_up(S, 4), or channels last (T, R, S, K), where threads of neighbouring
// channels are neighbours.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
plain(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
      element_t* __restrict__ y, const Conv p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    const bool last = params.last;
    small_t filter = last ? take(rest, params.k) * VECTOR : 0;
    const small_t first_q = take(rest, params.columns), row = take(rest, params.rows), depth = take(rest, params.depth);
    if (!last) filter = take(rest, params.k);
    const small_t image = rest, columns = params.columns.by;
    unsigned channel = filter;
    take(channel, params.multiplier);

    const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel;
    const small_t taps = last ? p.kernel[2] : round_up(p.kernel[2], 4), tap_step = last ? p.filters : 1;
    const sum_t* w_from = last ? w + filter : w + index_t(filter) * p.kernel[0] * p.kernel[1] * taps;
    sum_t sums[TX][VECTOR] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        for (small_t r = 0; r < p.kernel[1]; r++) {
            const small_t h = row * p.stride[1] - p.pad[1] + r * p.dilation[1];
            if (!inside(h, p.size[1])) continue;
            const element_t* x_row = x_from + (d * p.size[1] + h) * p.size[2] * p.x_pixel;
            const sum_t* w_row = w_from + index_t(t * p.kernel[1] + r) * taps * tap_step;
            for (small_t s = 0; s < p.kernel[2]; s++) {
                const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * tap_step);
#pragma unroll
                for (int j = 0; j < TX; j++) {
                    const small_t at = (first_q + j * columns) * p.stride[2] - p.pad[2] + s * p.dilation[2];
                    if (!inside(at, p.size[2])) continue;
                    sum_t v[VECTOR];
                    widen_pack(load_pack<VECTOR>(x_row + at * p.x_pixel), v);
#pragma unroll
                    for (int c = 0; c < VECTOR; c++) sums[j][c] += v[c] * tap.v[c];
                }
            }
        }
    }
    element_t* y_from = y + image * p.y_image + index_t(filter) * p.y_channel;
#pragma unroll
    for (int j = 0; j < TX; j++) {
        const small_t q = first_q + j * columns;
        if (q >= p.out[2]) break;
        sum_t v[VECTOR];
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            v[c] = finished(sums[j][c], bias_of<sum_t>(bias, filter + c), p.relu);
        const small_t pixel = (depth * p.out[1] + row) * p.out[2] + q;
        store_pack<VECTOR>(y_from + pixel * p.y_pixel, narrow_pack<element_t, VECTOR>(v));
    }
}
