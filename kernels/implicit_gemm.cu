// Implicit GEMM on tensor cores, through mma.sync: float16 and bfloat16, TF32, TF32 in three products, float64,
// 8-bit integers, and signs.
//
// A block computes TILE_P pixels x TILE_F filters of one group. Both operands lie in shared memory as rows of
// 128 bytes of taps, in words of 4 bytes (8-bit elements four, 16-bit ones two to a word) or of 8 (float64), so that all types
// share the same indexing; four words more keep the eight rows of a fragment on banks of their own (of float64
// the four that are read at once). The sums' pairs of neighbouring columns are
// filters channels last, and pixels channels first, where the operands change places: y is written in its own
// layout either way.
//
// Signs are bytes of eight of them, which lie channels last whatever the layout of y. Of -1 as set bits, products of
// w's sum and what is added here, 4 (in how many places both are set) - 2 (in how many x is), are the sum of a window.
//
// SPARSE: of w's rows two of four taps are held, and where these were: for 16 filters and 32 taps in 16 words, as
// `mma_sp` wants them. w is then always the first operand, and pairs of sums are pixels.
//
// Macros: element_t, MATH (0 half, 1 TF32, 2 three times TF32, 3 float64, 4 integers, 5 signs, both with QUANTIZED),
// TILE_P, TILE_F, CHANNELS_LAST (of y), X_LAST where x lies otherwise, and VECTOR:
// whole 16 bytes of x lie together (channels last, C/groups a multiple of them), and are copied as such.
#include "mma_fragments.cuh"
#include "split_k.cuh"

#ifndef X_LAST
#define X_LAST CHANNELS_LAST
#endif
#define FILTERS_FIRST (SPARSE || !CHANNELS_LAST)  // as rows of the product

constexpr int CHUNKS = 8;                               // of 16 bytes, the unit of copies, in a row
constexpr int CHUNK_WORDS = 16 / sizeof(word_t);        // words of one
constexpr int CHUNK = 16 / sizeof(element_t);           // elements of one
constexpr int WORDS = CHUNKS * CHUNK_WORDS, ROW = WORDS + 4;  // of a row of taps in shared memory
constexpr int EACH = sizeof(word_t) / sizeof(element_t);      // elements of a word
constexpr int STEP = WORDS * EACH;              // taps of a step
constexpr int HELD = SPARSE ? 2 : 1;            // taps of w for each that is held
constexpr int W_ROW = WORDS / HELD + 4;         // words of a row of w in shared memory
constexpr int PLACES = SPARSE ? WORDS : 0;      // words for 16 filters: where their taps of a step were
constexpr int TILE_A = FILTERS_FIRST ? TILE_F : TILE_P, TILE_B = FILTERS_FIRST ? TILE_P : TILE_F;
constexpr int WARP_A = TILE_P * TILE_F == 128 * 128 ? 64 : 32, WARP_B = 32;  // rows and columns of a warp
constexpr int WARPS_A = TILE_A / WARP_A;
constexpr int THREADS = WARPS_A * (TILE_B / WARP_B) * 32;
constexpr int ROWS_A = WARP_A / 16, COLUMNS_B = WARP_B / 8;  // products of a warp
constexpr int W_STAGE = TILE_F * W_ROW;                      // words of w in a stage of shared memory, before places
constexpr int STAGE = TILE_P * ROW + W_STAGE + TILE_F / 16 * PLACES;
constexpr int W_ROW_CHUNKS = CHUNKS / HELD;
constexpr int X_CHUNKS = TILE_P * CHUNKS / THREADS, W_CHUNKS = TILE_F * W_ROW_CHUNKS / THREADS;  // of a thread
constexpr small_t OUTSIDE = -(1 << 30);  // row of a pixel that does not exist

struct Params {
    small_t filter_tiles;    // of a group
    small_t taps;            // of a group, whole steps
    small_t filters_padded;  // of a group
    small_t splits;          // of the sum
};

struct Pixel {
    const element_t* first;  // its input under the kernel's first tap, which may lie in the padding
    small_t d, h, w;
};

