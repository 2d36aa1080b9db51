// Winograd's short convolutions F(M, 3), in one and two dimensions, in float32 throughout.
//
// An output tile of M (x M) comes from POINTS products of transformed x and w, each summed over channels:
// y = AT [sum_c U * V] A. Two ways:
//   fused   one kernel: a block transforms the patches of TILES tiles, multiplies them with the filters of a
//           block point by point, a warp to PER_WARP points, and transforms the sums back. Long sums over
//           channels may be split over gridDim.z; `reduce` adds the parts.
//   gemm    `input` writes V, a batched product of matrices (batched_gemm.cu) makes M, `output` transforms it back.
//
// Macros: M, ALPHA = M + 2, DIMS, PER_WARP, CHANNELS_LAST; INPUT_TRANSFORM, in place on d[i * STEP], and
// OUTPUT_TRANSFORM from p[i * FROM] to o[j * TO], printed from the exact matrices.
#include "common.cuh"

constexpr int ROWS = DIMS == 2 ? ALPHA : 1;  // of a patch
constexpr int OUT_ROWS = DIMS == 2 ? M : 1;  // of a tile
constexpr int POINTS = ROWS * ALPHA;

struct Params {
    Divisor columns, rows, depth;  // of tiles in a plane; out[0]
    Divisor y_channel, filters_all;  // reduce: outputs from filter to filter, filters of all groups
    // gemm: the tiles of this pass or, channels last, fours of channels and of filters
    Divisor fastest_of_x, fastest_of_y;
    small_t tiles;                   // in all
    small_t channels, filters;  // of a group
    small_t channel_blocks, filter_blocks;
    small_t splits;
    small_t first, count;  // gemm: the first tile of this pass, and its tiles
};

// Where a tile lies: image, and the first input of its patch. In one dimension each row is for itself.
struct Place {
    small_t image, depth, row, column;  // of the output
    small_t d, h, w;                    // of the input
};

__device__ inline Place place_of(unsigned tile, const Conv& p, const Params& params) {
    Place at;
    at.column = take(tile, params.columns) * M;
    at.row = take(tile, params.rows) * OUT_ROWS;
    at.depth = take(tile, params.depth);
    at.image = tile;
    at.d = at.depth * p.stride[0];
    at.h = DIMS == 2 ? at.row - p.pad[1] : at.row * p.stride[1];
    at.w = at.column - p.pad[2];
    return at;
}

template <int STEP>
__device__ inline void input_1d(float* d) {
    INPUT_TRANSFORM
}

template <int FROM, int TO>
__device__ inline void output_1d(const float* p, float* o) {
    OUTPUT_TRANSFORM
}

// A patch of one channel: its first input, which may lie in the padding, and which rows (from bit 0 on) and columns
// (from bit ALPHA on) lie in x: in one register, of which there are none to spare.
struct Patch {
    const float* from;
    unsigned there;
};

__device__ inline Patch patch_of(const float* x, const Place& at, index_t channel, const Conv& p) {
    const index_t pixel = (index_t(at.d) * p.size[1] + at.h) * p.size[2] + at.w;
    Patch patch = {x + at.image * p.x_image + channel * p.x_channel + pixel * p.x_pixel, 0};
#pragma unroll
    for (int i = 0; i < ALPHA; i++) {
        if (i < ROWS && inside(at.h + i, p.size[1])) patch.there |= 1u << i;
        if (inside(at.w + i, p.size[2])) patch.there |= 1u << ALPHA + i;
    }
    return patch;
}

// VECTORS: all columns of a row but the outer two are loaded at once.
template <bool VECTORS>
__device__ inline void load_rows(float* d, const Patch& patch, const Conv& p) {
    // Worked out anew, row by row: places and tests known at once and for all steps would fill the registers.
    const unsigned there = forget(patch.there);
    const small_t pixel = CHANNELS_LAST ? p.x_pixel : 1;
    const float* from = patch.from;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        auto holds = [&](int j) {
            const unsigned both = 1u << i | 1u << ALPHA + j;
            return (there & both) == both;
        };
        float* to = d + i * ALPHA;
        if (VECTORS) {
            to[0] = holds(0) ? load_constant(from) : 0.f;
            load_constants<M>(from + 1, holds(1), to + 1);
            to[M + 1] = holds(M + 1) ? load_constant(from + M + 1) : 0.f;
        } else {
#pragma unroll
            for (int j = 0; j < ALPHA; j++) to[j] = holds(j) ? load_constant(from + j * forget(pixel)) : 0.f;
        }
        from = forget(from + p.size[2] * pixel);
    }
}

