// Depthwise convolution: every filter sees one channel, so there is no product of matrices to share work.
//
// Three forms, one to a build:
//   rows    channels first, kernels of up to 7 columns: no shared memory, a thread loads whole vectors of its
//           rows straight from global memory, halo included, and writes whole vectors. Bound by memory.
//   staged  channels first, any kernel: a block brings planes of x to shared memory; a thread slides a window
//           of registers along each row, four taps at a time.
//   last    channels last: a thread computes VECTOR neighbouring channels.
// Weights are in sum_t, those of a filter together and each row filled up to whole fours of taps; channels last the
// filters are the fastest index.
//
// Macros: element_t, FORM_ROWS | FORM_STAGED | FORM_LAST, TX and TY (outputs of a thread along a row and along
// a column), STRIDE (along rows and columns), VECTOR (elements of a load), and
//   rows: KERNEL_H, LEFT and RIGHT (taps beside the one at the output's own place)
//   last: KERNEL_W, or 0 for any kernel, stride and dilation.
#include "common.cuh"

using sum_t = decltype(widen(element_t()));

struct Cut {
    small_t columns, rows;    // of threads over a plane: ceil(Q / TX), ceil(P / TY)
    small_t block_x, block_y;  // staged: threads of a block over a plane
    small_t planes;           // staged: of a block
    small_t pitch, height;    // staged: elements from row to row, and rows, of a plane in shared memory
    small_t multiplier;       // filters of a channel
    index_t threads;          // in all, or staged planes in all
};

template <typename T>
__device__ inline T bias_of(const element_t* bias, small_t filter) {
    return bias ? widen(bias[filter]) : T(0);
}

// Writes COUNT neighbouring outputs of a row of `left` more ones.
template <int COUNT>
__device__ inline void store_row(element_t* to, const sum_t* sums, sum_t bias, small_t left, bool whole, small_t relu) {
    Pack<element_t, COUNT> pack;
#pragma unroll
    for (int j = 0; j < COUNT; j++) pack.v[j] = narrow<element_t>(finished(sums[j], bias, relu));
    if (whole) {
        store_pack<COUNT>(to, pack);
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (j < left) to[j] = pack.v[j];
    }
}

#if FORM_ROWS

constexpr int KERNEL_W = LEFT + 1 + RIGHT;
constexpr int BEFORE = round_up(LEFT, VECTOR);  // loaded, in whole vectors, before a thread's first column
constexpr int SEGMENT = BEFORE + round_up((TX - 1) * STRIDE + RIGHT + 1, VECTOR);
constexpr int TAPS = round_up(KERNEL_W, 4);
constexpr int THREADS = 128;

// w (K, T, KERNEL_H, TAPS); the first column of a thread is a multiple of VECTOR, as is every row of x.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
rows(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Cut cut) {
    const index_t id = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (id >= cut.threads) return;
    const small_t q = small_t(id % cut.columns) * TX;
    index_t rest = id / cut.columns;
    const small_t row = small_t(rest % cut.rows) * TY;
    rest /= cut.rows;
    const small_t depth = rest % p.out[0];
    const small_t plane = rest / p.out[0];
    const small_t filter = plane % p.filters, image = plane / p.filters;

    const element_t* x_plane = x + image * p.x_image + index_t(filter / cut.multiplier) * p.x_channel;
    const small_t first_h = row * STRIDE - p.pad[1], first_w = q * STRIDE - BEFORE;
    sum_t sums[TY][TX] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        sum_t taps[KERNEL_H][TAPS];
        const sum_t* w_from = w + (index_t(filter) * p.kernel[0] + t) * (KERNEL_H * TAPS);
#pragma unroll
        for (int i = 0; i < KERNEL_H * TAPS / 4; i++) {
            const Pack<sum_t, 4> four = load_pack<4>(w_from + i * 4);
#pragma unroll
            for (int j = 0; j < 4; j++) taps[0][i * 4 + j] = four.v[j];
        }
#pragma unroll
        for (int i = 0; i < (TY - 1) * STRIDE + KERNEL_H; i++) {
            const small_t h = first_h + i;
            if (!inside(h, p.size[1])) continue;
            const element_t* from = x_plane + (index_t(d) * p.size[1] + h) * p.size[2];
            sum_t segment[SEGMENT];
#pragma unroll
            for (int s = 0; s < SEGMENT; s += VECTOR) {
                Pack<element_t, VECTOR> pack = {};
                if (inside(first_w + s, p.size[2])) pack = load_pack<VECTOR>(from + first_w + s);
#pragma unroll
                for (int j = 0; j < VECTOR; j++) segment[s + j] = widen(pack.v[j]);
            }
#pragma unroll
            for (int o = 0; o < TY; o++) {
                const int r = i - o * STRIDE;
                if (r < 0 || r >= KERNEL_H) continue;
#pragma unroll
                for (int s = 0; s < KERNEL_W; s++)
#pragma unroll
                    for (int j = 0; j < TX; j++)
                        sums[o][j] += segment[BEFORE - LEFT + j * STRIDE + s] * taps[r][s];
            }
        }
    }
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + image * p.y_image + index_t(filter) * p.y_channel;
#pragma unroll
    for (int o = 0; o < TY; o++) {
        if (row + o >= p.out[1]) break;
        element_t* to = y_plane + (index_t(depth) * p.out[1] + row + o) * p.out[2] + q;
        store_row<TX>(to, sums[o], b, p.out[2] - q, p.out[2] % TX == 0, p.relu);
    }
}