// COUNT sums of neighbouring outputs from a pixel and a filter of the group on: to y, or to a part of the sum.
template <int COUNT>
__device__ inline void store_sums(const sum_t* sums, small_t pixel, small_t filter, small_t group,
                                  const bias_t* bias, output_t* y, sum_t* part, const conv_t& p) {
    const small_t filters = p.filters / p.groups, out_pixels = p.out[0] * p.out[1] * p.out[2];
    if (pixel >= p.images * out_pixels || filter >= filters) return;
    const small_t all = group * filters + filter;
    const index_t at = pixel / out_pixels * p.y_image + index_t(all) * p.y_channel +
                       index_t(pixel % out_pixels) * p.y_pixel;
    Pack<sum_t, COUNT> values;
#pragma unroll
    for (int i = 0; i < COUNT; i++) values.v[i] = sums[i];
#if MATH == 5
    if (p.patterns && blockIdx.y == 0)
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const small_t row = p.patterns[pixel % out_pixels + i * !CHANNELS_LAST];
            if (row) values.v[i] += p.borders[index_t(row) * p.filters + all + i * CHANNELS_LAST];
        }
#endif
    if (part)
        store_pack<COUNT>(part + at, values);
    else
        store_outputs<COUNT, CHANNELS_LAST>(y, at, values.v, bias, all, p);
}

// x as the problem says; w (groups, filters_padded, taps), or SPARSE (groups, filters_padded, taps / 2) and then
// places (groups, filters_padded / 16, steps, words); taps (taps,). y, or where the sum is split
// parts (splits, ...) in y's layout, which take neither bias nor ReLU. Shared: 2 stages.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
implicit_gemm(const element_t* __restrict__ x, const element_t* __restrict__ w, const bias_t* __restrict__ bias,
              output_t* __restrict__ y, sum_t* __restrict__ parts, const Tap* __restrict__ taps, const conv_t p,
              const Params params) {
    word_t* const shared = static_cast<word_t*>(dynamic_shared());
    const small_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const small_t filter_tile = blockIdx.x % params.filter_tiles;
    const small_t group = blockIdx.x / params.filter_tiles % p.groups;
    const small_t first_pixel = blockIdx.x / params.filter_tiles / p.groups * TILE_P;
    const small_t filters = p.filters / p.groups;
    const small_t out_pixels = p.out[0] * p.out[1] * p.out[2];
    const small_t all_pixels = p.images * out_pixels;
    const small_t steps = params.taps / STEP;
    const small_t begin = index_t(steps) * blockIdx.y / params.splits;
    const small_t end = index_t(steps) * (blockIdx.y + 1) / params.splits;

    // Neighbouring threads copy neighbours in memory: channels last along taps, channels first along pixels.
    constexpr int LANES_K = X_LAST ? CHUNKS : most(1, THREADS / TILE_P);
    constexpr int PIXELS = X_LAST ? X_CHUNKS : 1;  // of a thread
    constexpr int PER_PIXEL = X_CHUNKS / PIXELS;
    static_assert(X_LAST || THREADS >= TILE_P, "a thread copies taps of one pixel");
    const small_t chunk_k = X_LAST ? tid % LANES_K : tid / TILE_P;
    const small_t chunk_row = X_LAST ? tid / LANES_K : tid % TILE_P;
    const element_t* x_group = x + index_t(group) * (p.channels / p.groups) * p.x_channel;
    Pixel pixels[PIXELS];
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const small_t m = first_pixel + chunk_row + i * (THREADS / LANES_K);
        const small_t image = m / out_pixels, at = m % out_pixels;
        pixels[i].d = at / (p.out[1] * p.out[2]) * p.stride[0] - p.pad[0];
        pixels[i].h = at / p.out[2] % p.out[1] * p.stride[1] - p.pad[1];
        pixels[i].w = at % p.out[2] * p.stride[2] - p.pad[2];
        const index_t row = index_t(pixels[i].d) * p.size[1] + pixels[i].h;
        pixels[i].first = x_group + image * p.x_image + (row * p.size[2] + pixels[i].w) * p.x_pixel;
        if (m >= all_pixels) pixels[i].d = OUTSIDE;
    }
    auto there = [&](const Pixel& at, const Tap& tap) {
        return inside(at.d + tap.d, p.size[0]) && inside(at.h + tap.h, p.size[1]) && inside(at.w + tap.w, p.size[2]);
    };
    const small_t w_row = params.taps / HELD, first_row = group * params.filters_padded + filter_tile * TILE_F;
    const element_t* w_tile = w + index_t(first_row) * w_row;