// Zeros outside of x. Vectors where they begin at a multiple of M in every row and tile, as with padding "same". (Pairs
// for other paddings would have to lie elsewhere in registers, and moving them would wait for them.)
__device__ inline void load_patch(float* d, const Patch& patch, const Conv& p) {
    if (!CHANNELS_LAST && p.size[2] % M == 0 && p.pad[2] % M == 1)
        load_rows<true>(d, patch, p);
    else
        load_rows<false>(d, patch, p);
}

__device__ inline void transform_patch(float* d) {
#if DIMS == 2
#pragma unroll
    for (int j = 0; j < ALPHA; j++) input_1d<ALPHA>(d + j);
#endif
#pragma unroll
    for (int i = 0; i < ROWS; i++) input_1d<1>(d + i * ALPHA);
}

// From the sums of all points to the outputs of a tile, bias and ReLU included; y at its image and filter.
__device__ inline void store_tile(const float* sums, float* y, const Place& at, const Conv& p, float bias,
                                  small_t relu) {
    float half[OUT_ROWS * ALPHA], out[OUT_ROWS * M];
#if DIMS == 2
#pragma unroll
    for (int j = 0; j < ALPHA; j++) output_1d<ALPHA, ALPHA>(sums + j, half + j);
#else
#pragma unroll
    for (int j = 0; j < ALPHA; j++) half[j] = sums[j];
#endif
#pragma unroll
    for (int i = 0; i < OUT_ROWS; i++) output_1d<1, 1>(half + i * ALPHA, out + i * M);
    const index_t row = index_t(at.depth) * p.out[1] + at.row;
    float* to = y + (row * p.out[2] + at.column) * p.y_pixel;
    const small_t left = p.out[2] - at.column;
#pragma unroll
    for (int i = 0; i < OUT_ROWS; i++) {
        if (at.row + i >= p.out[1]) break;
        float* v = out + i * M;
#pragma unroll
        for (int j = 0; j < M; j++) v[j] = finished(v[j], bias, relu);
        if (!CHANNELS_LAST && p.out[2] % M == 0) {
            store_pack<M>(to, narrow_pack<float, M>(v));
        } else if (!CHANNELS_LAST && p.out[2] % 2 == 0) {
#pragma unroll
            for (int j = 0; j < M; j += 2)
                if (j < left) store_pack<2>(to + j, narrow_pack<float, 2>(v + j));
        } else {
#pragma unroll
            for (int j = 0; j < M; j++)
                if (j < left) to[j * p.y_pixel] = v[j];
        }
        to += p.out[2] * p.y_pixel;
    }
}

#if FUSED

constexpr int TILES = 32, FILTERS = 32, CHANNELS = 8;  // of a block, and of a step
constexpr int THREADS = POINTS / PER_WARP * 32;
constexpr int V_ROW = TILES + 4;  // off the banks of the row before
constexpr int V_SIZE = POINTS * CHANNELS * V_ROW, U_SIZE = POINTS * CHANNELS * FILTERS;
constexpr int PATCHES = ceil_div(TILES * CHANNELS, THREADS);  // of a thread in a step
constexpr int WIDE_K = 8, WIDE_T = 4;                         // filters and tiles of a lane

// Where the sum of a point, filter and tile is kept to be transformed back: fours of tiles are shuffled so that
// lanes write four sums, and read one of eight filters and four tiles or of one filter, without waiting for banks.
__device__ inline small_t m_at(small_t point, small_t k, small_t tile) {
    const small_t turn = (k & 7) ^ (k >> 1 & 4);
    return (point * FILTERS + k) * TILES + (tile ^ turn * 4);
}