#elif FORM_STAGED

constexpr int HELD = round_up((TX - 1) * STRIDE, 4);  // of the window, from one four taps to the next
constexpr int MOST_THREADS = 256;

// w (K, T, R, taps): taps = round_up(S, 4). Shared: cut.planes of (height, pitch), then their weights.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
staged(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
       element_t* __restrict__ y, const Conv p, const Cut cut) {
    const small_t tid = threadIdx.x, threads = blockDim.x, lane = tid % 32;
    const small_t blocks_x = ceil_div(cut.columns, cut.block_x), blocks_y = ceil_div(cut.rows, cut.block_y);
    small_t block = blockIdx.x;
    const small_t first_q = block % blocks_x * cut.block_x * TX;
    block /= blocks_x;
    const small_t first_p = block % blocks_y * cut.block_y * TY;
    block /= blocks_y;
    const small_t depth = block % p.out[0];
    const index_t first_plane = index_t(block / p.out[0]) * cut.planes;

    const small_t taps = round_up(p.kernel[2], 4);
    const small_t plane_size = cut.height * cut.pitch, weights = p.kernel[1] * taps;
    sum_t* x_tile = static_cast<sum_t*>(dynamic_shared());
    sum_t* w_tile = x_tile + cut.planes * plane_size;

    const small_t column = tid % cut.block_x, row = tid / cut.block_x % cut.block_y;
    const small_t mine = tid / cut.block_x / cut.block_y;  // plane of the block
    const sum_t* x_mine = x_tile + mine * plane_size + row * TY * STRIDE * cut.pitch + column * TX * STRIDE;
    const sum_t* w_mine = w_tile + mine * weights;
    sum_t sums[TY][TX] = {};

    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;  // for all threads
        __syncthreads();
        for (small_t i = tid / 32; i < cut.planes * cut.height; i += threads / 32) {  // a warp to a row
            const index_t plane = first_plane + i / cut.height;
            const small_t h = first_p * STRIDE - p.pad[1] + i % cut.height, w0 = first_q * STRIDE - p.pad[2];
            const bool there = plane < cut.threads && inside(h, p.size[1]);
            const index_t channel = plane % p.filters / cut.multiplier;
            const element_t* from = x + plane / p.filters * p.x_image + channel * p.x_channel +
                                    (index_t(d) * p.size[1] + h) * p.size[2] + w0;
            for (small_t j = lane; j < cut.pitch; j += 32)
                x_tile[i * cut.pitch + j] = there && inside(w0 + j, p.size[2]) ? widen(from[j]) : sum_t(0);
        }
        for (small_t i = tid; i < cut.planes * weights; i += threads) {
            const index_t plane = first_plane + i / weights;
            const index_t filter = plane % p.filters;
            w_tile[i] = plane < cut.threads ? w[(filter * p.kernel[0] + t) * weights + i % weights] : sum_t(0);
        }
        __syncthreads();
        for (small_t i = 0; i < (TY - 1) * STRIDE + p.kernel[1]; i++) {
            const sum_t* from = x_mine + i * cut.pitch;
            sum_t window[HELD + 4];
#pragma unroll
            for (int j = 0; j < HELD; j += 4) {
                const Pack<sum_t, 4> four = load_pack<4>(from + j);
#pragma unroll
                for (int e = 0; e < 4; e++) window[j + e] = four.v[e];
            }
            auto accumulate = [&](small_t s, int count) {  // taps s .. s + count of this row
#pragma unroll
                for (int o = 0; o < TY; o++) {
                    const small_t r = i - o * STRIDE;  // the same for all threads
                    if (!inside(r, p.kernel[1])) continue;
                    const Pack<sum_t, 4> four = load_pack<4>(w_mine + r * taps + s);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (e < count)
#pragma unroll
                            for (int j = 0; j < TX; j++) sums[o][j] += window[j * STRIDE + e] * four.v[e];
                }
            };
            for (small_t s = 0; s < p.kernel[2]; s += 4) {
                const Pack<sum_t, 4> four = load_pack<4>(from + HELD + s);
#pragma unroll
                for (int e = 0; e < 4; e++) window[HELD + e] = four.v[e];
                if (p.kernel[2] - s >= 4)
                    accumulate(s, 4);
                else
                    accumulate(s, p.kernel[2] - s);
#pragma unroll
                for (int j = 0; j < HELD; j++) window[j] = window[j + 4];
            }
        }
    }
    const index_t plane = first_plane + mine;
    const small_t q = first_q + column * TX;
    if (plane >= cut.threads || q >= p.out[2]) return;
    const small_t filter = plane % p.filters;
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + plane * p.y_channel;  // channels first, planes follow one another
#pragma unroll
    for (int o = 0; o < TY; o++) {
        const small_t at = first_p + row * TY + o;
        if (at >= p.out[1]) break;
        element_t* to = y_plane + (index_t(depth) * p.out[1] + at) * p.out[2] + q;
        store_row<TX>(to, sums[o], b, p.out[2] - q, p.out[2] % TX == 0, p.relu);
    }
}

