// The gradient of the filter on the ordinary units, any shape and element type.
//
// A block computes TILE_F filters x TILE_T taps of one group; a thread THREAD_F x THREAD_T of them in registers.
// Each step brings STEP pixels of dy and x to shared memory, while the next ones are on their way to registers.
// A thread loads of one pixel in each step, whose place it finds once for all of its taps.
//
// Macros: element_t, TILE_F, TILE_T, THREAD_F, THREAD_T, CHANNELS_LAST.
#include "register_tile.cuh"
#include "split_k_weights.cuh"

using Tile = RegisterTile<sum_t, TILE_T, TILE_F, THREAD_T, THREAD_F>;

constexpr int STEP = 8;
constexpr int THREADS = Tile::THREADS, LANES = THREADS / STEP;  // that load of a pixel
constexpr int TAPS = ceil_div(TILE_T, LANES), FILTERS = ceil_div(TILE_F, LANES);  // that a thread loads
constexpr int BLOCKS = THREAD_F * THREAD_T > 32 ? 1 : 2;  // of a multiprocessor, without spilling

static_assert(TILE_T % LANES == 0 && (TILE_F % LANES == 0 || TILE_F < LANES), "every thread loads as much");

// x and dy as the problem says; taps (tap_tiles * TILE_T,). dw, or where there are several parts (parts, K, taps).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
direct_weights(const element_t* __restrict__ x, const element_t* __restrict__ dy, element_t* __restrict__ dw,
               sum_t* __restrict__ parts, const Tap* __restrict__ taps, const Conv p, const Params params) {
    __shared__ __align__(16) sum_t x_tile[2][STEP][TILE_T + 4];  // off the banks of the row before
    __shared__ __align__(16) sum_t dy_tile[2][STEP][TILE_F + 4];
    __shared__ __align__(16) Tap tile_taps[TILE_T];

    const small_t tid = threadIdx.x;
    const Share share = share_of(blockIdx.x, blockIdx.y, params);
    const small_t filters = p.filters / p.groups;
    const small_t first_filter = share.group * filters + share.first_filter;  // of all
    const small_t there = filters - share.first_filter;                       // of the tile, or more
    for (small_t i = tid; i < TILE_T; i += THREADS) tile_taps[i] = taps[share.first_tap + i];
    __syncthreads();

    // Neighbours in memory are loaded by neighbouring threads: pixels, or channels last taps.
    const small_t pixel_lane = CHANNELS_LAST ? tid / LANES : tid % STEP;
    const small_t lane = CHANNELS_LAST ? tid % LANES : tid / STEP;
    const element_t* x_group = x + index_t(share.group) * (p.channels / p.groups) * p.x_channel;
    const element_t* dy_first = dy + index_t(first_filter) * p.y_channel;

    element_t x_next[TAPS], dy_next[FILTERS];
    auto fetch = [&](small_t step) {
        const Pixel pixel = pixel_at(unsigned(step) * STEP + pixel_lane, x_group, dy_first, p, params);
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const Tap tap = tile_taps[lane + i * LANES];
            x_next[i] = reads(pixel, tap, p) ? pixel.x[tap.offset] : element_t();
        }
#pragma unroll
        for (int j = 0; j < FILTERS; j++) {
            const small_t filter = lane + j * LANES;
            const bool loads = pixel.exists && filter < least(TILE_F, there);
            dy_next[j] = loads ? pixel.dy[filter * p.y_channel] : element_t();
        }
    };
    auto keep = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < TAPS; i++) x_tile[buffer][pixel_lane][lane + i * LANES] = widen(x_next[i]);
#pragma unroll
        for (int j = 0; j < FILTERS; j++)
            if (lane + j * LANES < TILE_F) dy_tile[buffer][pixel_lane][lane + j * LANES] = widen(dy_next[j]);
    };

    const Tile::Place place = Tile::place_of(tid);
    sum_t sums[THREAD_T][THREAD_F] = {};
    fetch(share.begin);
    keep(0);
    __syncthreads();
    int buffer = 0;
    for (small_t step = share.begin + 1; step < share.end; step++) {
        fetch(step);
        Tile::add(sums, x_tile[buffer], dy_tile[buffer], place);
        buffer ^= 1;
        keep(buffer);
        __syncthreads();
    }
    Tile::add(sums, x_tile[buffer], dy_tile[buffer], place);

    sum_t* part = params.parts == 1 ? nullptr : parts + index_t(blockIdx.y) * p.filters * params.taps;
#pragma unroll
    for (int j = 0; j < THREAD_F; j++) {
        const small_t filter = place.row + j / Tile::VN * Tile::ROWS * Tile::VN + j % Tile::VN;
        if (filter >= there) continue;
#pragma unroll
        for (int i = 0; i < THREAD_T; i += Tile::VM) {
            const small_t tap = share.first_tap + place.column + i * Tile::COLUMNS;
            if (tap >= params.taps) break;
            sum_t neighbours[Tile::VM];
#pragma unroll
            for (int e = 0; e < Tile::VM; e++) neighbours[e] = sums[i + e][j];
            store_sums(neighbours, first_filter + filter, tap, dw, part, p, params);
        }
    }
}