// u (groups, filter_blocks, channel_blocks, POINTS, CHANNELS, FILTERS), zeros beyond filters and channels.
// y (splits, ...) of partial sums where there are several, which take neither bias nor ReLU.
// Shared: max(2 * (V_SIZE + U_SIZE), POINTS * FILTERS * TILES) floats.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
fused(const float* __restrict__ x, const float* __restrict__ u, const float* __restrict__ bias,
      float* __restrict__ y, const Conv p, const Params params) {
    float* const shared = static_cast<float*>(dynamic_shared());
    float* const v_tile = shared;
    float* const u_tile = shared + 2 * V_SIZE;
    const small_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const small_t filter_block = blockIdx.x % params.filter_blocks, group = blockIdx.x / params.filter_blocks;
    const small_t first_tile = blockIdx.y * TILES;
    const small_t begin = index_t(params.channel_blocks) * blockIdx.z / params.splits;
    const small_t end = index_t(params.channel_blocks) * (blockIdx.z + 1) / params.splits;

    Patch patches[PATCHES];
    small_t left[PATCHES], v_at[PATCHES];  // channels from the patch's own on; place within a step
#pragma unroll
    for (int i = 0; i < PATCHES; i++) {
        const small_t task = tid + i * THREADS;
        const small_t channel = CHANNELS_LAST ? task % CHANNELS : task / TILES;
        const small_t tile = CHANNELS_LAST ? task / CHANNELS : task % TILES;
        const bool exists = task < TILES * CHANNELS && first_tile + tile < params.tiles;
        const small_t first = begin * CHANNELS + channel;
        const Place at = place_of(first_tile + tile, p, params);
        patches[i] = patch_of(x, at, index_t(group) * params.channels + first, p);
        left[i] = exists ? params.channels - first : 0;
        v_at[i] = channel * V_ROW + tile;
    }
    const index_t u_block = (index_t(group) * params.filter_blocks + filter_block) * params.channel_blocks + begin;
    const float* u_from = u + u_block * U_SIZE + tid * 4;

    float d[PATCHES][POINTS];
    auto fetch = [&](int buffer) {
        static_assert(U_SIZE % (THREADS * 4) == 0, "all threads copy as much of u");
#pragma unroll
        for (int i = 0; i < U_SIZE; i += THREADS * 4)
            copy_async_16(u_tile + buffer * U_SIZE + forget(tid) * 4 + i, u_from + i);
        u_from += U_SIZE;
#pragma unroll
        for (int i = 0; i < PATCHES; i++) {
            if (left[i] > 0) {
                load_patch(d[i], patches[i], p);
            } else {
#pragma unroll
                for (int j = 0; j < POINTS; j++) d[i][j] = 0.f;
            }
            left[i] -= CHANNELS;
            patches[i].from += index_t(CHANNELS) * p.x_channel;
        }
    };

    const small_t lane_k = lane_of_4(lane) * WIDE_K, lane_t = lane_of_8(lane) * WIDE_T;
    float sums[PER_WARP][WIDE_K][WIDE_T] = {};
    fetch(0);
    for (small_t block = begin; block < end; block++) {
        const int buffer = (block - begin) & 1;
#pragma unroll
        for (int i = 0; i < PATCHES; i++) {
            if (tid + i * THREADS >= TILES * CHANNELS) continue;
            transform_patch(d[i]);
#pragma unroll
            for (int j = 0; j < POINTS; j++) v_tile[buffer * V_SIZE + j * CHANNELS * V_ROW + v_at[i]] = d[i][j];
        }
        wait_for_copies();
        __syncthreads();
        if (block + 1 < end) fetch(buffer ^ 1);
        const float* u_at = u_tile + buffer * U_SIZE + warp * PER_WARP * CHANNELS * FILTERS + lane_k;
        const float* v_from = v_tile + buffer * V_SIZE + warp * PER_WARP * CHANNELS * V_ROW + lane_t;
#pragma unroll 1  // unrolled, sums would be moved about between registers, of which there are none to spare
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
            for (int j = 0; j < PER_WARP; j++) {
                Pack<float, 4> a[WIDE_K / 4];
#pragma unroll
                for (int k = 0; k < WIDE_K / 4; k++) a[k] = load_pack<4>(u_at + (j * CHANNELS + c) * FILTERS + k * 4);
                const Pack<float, 4> b = load_pack<4>(v_from + (j * CHANNELS + c) * V_ROW);
#pragma unroll
                for (int k = 0; k < WIDE_K; k++)
#pragma unroll
                    for (int t = 0; t < WIDE_T; t++) sums[j][k][t] += a[k / 4].v[k % 4] * b.v[t];
            }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < PER_WARP; j++)
#pragma unroll
        for (int k = 0; k < WIDE_K; k++)
            store_pack<WIDE_T>(shared + m_at(warp * PER_WARP + j, lane_k + k, lane_t),
                               narrow_pack<float, WIDE_T>(sums[j][k]));
    __syncthreads();
    float* y_part = y + index_t(blockIdx.z) * p.images * p.y_image;
    const bool whole = params.splits == 1;
    // Lanes have a filter and 32 tiles or, channels last, 8 filters and 4 tiles.
    for (small_t i = warp; i < FILTERS * TILES / 32; i += THREADS / 32) {
        const small_t k = CHANNELS_LAST ? i % 4 * 8 + lane % 8 : i;
        const small_t tile = CHANNELS_LAST ? i / 4 * 4 + lane / 8 : lane;
        const small_t filter = filter_block * FILTERS + k;
        if (filter >= params.filters || first_tile + tile >= params.tiles) continue;
        float point[POINTS];
#pragma unroll
        for (int j = 0; j < POINTS; j++) point[j] = shared[m_at(j, k, tile)];
        const Place to = place_of(first_tile + tile, p, params);
        const index_t all = index_t(group) * params.filters + filter;
        const float b = bias && whole ? bias[all] : 0.f;
        store_tile(point, y_part + to.image * p.y_image + all * p.y_channel, to, p, b, whole && p.relu);
    }
}

