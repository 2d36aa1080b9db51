// What every CUDA source of convalgos shares. Compiled by NVRTC, so it includes none of CUDA's headers.
#pragma once
#include "ptx.cuh"

// Positions in arrays: a convolution's arrays may hold 2^31 elements and more.
using index_t = long long;

// Positions in a tile, a block, a kernel or an image: fast, and always small.
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

template <typename T>
__host__ __device__ constexpr T least(T a, T b) {
    return a < b ? a : b;
}

template <typename T>
__host__ __device__ constexpr T most(T a, T b) {
    return a > b ? a : b;
}

// Whether 0 <= i < size, in one comparison: padding turns negative positions into large unsigned ones.
__host__ __device__ constexpr bool inside(small_t i, small_t size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
}

// COUNT neighbours that are loaded and stored at once, in pieces of up to 16 bytes.
template <typename T, int COUNT>
struct alignas(least<int>(sizeof(T) * COUNT, 16)) Pack {
    T v[COUNT];
};

template <int COUNT, typename T>
__device__ inline Pack<T, COUNT> load_pack(const T* from) {
    return *reinterpret_cast<const Pack<T, COUNT>*>(from);
}

template <int COUNT, typename T>
__device__ inline void store_pack(T* to, const Pack<T, COUNT>& pack) {
    *reinterpret_cast<Pack<T, COUNT>*>(to) = pack;
}

// The sizes of a problem. Three spatial dimensions (d, h, w), leading ones of size 1 for fewer; strides in
// elements. CONV in plan.py has the same fields.
struct Conv {
    index_t x_image, y_image;      // from one image to the next
    small_t x_channel, y_channel;  // from one channel to the next: a plane, or 1
    small_t x_pixel, y_pixel;      // from one pixel to the next: 1, or the number of channels
    small_t images, channels, filters, groups;
    small_t size[3], kernel[3], out[3], stride[3], dilation[3], pad[3];
    small_t relu;
    small_t spare;
};

// The output step: sum + bias, then ReLU, which keeps NaN.
template <typename T>
__device__ inline T finished(T sum, T bias, small_t relu) {
    const T v = sum + bias;
    return relu && v < 0 ? T(0) : v;
}