#if SPARSE
    const word_t* places = reinterpret_cast<const word_t*>(w + index_t(p.groups) * params.filters_padded * w_row) +
                           index_t(first_row / 16) * steps * PLACES;
#endif

#if !VECTOR
    Pack<element_t, CHUNK> held[PIXELS][PER_PIXEL];  // on the way from global to shared memory
#endif
    auto fetch = [&](small_t step, int buffer) {
        word_t* x_to = shared + buffer * STAGE;
        word_t* w_to = x_to + TILE_P * ROW;
#pragma unroll
        for (int i = 0; i < W_CHUNKS; i++) {
            const small_t chunk = tid + i * THREADS, row = chunk / W_ROW_CHUNKS, k = chunk % W_ROW_CHUNKS;
            copy_async_16(w_to + row * W_ROW + k * CHUNK_WORDS,
                          w_tile + index_t(row) * w_row + step * (STEP / HELD) + k * CHUNK);
        }
#if SPARSE
        if (tid < TILE_F / 16 * PLACES / CHUNK_WORDS) {
            const small_t word = tid * CHUNK_WORDS, block = word / PLACES;
            copy_async_16(w_to + W_STAGE + word, places + (index_t(block) * steps + step) * PLACES + word % PLACES);
        }
#endif
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
#pragma unroll
            for (int j = 0; j < PER_PIXEL; j++) {
                const small_t k = chunk_k + j * LANES_K;
                const Tap* from = taps + step * STEP + k * CHUNK;
#if VECTOR
                const Tap tap = *from;
                const bool in = there(pixels[i], tap);
                word_t* to = x_to + (chunk_row + i * (THREADS / LANES_K)) * ROW + k * CHUNK_WORDS;
                copy_x(to, pixels[i].first + tap.offset, in, x, p);
#else
#pragma unroll
                for (int e = 0; e < CHUNK; e++) {
                    const Tap tap = from[e];
                    held[i][j].v[e] = there(pixels[i], tap) ? pixels[i].first[tap.offset] : padding_of(p);
                }
#endif
            }
    };
    auto keep = [&](int buffer) {
#if !VECTOR
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
#pragma unroll
            for (int j = 0; j < PER_PIXEL; j++) {
                word_t* row = shared + buffer * STAGE + (chunk_row + i * (THREADS / LANES_K)) * ROW;
                store_pack<CHUNK>(reinterpret_cast<element_t*>(row + (chunk_k + j * LANES_K) * CHUNK_WORDS),
                                  held[i][j]);
            }
#endif
        wait_for_copies();
        __syncthreads();
    };

    const small_t warp_a = warp % WARPS_A * WARP_A, warp_b = warp / WARPS_A * WARP_B;
    const small_t quad = lane / 4, within = lane % 4;  // row of a fragment, and word of its row
    sum_t sums[ROWS_A][COLUMNS_B][4] = {};
#if MATH == 5
    sum_t set[CHANNELS_LAST ? ROWS_A : COLUMNS_B][4] = {};  // bits of x
    const word_t all_a[OF_A] = {~0u, ~0u, ~0u, ~0u}, all_b[OF_B] = {~0u, ~0u};