// y = sum of the parts, in their order, then bias and ReLU.
extern "C" __global__ void __launch_bounds__(256)
reduce(const float* __restrict__ parts, const float* __restrict__ bias, float* __restrict__ y, const Conv p,
       const Params params) {
    const small_t size = p.images * p.y_image;  // less than 2^31 where sums are split
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    if (i >= size) return;
    float sum = 0.f;
    for (small_t part = 0; part < params.splits; part++) sum += parts[part * index_t(size) + i];
    unsigned rest = i;
    if (!CHANNELS_LAST) take(rest, params.y_channel);
    y[i] = finished(sum, bias ? bias[take(rest, params.filters_all)] : 0.f, p.relu);
}

#else  // through a product of matrices

constexpr int THREADS = 128;

// The channel or filter of a thread, and its tile of this pass. Tiles are the fastest index of V and M; channels last
// a warp has 4 channels of 8 tiles, so that whole sectors of V and M are written and read.
struct Task {
    small_t channel, tile;
};

__device__ inline Task task_of(const Divisor& fastest) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (!CHANNELS_LAST) {
        const small_t tile = take(rest, fastest);
        return {small_t(rest), tile};
    }
    const small_t lane = rest % 32;
    rest /= 32;
    const small_t four = take(rest, fastest);
    return {four * 4 + lane % 4, small_t(rest) * 8 + lane / 4};
}

// v (POINTS, channels, count).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
input(const float* __restrict__ x, float* __restrict__ v, const Conv p, const Params params) {
    const Task task = task_of(params.fastest_of_x);
    if (task.channel >= p.channels || task.tile >= params.count) return;
    // The last pass is filled up with tiles that do not exist: they repeat the last one.
    const Place at = place_of(least(params.first + task.tile, params.tiles - 1), p, params);
    float d[POINTS];
    load_patch(d, patch_of(x, at, task.channel, p), p);
    transform_patch(d);
    float* to = v + index_t(task.channel) * params.count + task.tile;
    const index_t plane = index_t(p.channels) * params.count;
#pragma unroll
    for (int j = 0; j < POINTS; j++) to[j * plane] = d[j];
}

// m (POINTS, filters, count).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
output(const float* __restrict__ m, const float* __restrict__ bias, float* __restrict__ y, const Conv p,
       const Params params) {
    const Task task = task_of(params.fastest_of_y);
    if (task.channel >= p.filters || task.tile >= params.count || params.first + task.tile >= params.tiles) return;
    const float* from = m + index_t(task.channel) * params.count + task.tile;
    const index_t plane = index_t(p.filters) * params.count;
    float point[POINTS];
#pragma unroll
    for (int j = 0; j < POINTS; j++) point[j] = from[j * plane];
    const Place at = place_of(params.first + task.tile, p, params);
    float* to = y + at.image * p.y_image + index_t(task.channel) * p.y_channel;
    store_tile(point, to, at, p, bias ? bias[task.channel] : 0.f, p.relu);
}

#endif
