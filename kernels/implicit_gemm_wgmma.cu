// Implicit GEMM for Hopper: wgmma over shared memory that the copy engine fills; floats of 16 and 8 bits, TF32, and
// 8-bit integers.
//
// A tile is ROWS x COLUMNS outputs of one group: pixels x filters channels last, filters x pixels channels first,
// so that neighbouring columns are neighbours in y either way. One warpgroup copies, two multiply.
// A step of the sum is 128 bytes of channels of one tap: rows of 128 bytes in shared memory, their 16-byte pieces
// swizzled (piece p of row r lies at p ^ r % 8). Pixels come through a tensor map in im2col mode, which knows
// padding, stride and image borders; filters are packed on the host into images of what a stage holds. Stages
// form a ring with a barrier each for `full` and `empty`. Blocks stay for several tiles: while sums are written,
// the next tile's steps arrive already.
//
// In ping-pong each of the two has a tile of its own: while one writes, the other multiplies, in turns. A cluster is
// two blocks with the same filters for different pixels: each copies half of a step's filters to both, so that a
// stage is free when both blocks have read it. In bulk, copies write y, whose lines are made of whole 16 bytes.
//
// Never run on hardware: only in an emulation of what NVIDIA documents.
//
// Macros: element_t; QUANTIZED, of 8-bit integers; FLOAT8, of 8-bit floats, whose y alone has elements of element_t;
// ROWS and COLUMNS of a tile, STAGES of the ring, BLOCKS that share a multiprocessor, PINGPONG, CLUSTER (1 or 2
// blocks), BULK. Which of two types of 8 bits either factor has is known at run time.
#include "hopper.cuh"
#include "split_k.cuh"

#ifdef QUANTIZED
using x_t = element_t;
using product_t = int;
using first_t = s8_t;
using second_t = u8_t;
#elif defined(FLOAT8)
using x_t = u8_t;  // its bits
using product_t = float;
using first_t = e4m3_t;
using second_t = e5m2_t;
#else
using x_t = element_t;
using product_t = float;
#endif

constexpr int ROW_BYTES = 128;
constexpr int STEP = ROW_BYTES / sizeof(x_t);        // channels of a step
constexpr int CHUNK = 16 / sizeof(x_t);              // of them, 16 bytes
constexpr int TEAMS = PINGPONG ? 2 : 1;              // that have a tile of their own, of two warpgroups in all
constexpr int ROW_GROUPS = PINGPONG || ROWS == 64 ? 1 : 2;   // warpgroups along rows of a tile
constexpr int WIDTH = COLUMNS * ROW_GROUPS * TEAMS / 2;      // columns of a warpgroup
constexpr int SLICES = ROWS / ROW_GROUPS / 64;       // of its rows, 64 each
constexpr int SUMS = WIDTH / 2;                      // of a thread and a slice
constexpr int A_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;
constexpr int WARPS = 8, THREADS = 384;              // that multiply; of a block, with a warpgroup that copies
constexpr int READERS = WARPS / TEAMS * CLUSTER;     // warps that read a stage, and free it
constexpr int BLOCK = BLOCKS == 1 ? 32 : 16;         // columns that a warp writes at once,
constexpr int PITCH = BLOCK + 8;                     // and a row of them in shared memory, off the banks of others
constexpr int STAGED_BYTES = BULK ? 16 * (256 + 16) : 16 * PITCH * 4;  // of a warp, on their way to y
constexpr int ALIGNED = 1024;                        // bytes after which the swizzle repeats
// Registers of a thread. At the start all have as many as `__launch_bounds__` leaves, 168 or 80.
constexpr int COPYING = BLOCKS == 1 ? 40 : 24, MULTIPLYING = BLOCKS == 1 ? 232 : 104;

#include "wgmma_output.cuh"
#include "wgmma_packing.cuh"

struct Params {
    small_t channels_last;    // of y, and whether rows are pixels
    small_t dimensions;       // of space that the tensor map has
    small_t filter_tiles;     // of a group
    small_t band;             // of these, that are computed side by side
    small_t tiles;            // of all groups; in clusters, pairs of them
    small_t splits;           // of the sum
    small_t channel_steps;    // of a tap: of all terms that a product is the sum of
    small_t x_steps;          // of x, which each term of the filter begins anew
    small_t steps;            // of the whole sum
    small_t factors;          // of 8 bits: 2 where those of rows are of the second type, and 1 where columns are
    small_t group_channels;   // from one group to the next in what the tensor map shows
};

