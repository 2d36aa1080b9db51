// Depthwise convolution, channels last, square kernels of up to 7: a thread computes VECTOR neighbouring channels.
//
// Macros: element_t; KERNEL (rows and columns of it); TX and TY (outputs of a thread along a row and a column);
// STRIDE (along both); VECTOR (channels of a thread).
#include "depthwise_forward.cuh"

constexpr int THREADS = 128;
constexpr int SPAN = (TX - 1) * STRIDE + KERNEL;

// w (T, KERNEL, KERNEL, K). Neighbouring threads compute neighbouring channels.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
last(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    const small_t filter = take(rest, params.k) * VECTOR;
    const small_t q = take(rest, params.columns) * TX, row = take(rest, params.rows) * TY;
    const small_t depth = take(rest, params.depth), image = rest;
    const small_t first_h = row * STRIDE - p.pad[1], first_w = q * STRIDE - p.pad[2];

    const element_t* x_from = x + image * p.x_image + filter;
    sum_t sums[TY][TX][VECTOR] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        // Where they fit the registers, all loads are on their way together.
#pragma unroll KERNEL * STRIDE == 3 && sizeof(element_t) == 2 ? TY - 1 + KERNEL : 1
        for (int i = 0; i < (TY - 1) * STRIDE + KERNEL; i++) {
            const small_t h = first_h + i;
            const bool there = inside(h, p.size[1]);
            const small_t at = forget(first_w);  // tested anew in every row: known for all, tests fill the registers
            const element_t* x_row = x_from + ((d * p.size[1] + h) * p.size[2] + at) * p.channels;
            sum_t span[SPAN][VECTOR];
#pragma unroll
            for (int s = 0; s < SPAN; s++) {
                widen_pack(load_pack_or_zeros<VECTOR>(x_row, there && inside(at + s, p.size[2])), span[s]);
                x_row += p.channels;
            }
#pragma unroll
            for (int o = 0; o < TY; o++) {
                const int r = i - o * STRIDE;
                if (r < 0 || r >= KERNEL) continue;
                const sum_t* w_row = w + index_t(t * KERNEL + r) * KERNEL * p.filters + filter;
#pragma unroll
                for (int s = 0; s < KERNEL; s++) {
                    const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * p.filters);
#pragma unroll
                    for (int j = 0; j < TX; j++)
#pragma unroll
                        for (int c = 0; c < VECTOR; c++) sums[o][j][c] += span[j * STRIDE + s][c] * tap.v[c];
                }
            }
        }
    }
    sum_t b[VECTOR];
#pragma unroll
    for (int c = 0; c < VECTOR; c++) b[c] = bias_of<sum_t>(bias, filter + c);
    element_t* y_from = y + image * p.y_image + filter;
#pragma unroll
    for (int o = 0; o < TY; o++)
#pragma unroll
        for (int j = 0; j < TX; j++) {
            if (row + o >= p.out[1] || q + j >= p.out[2]) continue;
            sum_t v[VECTOR];
#pragma unroll
            for (int c = 0; c < VECTOR; c++) v[c] = finished(sums[o][j][c], b[c], p.relu);
            const small_t pixel = (depth * p.out[1] + row + o) * p.out[2] + q + j;
            store_pack<VECTOR>(y_from + pixel * p.filters, narrow_pack<element_t, VECTOR>(v));
        }
}
