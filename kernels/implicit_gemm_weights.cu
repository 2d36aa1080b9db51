// The gradient of the filter on tensor cores, through mma.sync: float16 and bfloat16, TF32, three times TF32.
//
// A block computes TILE_F filters x TILE_T taps of one group. A step's pixels lie in shared memory as rows of
// filters and rows of taps: so do channels in arrays that have them last, and of others each thread takes some
// neighbours of one pixel. Instructions want two pixels in a word: fragments of 16-bit elements are turned while
// they are loaded. Rows are filled up so that the eight rows of a load begin on banks of their own.
//
// Macros: element_t, MATH (0 half, 1 TF32, 2 three times TF32), TILE_F, TILE_T, CHANNELS_LAST, and VECTOR: whole
// 16 bytes of x and of dy lie together (channels last, C/groups and K/groups multiples), and are copied as such.
#include "mma_fragments.cuh"
#include "split_k_weights.cuh"

constexpr int CHUNK = 16 / sizeof(element_t);  // elements of 16 bytes, the unit of copies
constexpr int STEP = 128 / sizeof(element_t);  // pixels of a step
constexpr int F_PITCH = TILE_F + 8, T_PITCH = TILE_T + 8;  // elements from one pixel to the next
constexpr int WARP_F = TILE_F * TILE_T == 128 * 128 ? 64 : 32, WARP_T = 32;  // filters and taps of a warp
constexpr int WARPS_F = TILE_F / WARP_F;
constexpr int THREADS = WARPS_F * (TILE_T / WARP_T) * 32;
constexpr int ROWS = WARP_F / 16, COLUMNS = WARP_T / 8;   // products of a warp
constexpr int STAGE = STEP * (F_PITCH + T_PITCH);         // elements of a stage in shared memory
constexpr int F_CHUNKS = TILE_F / CHUNK, T_CHUNKS = TILE_T / CHUNK;  // of a pixel
constexpr int F_PASSES = STEP * F_CHUNKS / THREADS, T_PASSES = STEP * T_CHUNKS / THREADS;  // chunks of a thread

// The i-th chunk that a thread brings of rows of CHUNKS: neighbouring threads take neighbours in memory.
struct Chunk {
    small_t pixel, first;  // of the step, and element of its row
};

template <int CHUNKS>
__device__ inline Chunk chunk_of(small_t tid, int i) {
    if (VECTOR) return {tid / CHUNKS + i * (THREADS / CHUNKS), tid % CHUNKS * CHUNK};
    return {tid % STEP, (tid / STEP + i * (THREADS / STEP)) * CHUNK};
}

