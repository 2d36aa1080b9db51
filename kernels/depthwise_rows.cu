// Depthwise convolution, channels first, square kernels of up to 7: no shared memory. A thread loads whole vectors of
// its rows straight from global memory, halo included, and writes whole vectors. Bound by memory.
//
// Macros: element_t; KERNEL (rows and columns of it); TX and TY (outputs of a thread along a row and a column);
// STRIDE (along both).
#include "depthwise_forward.cuh"

constexpr int THREADS = 64;
constexpr int WIDEST = 16 / sizeof(element_t);  // elements of the widest load
constexpr int LEFT = (KERNEL - 1) / 2;          // taps before the output's place, as padding "same" has them
constexpr int TAPS = round_up(KERNEL, 4);
constexpr int SPAN = (TX - 1) * STRIDE + KERNEL;  // inputs of a thread in a row
constexpr int IN_ROWS = (TY - 1) * STRIDE + KERNEL;
constexpr int BLOCKS = KERNEL == 3 ? 10 : 6;  // that share the registers: loads may fill the rest

template <int VECTOR>
__device__ inline void accumulate(const element_t* x_plane, const sum_t* w_from, small_t first_h, small_t first_w,
                                  const Conv& p, sum_t (&sums)[TY][TX]) {
    sum_t taps[KERNEL][TAPS];
#pragma unroll
    for (int i = 0; i < KERNEL * TAPS / 4; i++) {
        const Pack<sum_t, 4> four = load_pack<4>(w_from + i * 4);
#pragma unroll
        for (int j = 0; j < 4; j++) taps[i * 4 / TAPS][i * 4 % TAPS + j] = four.v[j];
    }
#pragma unroll
    for (int i = 0; i < IN_ROWS; i++) {
        const small_t h = first_h + i;
        sum_t span[SPAN];
        load_span<VECTOR, LEFT>(x_plane + h * p.size[2], first_w, inside(h, p.size[1]), p.size[2], span);
#pragma unroll
        for (int o = 0; o < TY; o++) {
            const int r = i - o * STRIDE;
            if (r < 0 || r >= KERNEL) continue;
#pragma unroll
            for (int s = 0; s < KERNEL; s++)
#pragma unroll
                for (int j = 0; j < TX; j++) sums[o][j] += span[j * STRIDE + s] * taps[r][s];
        }
    }
}

// w (K, T, KERNEL, TAPS).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rows(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    const small_t q = take(rest, params.columns) * TX, row = take(rest, params.rows) * TY;
    const small_t depth = take(rest, params.depth), filter = take(rest, params.k), image = rest;
    unsigned channel = filter;
    take(channel, params.multiplier);

    const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel;
    const small_t first_h = row * STRIDE - p.pad[1], first_w = q * STRIDE - p.pad[2];
    const small_t plane = p.size[1] * p.size[2], off = p.pad[2] - LEFT;
    sum_t sums[TY][TX] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        const element_t* x_plane = x_from + d * plane;
        const sum_t* w_from = w + (index_t(filter) * p.kernel[0] + t) * (KERNEL * TAPS);
        if (p.size[2] % WIDEST == 0 && off % WIDEST == 0)
            accumulate<WIDEST>(x_plane, w_from, first_h, first_w, p, sums);
        else if (p.size[2] % 2 == 0 && off % 2 == 0)
            accumulate<2>(x_plane, w_from, first_h, first_w, p, sums);
        else
            accumulate<1>(x_plane, w_from, first_h, first_w, p, sums);
    }
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + image * p.y_image + index_t(filter) * p.y_channel + depth * p.out[1] * p.out[2];
#pragma unroll
    for (int o = 0; o < TY; o++)
        if (row + o < p.out[1])
            store_row<TX>(y_plane + (row + o) * p.out[2] + q, sums[o], b, p.out[2] - q, p.out[2], p.relu);
}
