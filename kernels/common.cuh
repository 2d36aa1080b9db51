// What every CUDA source of convalgos shares. Compiled by NVRTC, so it includes nothing.
#pragma once

// Positions in arrays: a convolution's arrays may hold 2^31 elements and more.
using index_t = long long;

// Positions in a tile, a block or a kernel: fast, and always small.
using small_t = int;

// ceil(n / d) for n >= 0, d > 0: how many pieces of size d cover n.
template <typename T>
__host__ __device__ constexpr T ceil_div(T n, T d) {
    return (n + d - 1) / d;
}

// The least multiple of d that is at least n.
template <typename T>
__host__ __device__ constexpr T round_up(T n, T d) {
    return ceil_div(n, d) * d;
}

// Whether 0 <= i < size, in one comparison: padding turns negative positions into large unsigned ones.
__host__ __device__ constexpr bool inside(small_t i, small_t size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}
