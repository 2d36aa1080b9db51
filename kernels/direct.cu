// Direct convolution: an implicit GEMM on the ordinary units, any shape and element type. Of 8-bit integers four taps
// lie in a word, and one instruction (dp4a) multiplies them.
//
// A block computes TILE_M pixels x TILE_N filters of one group; a thread THREAD_M x THREAD_N of them in
// registers. Each step brings TILE_K taps (channel and position in the kernel) of x and w to shared memory,
// while the next ones are on their way to registers. The table of taps holds all that depends on layout,
// dilation and number of dimensions.
//
// Macros: element_t, TILE_M, TILE_N, THREAD_M, THREAD_N, CHANNELS_LAST; of integers also QUANTIZED and VECTOR: the
// taps of a word lie together in x (channels last, C/groups a multiple of 4).
#include "integers.cuh"
#include "register_tile.cuh"

using sum_t = decltype(widen(element_t()));

using Tile = RegisterTile<sum_t, TILE_M, TILE_N, THREAD_M, THREAD_N>;  // pixels x filters

#ifdef QUANTIZED
constexpr int EACH = 4;  // taps of a word
using w_word_t = int;
#else
constexpr int EACH = 1;
using w_word_t = element_t;
#define VECTOR 1
#endif
using x_word_t = Pack<element_t, EACH>;
constexpr int TOGETHER = VECTOR ? EACH : 1;  // taps that are loaded at once

__device__ inline sum_t word_of(const x_word_t& taps, const conv_t& p) {
#ifdef QUANTIZED
    return as_signed(*reinterpret_cast<const unsigned*>(&taps), p);
#else
    return widen(taps.v[0]);
#endif
}

constexpr int TILE_K = 8;  // words
constexpr int THREADS = Tile::THREADS, COLUMNS = Tile::COLUMNS, ROWS = Tile::ROWS;
constexpr int VM = Tile::VM, VN = Tile::VN;  // neighbouring pixels, and filters, of a thread

// Neighbours in memory are loaded by neighbouring threads: pixels, or channels last channels.
constexpr int LANES_M = CHANNELS_LAST ? THREADS / TILE_K : least(THREADS, TILE_M);
constexpr int LANES_K = THREADS / LANES_M;
constexpr int PIXELS = TILE_M / LANES_M;  // that a thread loads
constexpr int STEPS = TILE_K / LANES_K;   // words that it loads of each
constexpr int X_ROW = TILE_M + 4;         // off the banks of the row before
constexpr int W_PACK = most(1, TILE_K * TILE_N / THREADS);

// Blocks of a multiprocessor that share its registers without spilling.
constexpr bool MANY_SUMS = THREAD_M * THREAD_N > 32, MANY_PIXELS = PIXELS * sizeof(sum_t) > 16;
constexpr int BLOCKS = (MANY_SUMS && (CHANNELS_LAST || sizeof(element_t) == 2)) || MANY_PIXELS ? 1 : 2;

constexpr small_t OUTSIDE = -(1 << 30);  // of a pixel that does not exist

static_assert(TILE_M % LANES_M == 0 && TILE_K % LANES_K == 0, "every thread loads as much");

struct Params {
    Divisor filter_tiles, groups;  // tiles of a group
    Divisor columns, rows, depth;  // outputs
    small_t taps;                  // of a group, whole steps
    small_t filters_padded;        // of a group, filter_tiles * TILE_N
};

struct Pixel {
    const element_t* first;  // its input under the kernel's first tap, which may lie in the padding
    small_t d, h, w;
};

struct Block {
    small_t filter_tile, group, first_pixel;
};

__device__ inline Block block_of(unsigned index, const Params& params) {
    const small_t filter_tile = take(index, params.filter_tiles), group = take(index, params.groups);
    return {filter_tile, group, small_t(index) * TILE_M};
}

