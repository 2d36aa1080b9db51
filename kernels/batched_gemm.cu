// Products of matrices in strict float32: m[b] = transposed(u[b]) @ v[b] for many small ones of the same sizes.
//
// A block computes SIDE x SIDE of a product, a thread 8 x 8 in registers. Each step brings DEPTH rows of u and v to
// shared memory, while the next ones are on their way. Both run along the side that m has in common with them, so
// that nothing is transposed.
#include "common.cuh"

constexpr int DEPTH = 8;  // rows of a step

struct Params {
    Divisor row_blocks, column_blocks;  // of m
    small_t rows, columns, depth;       // of m, and of the sums; columns is a multiple of 4
    small_t rows_padded, depth_padded;  // of u: multiples of SIDE and DEPTH, filled up with zeros
};

template <int SIDE>
__device__ inline void multiply(const float* __restrict__ u, const float* __restrict__ v, float* __restrict__ m,
                                const Params& params, float* shared) {
    constexpr int THREADS = SIDE * SIDE / 64, FOURS = DEPTH * SIDE / 4, COPIES = ceil_div(FOURS, THREADS);
    static_assert(FOURS % THREADS == 0, "all threads copy as much");
    float *const u_tile = shared, *const v_tile = shared + 2 * DEPTH * SIDE;  // (2, DEPTH, SIDE)
    const small_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    unsigned batch = blockIdx.x;
    const small_t first_row = take(batch, params.row_blocks) * SIDE;
    const small_t first_column = take(batch, params.column_blocks) * SIDE;
    const float* u_from = u + (index_t(batch) * params.depth_padded) * params.rows_padded + first_row;
    const float* v_from = v + (index_t(batch) * params.depth) * params.columns + first_column;
    auto fetch = [&](int buffer, small_t d0) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const small_t four = tid + i * THREADS, d = four / (SIDE / 4), at = four % (SIDE / 4) * 4;
            const bool there = d0 + d < params.depth && first_column + at < params.columns;
            const int to = (buffer * DEPTH + d) * SIDE + at;
            copy_async_16(u_tile + to, u_from + index_t(d0 + d) * params.rows_padded + at);
            copy_async_16_or_zeros(v_tile + to, v_from + (there ? index_t(d0 + d) * params.columns + at : 0), there);
        }
    };

    // A warp has 32 rows and 64 columns; a lane fours of them, half of the warp's apart.
    const small_t row = warp / (SIDE / 64) * 32 + lane_of_4(lane) * 4;
    const small_t column = warp % (SIDE / 64) * 64 + lane_of_8(lane) * 4;
    float sums[8][8] = {};
    fetch(0, 0);
    int buffer = 0;
    for (small_t d = 0; d < params.depth; d += DEPTH) {
        wait_for_copies();
        __syncthreads();  // and everyone is done with what is overwritten now
        if (d + DEPTH < params.depth) fetch(buffer ^ 1, d + DEPTH);
        const float *a_from = u_tile + buffer * DEPTH * SIDE + row, *b_from = v_tile + buffer * DEPTH * SIDE + column;
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            Pack<float, 4> a[2], b[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                a[half] = load_pack<4>(a_from + i * SIDE + half * 16);
                b[half] = load_pack<4>(b_from + i * SIDE + half * 32);
            }
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) sums[r][c] += a[r / 4].v[r % 4] * b[c / 4].v[c % 4];
        }
        buffer ^= 1;
    }
    float* to = m + index_t(batch) * params.rows * params.columns;
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const small_t at_row = first_row + row + r / 4 * 16 + r % 4, at = first_column + column + half * 32;
            if (at_row < params.rows && at < params.columns)
                store_pack<4>(to + index_t(at_row) * params.columns + at, narrow_pack<float, 4>(sums[r] + half * 4));
        }
}

// u (batches, depth_padded, rows_padded), v (batches, depth, columns), m (batches, rows, columns).
extern "C" __global__ void __launch_bounds__(256, 2)
multiply_128(const float* __restrict__ u, const float* __restrict__ v, float* __restrict__ m, const Params params) {
    __shared__ __align__(16) float shared[4 * DEPTH * 128];
    multiply<128>(u, v, m, params, shared);
}

extern "C" __global__ void __launch_bounds__(64, 6)
multiply_64(const float* __restrict__ u, const float* __restrict__ v, float* __restrict__ m, const Params params) {
    __shared__ __align__(16) float shared[4 * DEPTH * 64];
    multiply<64>(u, v, m, params, shared);
}