#endif
    auto of_a = [&](word_t word) { return CHANNELS_LAST ? as_signed(word, p) : word; };  // x is one of the two
    auto of_b = [&](word_t word) { return CHANNELS_LAST ? word : as_signed(word, p); };
    auto accumulate = [&](int buffer) {
        const word_t* x_from = shared + buffer * STAGE;
        const word_t* w_from = x_from + TILE_P * ROW;
        constexpr int A_ROW = FILTERS_FIRST ? W_ROW : ROW, B_ROW = FILTERS_FIRST ? ROW : W_ROW;
        const word_t* a_from = (FILTERS_FIRST ? w_from : x_from) + (warp_a + quad) * A_ROW + within;
        const word_t* b_from = (FILTERS_FIRST ? x_from : w_from) + (warp_b + quad) * B_ROW + within;
#pragma unroll
        for (int k = 0; k < WORDS; k += 4 * OF_B) {
            word_t a[ROWS_A][OF_A], b[COLUMNS_B][OF_B];
#pragma unroll
            for (int i = 0; i < ROWS_A; i++)
#pragma unroll
                for (int e = 0; e < OF_A; e++) a[i][e] = of_a(a_from[(i * 16 + e % 2 * 8) * A_ROW + k / HELD + e / 2 * 4]);
#pragma unroll
            for (int j = 0; j < COLUMNS_B; j++)
#pragma unroll
                for (int e = 0; e < OF_B; e++) b[j][e] = of_b(b_from[j * 8 * B_ROW + k + e * 4]);
#if SPARSE
            word_t held[ROWS_A];
            const word_t* held_from = w_from + W_STAGE + warp_a / 16 * PLACES + quad * 2 + within % 2;
#pragma unroll
            for (int i = 0; i < ROWS_A; i++) held[i] = held_from[i * PLACES + k];
#pragma unroll
            for (int i = 0; i < ROWS_A; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS_B; j++) multiply(sums[i][j], a[i], b[j], held[i]);
#else
#pragma unroll
            for (int i = 0; i < ROWS_A; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS_B; j++) multiply(sums[i][j], a[i], b[j]);
#endif
#if MATH == 5
#pragma unroll
            for (int i = 0; i < (CHANNELS_LAST ? ROWS_A : COLUMNS_B); i++)
                if constexpr (CHANNELS_LAST)
                    multiply(set[i], a[i], all_b);
                else
                    multiply(set[i], all_a, b[i]);
#endif
        }
    };

    fetch(begin, 0);
    keep(0);
    int buffer = 0;
    for (small_t step = begin + 1; step < end; step++) {
        fetch(step, buffer ^ 1);
        accumulate(buffer);
        buffer ^= 1;
        keep(buffer);
    }
    accumulate(buffer);
#if MATH == 5
#pragma unroll
    for (int i = 0; i < ROWS_A; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS_B; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = 4 * sums[i][j][e] - 2 * set[CHANNELS_LAST ? i : j][e];
#endif

    sum_t* part = params.splits == 1 ? nullptr : parts + index_t(blockIdx.y) * p.images * p.y_image;
    const bool paired = FILTERS_FIRST ? !CHANNELS_LAST && out_pixels % 2 == 0 : p.filters % 2 == 0 && filters % 2 == 0;
#pragma unroll
    for (int i = 0; i < ROWS_A; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS_B; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const small_t a = warp_a + i * 16 + half * 8 + quad, b = warp_b + j * 8 + within * 2;
                const small_t pixel = first_pixel + (FILTERS_FIRST ? b : a);
                const small_t filter = filter_tile * TILE_F + (FILTERS_FIRST ? a : b);
                const sum_t* pair = sums[i][j] + half * 2;
                if (paired) {
                    store_sums<2>(pair, pixel, filter, group, bias, y, part, p);
                } else {
                    store_sums<1>(pair, pixel, filter, group, bias, y, part, p);
                    store_sums<1>(pair + 1, pixel + FILTERS_FIRST, filter + !FILTERS_FIRST, group, bias, y, part, p);
                }
            }
}

extern "C" __global__ void __launch_bounds__(256)
reduce(const sum_t* __restrict__ parts, const bias_t* __restrict__ bias, output_t* __restrict__ y, const conv_t p,
       const small_t count) {
    reduce_parts(parts, bias, y, p, count);
}