#elif FORM_LAST

constexpr int THREADS = 128;
#if KERNEL_W
constexpr int SEGMENT = (TX - 1) * STRIDE + KERNEL_W;
#endif

// w (T, R, S, K). Neighbouring threads compute neighbouring channels.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
last(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Cut cut) {
    const index_t id = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (id >= cut.threads) return;
    const small_t packs = p.filters / VECTOR;
    const small_t filter = small_t(id % packs) * VECTOR;
    index_t rest = id / packs;
    const small_t q = small_t(rest % cut.columns) * TX;
    rest /= cut.columns;
    const small_t row = small_t(rest % cut.rows) * TY;
    rest /= cut.rows;
    const small_t depth = rest % p.out[0], image = rest / p.out[0];

    const element_t* x_from = x + image * p.x_image + filter / cut.multiplier;
    sum_t sums[TY][TX][VECTOR] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
#if KERNEL_W
        for (small_t i = 0; i < (TY - 1) * STRIDE + p.kernel[1]; i++) {
            const small_t h = row * STRIDE - p.pad[1] + i;
            if (!inside(h, p.size[1])) continue;
            const element_t* x_row = x_from + (index_t(d) * p.size[1] + h) * p.size[2] * p.channels;
            Pack<element_t, VECTOR> segment[SEGMENT];
#pragma unroll
            for (int s = 0; s < SEGMENT; s++) {
                const small_t at = q * STRIDE - p.pad[2] + s;
                segment[s] = {};
                if (inside(at, p.size[2])) segment[s] = load_pack<VECTOR>(x_row + index_t(at) * p.channels);
            }
#pragma unroll
            for (int o = 0; o < TY; o++) {
                const small_t r = i - o * STRIDE;
                if (!inside(r, p.kernel[1])) continue;
                const sum_t* w_row = w + (index_t(t) * p.kernel[1] + r) * KERNEL_W * p.filters + filter;
#pragma unroll
                for (int s = 0; s < KERNEL_W; s++) {
                    const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * p.filters);
#pragma unroll
                    for (int j = 0; j < TX; j++)
#pragma unroll
                        for (int c = 0; c < VECTOR; c++)
                            sums[o][j][c] += widen(segment[j * STRIDE + s].v[c]) * tap.v[c];
                }
            }
        }
#else
        for (small_t r = 0; r < p.kernel[1]; r++) {
            const small_t h = row * p.stride[1] - p.pad[1] + r * p.dilation[1];
            if (!inside(h, p.size[1])) continue;
            const element_t* x_row = x_from + (index_t(d) * p.size[1] + h) * p.size[2] * p.channels;
            const sum_t* w_row = w + (index_t(t) * p.kernel[1] + r) * p.kernel[2] * p.filters + filter;
            for (small_t s = 0; s < p.kernel[2]; s++) {
                const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * p.filters);
#pragma unroll
                for (int j = 0; j < TX; j++) {
                    const small_t at = (q + j) * p.stride[2] - p.pad[2] + s * p.dilation[2];
                    if (!inside(at, p.size[2])) continue;
                    const Pack<element_t, VECTOR> pack = load_pack<VECTOR>(x_row + index_t(at) * p.channels);
#pragma unroll
                    for (int c = 0; c < VECTOR; c++) sums[0][j][c] += widen(pack.v[c]) * tap.v[c];
                }
            }
        }
#endif
    }
    element_t* y_from = y + image * p.y_image + filter;
#pragma unroll
    for (int o = 0; o < TY; o++)
#pragma unroll
        for (int j = 0; j < TX; j++) {
            if (row + o >= p.out[1] || q + j >= p.out[2]) continue;
            Pack<element_t, VECTOR> pack;
#pragma unroll
            for (int c = 0; c < VECTOR; c++) {
                const sum_t b = bias_of<sum_t>(bias, filter + c);
                pack.v[c] = narrow<element_t>(finished(sums[o][j][c], b, p.relu));
            }
            const index_t pixel = (index_t(depth) * p.out[1] + row + o) * p.out[2] + q + j;
            store_pack<VECTOR>(y_from + pixel * p.filters, pack);
        }
}

#endif