// x and dy as the problem says; taps (tap_tiles * TILE_T,). dw, or where there are several parts (parts, K, taps).
// Shared: 2 stages.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
implicit_gemm_weights(const element_t* __restrict__ x, const element_t* __restrict__ dy, element_t* __restrict__ dw,
                      sum_t* __restrict__ parts, const Tap* __restrict__ taps, const Conv p, const Params params) {
    __shared__ __align__(16) Tap tile_taps[TILE_T];
    element_t* const shared = static_cast<element_t*>(dynamic_shared());

    const small_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const Share share = share_of(blockIdx.x, blockIdx.y, params);
    const small_t filters = p.filters / p.groups;
    const small_t first_filter = share.group * filters + share.first_filter;  // of all
    const small_t there = filters - share.first_filter;                       // of the tile, or more
    for (small_t i = tid; i < TILE_T; i += THREADS) tile_taps[i] = taps[share.first_tap + i];
    __syncthreads();

    const element_t* x_group = x + index_t(share.group) * (p.channels / p.groups) * p.x_channel;
    const element_t* dy_first = dy + index_t(first_filter) * p.y_channel;
#if VECTOR
    const unsigned all_pixels = p.images * p.out[0] * p.out[1] * p.out[2];
#else
    Pack<element_t, CHUNK> held_f[F_PASSES], held_t[T_PASSES];  // on the way from global to shared memory
#endif
    auto fetch = [&](small_t step, int buffer) {
        const unsigned first_pixel = unsigned(step) * STEP;
#if VECTOR
        element_t* f_to = shared + buffer * STAGE;
        element_t* t_to = f_to + STEP * F_PITCH;
#pragma unroll
        for (int i = 0; i < F_PASSES; i++) {
            const Chunk at = chunk_of<F_CHUNKS>(tid, i);
            const unsigned pixel = first_pixel + at.pixel;  // channels last, they follow one another
            const bool in = pixel < all_pixels && at.first < there;
            const element_t* from = dy_first + index_t(pixel) * p.y_pixel + at.first;
            copy_async_16_or_zeros(f_to + at.pixel * F_PITCH + at.first, in ? from : dy, in);
        }
#pragma unroll
        for (int i = 0; i < T_PASSES; i++) {
            const Chunk at = chunk_of<T_CHUNKS>(tid, i);
            const Pixel pixel = pixel_at(first_pixel + at.pixel, x_group, dy_first, p, params);
            const Tap tap = tile_taps[at.first];
            const bool in = reads(pixel, tap, p);
            copy_async_16_or_zeros(t_to + at.pixel * T_PITCH + at.first, in ? pixel.x + tap.offset : x, in);
        }
#else
        const Pixel pixel = pixel_at(first_pixel + tid % STEP, x_group, dy_first, p, params);
#pragma unroll
        for (int i = 0; i < F_PASSES; i++)
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
                const small_t filter = chunk_of<F_CHUNKS>(tid, i).first + e;
                held_f[i].v[e] = pixel.exists && filter < there ? pixel.dy[filter * p.y_channel] : element_t();
            }
#pragma unroll
        for (int i = 0; i < T_PASSES; i++)
#pragma unroll
            for (int e = 0; e < CHUNK; e++) {
                const Tap tap = tile_taps[chunk_of<T_CHUNKS>(tid, i).first + e];
                held_t[i].v[e] = reads(pixel, tap, p) ? pixel.x[tap.offset] : element_t();
            }
#endif
    };
    auto keep = [&](int buffer) {
#if !VECTOR
        element_t* f_to = shared + buffer * STAGE + tid % STEP * F_PITCH;
        element_t* t_to = shared + buffer * STAGE + STEP * F_PITCH + tid % STEP * T_PITCH;
#pragma unroll
        for (int i = 0; i < F_PASSES; i++) store_pack<CHUNK>(f_to + chunk_of<F_CHUNKS>(tid, i).first, held_f[i]);
#pragma unroll
        for (int i = 0; i < T_PASSES; i++) store_pack<CHUNK>(t_to + chunk_of<T_CHUNKS>(tid, i).first, held_t[i]);
#endif
        wait_for_copies();
        __syncthreads();
    };

    const small_t warp_f = warp % WARPS_F * WARP_F, warp_t = warp / WARPS_F * WARP_T;
    const small_t quad = lane / 4, within = lane % 4;  // row of a fragment, and word of its row
    float sums[ROWS][COLUMNS][4] = {};
    auto accumulate = [&](int buffer) {
        const element_t* f_from = shared + buffer * STAGE + warp_f;
        const element_t* t_from = shared + buffer * STAGE + STEP * F_PITCH + warp_t;
#pragma unroll
        for (int k = 0; k < STEP; k += 32 / sizeof(element_t)) {
            unsigned a[ROWS][4], b[COLUMNS][2];
#if MATH == 0
            const small_t row = k + lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
#pragma unroll
            for (int i = 0; i < ROWS; i++) load_matrices_turned(a[i], f_from + (row + high) * F_PITCH + i * 16 + low);
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                unsigned both[4];
                load_matrices_turned(both, t_from + (row + low) * T_PITCH + j * 8 + high);
#pragma unroll
                for (int e = 0; e < 4; e++) b[j + e / 2][e % 2] = both[e];
            }
#else
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[i][e] = __float_as_uint(f_from[(k + within + e / 2 * 4) * F_PITCH + i * 16 + e % 2 * 8 + quad]);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    b[j][e] = __float_as_uint(t_from[(k + within + e * 4) * T_PITCH + j * 8 + quad]);
#endif
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) multiply(sums[i][j], a[i], b[j]);
        }
    };

    fetch(share.begin, 0);
    keep(0);
    int buffer = 0;
    for (small_t step = share.begin + 1; step < share.end; step++) {
        fetch(step, buffer ^ 1);
        accumulate(buffer);
        buffer ^= 1;
        keep(buffer);
    }
    accumulate(buffer);

    sum_t* part = params.parts == 1 ? nullptr : parts + index_t(blockIdx.y) * p.filters * params.taps;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const small_t filter = warp_f + i * 16 + half * 8 + quad;
                const small_t tap = share.first_tap + warp_t + j * 8 + within * 2;
                const float pair[2] = {sums[i][j][half * 2], sums[i][j][half * 2 + 1]};
                if (filter < there && tap < params.taps) store_sums(pair, first_filter + filter, tap, dw, part, p,
                                                                    params);
            }
}