// One tile's outputs and its part of the sum.
struct Work {
    small_t filter_tile, group, pixel_tile, split, begin, end;
};

__device__ inline Work work_of(small_t index, const Conv& p, const Params& params) {
    const small_t tile = index % params.tiles, split = index / params.tiles;
    const small_t of_filter_tile = params.tiles / params.filter_tiles;  // tiles
    const small_t first = tile / (of_filter_tile * params.band) * params.band;
    const small_t band = least(params.band, params.filter_tiles - first);
    const small_t in_band = tile - first * of_filter_tile;
    Work work;
    work.filter_tile = first + in_band % band;
    work.group = in_band / band % p.groups;
    work.pixel_tile = in_band / band / p.groups;
    if constexpr (CLUSTER > 1) work.pixel_tile = work.pixel_tile * CLUSTER + cluster_rank();
    work.split = split;
    work.begin = index_t(params.steps) * split / params.splits;
    work.end = index_t(params.steps) * (split + 1) / params.splits;
    return work;
}

// The tap and the channels of a step. Walking on takes no division, which a single thread would wait for.
struct Step {
    small_t channel_step;
    TapPlace tap;

    __device__ inline Step(small_t step, const Conv& p, const Params& params) {
        const small_t at = step / params.channel_steps;
        channel_step = step % params.channel_steps;
        tap.w = at % p.kernel[2] * p.dilation[2];
        tap.h = at / p.kernel[2] % p.kernel[1] * p.dilation[1];
        tap.d = at / p.kernel[2] / p.kernel[1] * p.dilation[0];
    }

    // In x. Of TF32 in three products, high and low parts of x are multiplied by high parts, then high by low ones.
    __device__ inline small_t place(const Params& params) const {
        const small_t at = channel_step < params.x_steps ? channel_step : channel_step - params.x_steps;
#ifdef QUANTIZED  // as many as three terms
        return at < params.x_steps ? at : at - params.x_steps;
#else
        return at;
#endif
    }

    __device__ inline void advance(const Conv& p, const Params& params) {
        if (++channel_step < params.channel_steps) return;
        channel_step = 0;
        tap.w += p.dilation[2];
        if (tap.w < p.kernel[2] * p.dilation[2]) return;
        tap.w = 0;
        tap.h += p.dilation[1];
        if (tap.h < p.kernel[1] * p.dilation[1]) return;
        tap.h = 0;
        tap.d += p.dilation[0];
    }
};

// The place in a ring of stages that both sides walk through.
struct Ring {
    small_t stage = 0;
    unsigned parity = 0;

    __device__ inline void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }

    __device__ inline void skip(small_t steps) {
        parity ^= (stage + steps) / STAGES & 1;
        stage = (stage + steps) % STAGES;
    }
};

// A matrix of rows of 128 swizzled bytes at an address of shared memory: 8 rows after 1024 bytes (the stride),
// swizzle mode 1. The other offset has no meaning there. 32 bytes further along the rows, 2 is added.
__device__ inline unsigned long long rows_at(unsigned address) {
    return (address & 0x3ffffu) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
constexpr int SLICE_A = 64 * ROW_BYTES >> 4;  // to add for 64 rows further down

// By a warp that has read a stage: frees it for the copies of all blocks of the cluster.
__device__ inline void free_stage(Barrier* empty) {
    const small_t lane = threadIdx.x % 32;
    if constexpr (CLUSTER > 1) {
        if (lane < CLUSTER) arrive_in_cluster(empty, lane);
    } else {
        if (lane == 0) arrive(empty);
    }
}

// By a warpgroup: the products of a stage, in a group of their own.
template <typename A, typename B>
__device__ inline void start_step(product_t (&sums)[SLICES][SUMS], unsigned long long a, unsigned long long b,
                                  bool adds) {
    order_products();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < SLICES; i++)
            start_product(sums[i], a + i * SLICE_A + 2 * k, b + 2 * k, adds || k > 0, Factors<A, B>());
    close_products();
}

// The same by the types that the factors have.
__device__ inline void multiply_step(product_t (&sums)[SLICES][SUMS], unsigned long long a, unsigned long long b,
                                     bool adds, small_t factors) {
#if defined(QUANTIZED) || defined(FLOAT8)
    if (factors == 0)
        start_step<first_t, first_t>(sums, a, b, adds);
    else if (factors == 1)
        start_step<first_t, second_t>(sums, a, b, adds);
    else if (factors == 2)
        start_step<second_t, first_t>(sums, a, b, adds);
    else
        start_step<second_t, second_t>(sums, a, b, adds);
#else
    start_step<element_t, element_t>(sums, a, b, adds);
#endif
}