// x as the problem says; w (groups, words of taps, filters_padded); bias (K,) or null; taps (taps,).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
direct(const element_t* __restrict__ x, const w_word_t* __restrict__ w, const bias_t* __restrict__ bias,
       output_t* __restrict__ y, const Tap* __restrict__ taps, const conv_t p, const Params params) {
    __shared__ __align__(16) sum_t x_tile[2][TILE_K][X_ROW];
    __shared__ __align__(16) sum_t w_tile[2][TILE_K][TILE_N];

    const small_t tid = threadIdx.x;
    const Block block = block_of(blockIdx.x, params);
    const small_t filters = p.filters / p.groups;  // of the group
    const small_t out_pixels = p.out[0] * p.out[1] * p.out[2];
    const small_t all_pixels = p.images * out_pixels;

    const small_t lane_m = CHANNELS_LAST ? tid / LANES_K : tid % LANES_M;
    const small_t lane_k = CHANNELS_LAST ? tid % LANES_K : tid / LANES_M;
    const element_t* x_group = x + index_t(block.group) * (p.channels / p.groups) * p.x_channel;
    Pixel pixels[PIXELS];
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const small_t m = block.first_pixel + lane_m + i * LANES_M;
        unsigned image = m;
        pixels[i].w = take(image, params.columns) * p.stride[2] - p.pad[2];
        pixels[i].h = take(image, params.rows) * p.stride[1] - p.pad[1];
        pixels[i].d = take(image, params.depth) * p.stride[0] - p.pad[0];
        const index_t row = index_t(pixels[i].d) * p.size[1] + pixels[i].h;
        pixels[i].first = x_group + image * p.x_image + (row * p.size[2] + pixels[i].w) * p.x_pixel;
        if (m >= all_pixels) pixels[i].d = OUTSIDE;
    }
    const bool loads_w = tid * W_PACK < TILE_K * TILE_N;
    const small_t w_row = tid * W_PACK / TILE_N, w_column = tid * W_PACK % TILE_N;
    const w_word_t* w_from =
        w + (index_t(block.group) * (params.taps / EACH) + w_row) * params.filters_padded + block.filter_tile * TILE_N + w_column;

    x_word_t x_next[PIXELS][STEPS];
    Pack<w_word_t, W_PACK> w_next;
    auto fetch = [&](small_t k) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
            for (int e = 0; e < EACH; e += TOGETHER) {
                const Tap tap = taps[(k + lane_k + s * LANES_K) * EACH + e];
#pragma unroll
                for (int i = 0; i < PIXELS; i++) {
                    const Pixel& at = pixels[i];
                    const bool there = inside(at.d + tap.d, p.size[0]) && inside(at.h + tap.h, p.size[1]) &&
                                       inside(at.w + tap.w, p.size[2]);
                    Pack<element_t, TOGETHER> loaded;
#pragma unroll
                    for (int j = 0; j < TOGETHER; j++) loaded.v[j] = padding_of(p);
                    if (there) loaded = load_pack<TOGETHER>(at.first + tap.offset);
#pragma unroll
                    for (int j = 0; j < TOGETHER; j++) x_next[i][s].v[e + j] = loaded.v[j];
                }
            }
        }
        if (loads_w) w_next = load_pack<W_PACK>(w_from + index_t(k) * params.filters_padded);
    };
    auto keep = [&](int buffer) {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < PIXELS; i++)
                x_tile[buffer][lane_k + s * LANES_K][lane_m + i * LANES_M] = word_of(x_next[i][s], p);
        if (loads_w)
#pragma unroll
            for (int j = 0; j < W_PACK; j++) w_tile[buffer][w_row][w_column + j] = widen(w_next.v[j]);
    };

    const Tile::Place place = Tile::place_of(tid);
    sum_t sums[THREAD_M][THREAD_N] = {};

    fetch(0);
    keep(0);
    __syncthreads();
    int buffer = 0;
    for (small_t k = TILE_K; k < params.taps / EACH; k += TILE_K) {
        fetch(k);
        Tile::add(sums, x_tile[buffer], w_tile[buffer], place);
        buffer ^= 1;
        keep(buffer);
        __syncthreads();
    }
    Tile::add(sums, x_tile[buffer], w_tile[buffer], place);

    // Worked out again: kept until now, it would have taken registers from the sums.
    const Block to_block = block_of(forget(blockIdx.x), params);
    const Tile::Place to_place = Tile::place_of(forget(tid));
    const small_t first_filter = to_block.filter_tile * TILE_N + to_place.row;
    const small_t before = to_block.group * filters;
#pragma unroll
    for (int i0 = 0; i0 < THREAD_M; i0 += VM) {
        const small_t m0 = to_block.first_pixel + to_place.column + i0 * COLUMNS;
#if CHANNELS_LAST
        const bool whole = p.filters % VN == 0 && filters % VN == 0;
#pragma unroll
        for (int i = 0; i < VM; i++) {
            if (m0 + i >= all_pixels) break;
            const index_t pixel = index_t(m0 + i) * p.filters;
#pragma unroll
            for (int j0 = 0; j0 < THREAD_N; j0 += VN) {
                const small_t filter = first_filter + j0 * ROWS;
                sum_t of_pixel[VN];
#pragma unroll
                for (int j = 0; j < VN; j++) of_pixel[j] = sums[i0 + i][j0 + j];
                if (whole && filter < filters)
                    store_outputs<VN, 1>(y, pixel + before + filter, of_pixel, bias, before + filter, p);
                else
#pragma unroll
                    for (int j = 0; j < VN; j++)
                        if (filter + j < filters) store_output(y, pixel + before + filter + j, of_pixel[j], bias, before + filter + j, p);
            }
        }
#else
        const bool whole = out_pixels % VM == 0;  // then a thread's neighbours are of one image
        index_t places[VM];                       // of neighbours, in the plane of the first filter
#pragma unroll
        for (int i = 0; i < VM; i++) {
            unsigned image = m0 + i;
            const small_t w = take(image, params.columns), h = take(image, params.rows), d = take(image, params.depth);
            places[i] = image * p.y_image + (d * p.out[1] + h) * p.out[2] + w;
        }
#pragma unroll
        for (int j = 0; j < THREAD_N; j++) {
            const small_t filter = first_filter + j / VN * ROWS * VN + j % VN;
            if (filter >= filters) continue;
            const index_t plane = index_t(before + filter) * out_pixels;
            sum_t of_filter[VM];
#pragma unroll
            for (int i = 0; i < VM; i++) of_filter[i] = sums[i0 + i][j];
            if (whole && m0 < all_pixels)
                store_outputs<VM, 0>(y, places[0] + plane, of_filter, bias, before + filter, p);
            else
#pragma unroll
                for (int i = 0; i < VM; i++)
                    if (m0 + i < all_pixels) store_output(y, places[i] + plane, of_filter[i], bias, before + filter, p);
        }
#endif
    }
}
