// A tile of a product in the registers of a block: M x N sums, OF_M x OF_N of them of a thread.
#pragma once
#include "common.cuh"
#include "eight_bits.cuh"

template <typename T>
__device__ inline void add_product(T& sum, T a, T b) {
    sum += a * b;
}

// Sums of integers take four taps at once, which lie in a word.
__device__ inline void add_product(int& sum, int a, int b) { sum = add_four(sum, a, b); }

template <typename sum_t, int M, int N, int OF_M, int OF_N>
struct RegisterTile {
    static constexpr int COLUMNS = M / OF_M, ROWS = N / OF_N;  // of threads
    static constexpr int THREADS = COLUMNS * ROWS;
    static constexpr int VM = least(4, OF_M), VN = least(4, OF_N);  // neighbouring sums of a thread
    static_assert(COLUMNS % 8 == 0 && ROWS % 4 == 0, "warps are 8 x 4 threads");

    // A thread's first sum in a tile: a warp has 8 columns and 4 rows of threads.
    struct Place {
        small_t column, row;
    };

    __device__ static Place place_of(small_t tid) {
        const small_t warp = tid / 32, lane = tid % 32;
        return {(warp % (COLUMNS / 8) * 8 + lane_of_8(lane)) * VM, (warp / (COLUMNS / 8) * 4 + lane_of_4(lane)) * VN};
    }

    // sums += products of K rows of both sides, in shared memory.
    template <int K, int M_PITCH, int N_PITCH>
    __device__ static void add(sum_t (&sums)[OF_M][OF_N], const sum_t (&m_rows)[K][M_PITCH],
                               const sum_t (&n_rows)[K][N_PITCH], const Place& place) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            Pack<sum_t, VM> a[OF_M / VM];
            Pack<sum_t, VN> b[OF_N / VN];
#pragma unroll
            for (int i = 0; i < OF_M / VM; i++) a[i] = load_pack<VM>(&m_rows[k][place.column + i * COLUMNS * VM]);
#pragma unroll
            for (int j = 0; j < OF_N / VN; j++) b[j] = load_pack<VN>(&n_rows[k][place.row + j * ROWS * VN]);
#pragma unroll
            for (int i = 0; i < OF_M; i++)
#pragma unroll
                for (int j = 0; j < OF_N; j++) add_product(sums[i][j], a[i / VM].v[i % VM], b[j / VN].v[j % VN]);
        }
    }
};