#if CLUSTER > 1
#define CLUSTERED IN_CLUSTERS(CLUSTER)
#else
#define CLUSTERED
#endif

// pixels: the map of x, or of packed x. w (groups, filter tiles, steps, filters of a tile, 128 bytes), swizzled.
// y, or where the sum is split parts (splits, ...) in y's layout, which take neither bias nor ReLU.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) CLUSTERED
multiply(const __grid_constant__ TensorMap pixels, const unsigned char* __restrict__ w,
         const bias_t* __restrict__ bias, output_t* __restrict__ y, sum_t* __restrict__ parts, const conv_t p,
         const Params params) {
    unsigned char* const bytes = static_cast<unsigned char*>(dynamic_shared());
    unsigned char* const ring = bytes + (0u - shared_address(bytes)) % ALIGNED;  // (STAGES, STAGE_BYTES)
    unsigned char* const staging = ring + STAGES * STAGE_BYTES;                  // (WARPS, STAGED_BYTES)
    Barrier* const full = reinterpret_cast<Barrier*>(staging + WARPS * STAGED_BYTES), *const empty = full + STAGES;
    Barrier* const turns = empty + STAGES;
    const small_t tid = threadIdx.x, all_work = params.tiles * params.splits;
    const small_t first_work = blockIdx.x / CLUSTER, further = gridDim.x / CLUSTER;
    const small_t pixel_count = params.channels_last ? ROWS : COLUMNS, filter_count = ROWS + COLUMNS - pixel_count;
    const small_t filters = p.filters / p.groups, out_pixels = p.out[0] * p.out[1] * p.out[2];
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) make_barrier(full + i, 1), make_barrier(empty + i, READERS);
        for (int i = 0; i < TEAMS; i++) make_barrier(turns + i, WARPS / TEAMS);
        barriers_are_made();
    }
    if constexpr (CLUSTER > 1)
        meet_cluster();
    else
        __syncthreads();
    Ring at;
    if (tid < 128) {
        give_registers<COPYING>();
        if (tid == 0) {
            const unsigned w_bytes = filter_count * ROW_BYTES;
            for (small_t index = first_work; index < all_work; index += further) {
                const Work work = work_of(index, p, params);
                // The last tile of a cluster may begin beyond all images: zeros, and filters for the other block.
                const small_t pixel = work.pixel_tile * pixel_count, place = pixel % out_pixels;
                Corner corner;
                corner.image = pixel / out_pixels;
                corner.d = place / (p.out[1] * p.out[2]) * p.stride[0] - p.pad[0];
                corner.h = place / p.out[2] % p.out[1] * p.stride[1] - p.pad[1];
                corner.w = place % p.out[2] * p.stride[2] - p.pad[2];
                const unsigned char* w_tile =
                    w + (index_t(work.group) * params.filter_tiles + work.filter_tile) * params.steps * w_bytes;
                Step of_x(work.begin, p, params);
                for (small_t step = work.begin; step < work.end; step++, of_x.advance(p, params)) {
                    corner.channel = work.group * params.group_channels + of_x.place(params) * STEP;
                    unsigned char* const a = ring + at.stage * STAGE_BYTES;
                    unsigned char* const b = a + A_BYTES;
                    unsigned char* const x_to = params.channels_last ? a : b;
                    unsigned char* const w_to = params.channels_last ? b : a;
                    const unsigned char* w_from = w_tile + index_t(step) * w_bytes;
                    wait_for(empty + at.stage, at.parity ^ 1);
                    arrive_expecting(full + at.stage, STAGE_BYTES);
                    if (params.dimensions == 2)
                        copy_pixels_2d(x_to, &pixels, corner, of_x.tap, full + at.stage);
                    else if (params.dimensions == 1)
                        copy_pixels_1d(x_to, &pixels, corner, of_x.tap, full + at.stage);
                    else
                        copy_pixels_3d(x_to, &pixels, corner, of_x.tap, full + at.stage);
                    if constexpr (CLUSTER > 1) {
                        const unsigned share = w_bytes / CLUSTER, begin = cluster_rank() * share;
                        copy_bytes_to_cluster(w_to + begin, w_from + begin, share, full + at.stage, (1 << CLUSTER) - 1,
                                              kept_in_l2());
                    } else {
                        copy_bytes(w_to, w_from, w_bytes, full + at.stage);
                    }
                    at.advance();
                }
            }
        }
    } else {
        take_registers<MULTIPLYING>();
        const small_t warp = tid / 32 - 4, group = warp / 4, team = PINGPONG ? group : 0;
        const small_t group_row = group % ROW_GROUPS * SLICES * 64;
        const small_t group_column = PINGPONG ? 0 : group / ROW_GROUPS * WIDTH;
        unsigned char* const staged = staging + warp * STAGED_BYTES;
        product_t sums[SLICES][SUMS];
        small_t count = 0;  // of tiles so far, of which each team has every TEAMS-th
        for (small_t index = first_work; index < all_work; index += further, count++) {
            const Work work = work_of(index, p, params);
            if (count % TEAMS != team) {
                at.skip(work.end - work.begin);
                continue;
            }
            if constexpr (TEAMS > 1) wait_for_turn(turns + team, (count / TEAMS & 1) ^ (team == 0));
#ifdef FLOAT8
#pragma unroll
            for (int i = 0; i < SLICES * SUMS; i++) sums[i / SUMS][i % SUMS] = 0;
#endif
            [[maybe_unused]] small_t last = at.stage;
            for (small_t step = work.begin; step < work.end; step++) {
                wait_for(full + at.stage, at.parity);
                const unsigned stage = shared_address(ring + at.stage * STAGE_BYTES);
                const unsigned long long a = rows_at(stage + group_row * ROW_BYTES);
                const unsigned long long b = rows_at(stage + A_BYTES + group_column * ROW_BYTES);
#ifdef FLOAT8  // tensor cores sum these in fewer bits than float32 has: the sums of steps are added up here
                product_t of_step[SLICES][SUMS];
                multiply_step(of_step, a, b, false, params.factors);
                wait_for_products<0>(of_step);
                free_stage(empty + at.stage);
#pragma unroll
                for (int i = 0; i < SLICES * SUMS; i++) sums[i / SUMS][i % SUMS] += of_step[i / SUMS][i % SUMS];
#else
                multiply_step(sums, a, b, step > work.begin, params.factors);
                wait_for_products<1>(sums);
                if (step > work.begin) free_stage(empty + last);
                last = at.stage;
#endif
                at.advance();
            }
            if (TEAMS > 1 && tid % 32 == 0) give_turn(turns + 1 - team);  // its products queue up behind these
#ifndef FLOAT8
            wait_for_products<0>(sums);
            free_stage(empty + last);
#endif

            Output out;
            const small_t first_pixel = work.pixel_tile * pixel_count, first_filter = work.filter_tile * filter_count;
            const small_t all_pixels = p.images * out_pixels;
            out.row = (params.channels_last ? first_pixel : first_filter) + group_row + warp % 4 * 16;
            out.column = (params.channels_last ? first_filter : first_pixel) + group_column;
            out.rows_end = params.channels_last ? all_pixels : filters;
            out.columns_end = params.channels_last ? filters : all_pixels;
            out.line = params.channels_last ? filters : out_pixels;
            out.group_filters = work.group * filters;
            out.channels_last = params.channels_last;
            sum_t* const part = params.splits > 1 ? parts + index_t(work.split) * p.images * p.y_image : nullptr;
            sum_t* const rows = reinterpret_cast<sum_t*>(staged);
#pragma unroll
            for (int i = 0; i < SLICES; i++) {
#ifdef QUANTIZED
                if (out.line % 4 == 0)
                    write_integers<4>(sums[i], rows, out, part, y, bias, p);
                else
                    write_integers<1>(sums[i], rows, out, part, y, bias, p);
#else
                if (part && (BULK || out.line % 4 == 0))
                    write_sums<4>(sums[i], rows, out, part, nullptr, p, 0);
                else if (part)
                    write_sums<1>(sums[i], rows, out, part, nullptr, p, 0);
                else
#if BULK
                    store_sums(sums[i], staged, out, y, bias, p);
#else
                    write_lines<16 / sizeof(element_t)>(sums[i], rows, out, y, bias, p, p.relu);
#endif
#endif
                out.row += 64;
            }
        }
#if BULK
        wait_for_stores();  // they read this block's memory
#endif
    }
    if constexpr (CLUSTER > 1) meet_cluster();  // the other block arrives at this one's barriers to the end
}

extern "C" __global__ void __launch_bounds__(256)
reduce(const sum_t* __restrict__ parts, const bias_t* __restrict__ bias, output_t* __restrict__ y, const conv_t p,
       const small_t count) {
    reduce_parts(parts, bias, y, p, count);
}
