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

// Division by a number that a launch fixes, as a product and a shift; `divisor` in kernel_records.py makes it.
struct Divisor {
    unsigned by, factor, shift;
};

// The remainder of rest / d for rest < 2^31; rest becomes the quotient. So a thread's number is taken apart.
__device__ inline small_t take(unsigned& rest, const Divisor& d) {
    const unsigned high = static_cast<unsigned long long>(rest * 2) * d.factor >> 32;
    const unsigned quotient = high >> d.shift;
    const small_t left = rest - quotient * d.by;
    rest = quotient;
    return left;
}

// A warp over a grid of 8 x 4. Of two operands in shared memory, one along each side, a lane loads 16 bytes at a
// time: with this order, one of two neighbours or of two second neighbours always repeats an address, and a load
// takes two passes instead of four.
__device__ inline small_t lane_of_8(small_t lane) { return lane >> 1 & 7; }
__device__ inline small_t lane_of_4(small_t lane) { return (lane & 1) | (lane >> 4 << 1); }

// COUNT neighbours that are loaded and stored at once, in pieces of up to 16 bytes.
template <typename T, int COUNT>
struct alignas(least<int>(sizeof(T) * COUNT, 16)) Pack {
    T v[COUNT];
};

template <int COUNT, typename T>
__device__ inline Pack<T, COUNT> load_pack(const T* from) {
    return *reinterpret_cast<const Pack<T, COUNT>*>(from);
}

// The same or zeros, in whole words where it is some.
template <int COUNT, typename T>
__device__ inline Pack<T, COUNT> load_pack_or_zeros(const T* from, bool loads) {
    Pack<T, COUNT> pack = {};
    if constexpr (sizeof(pack) % sizeof(unsigned) == 0) {
        using Words = Pack<unsigned, sizeof(pack) / sizeof(unsigned)>;
        Words words = {};
        if (loads) words = *reinterpret_cast<const Words*>(from);
        *reinterpret_cast<Words*>(&pack) = words;
    } else if (loads) {
        pack = load_pack<COUNT>(from);
    }
    return pack;
}

template <int COUNT, typename T>
__device__ inline void store_pack(T* to, const Pack<T, COUNT>& pack) {
    *reinterpret_cast<Pack<T, COUNT>*>(to) = pack;
}

// The elements of a pack in the type they are summed in, and back: 16-bit ones word by word.
template <typename T, int COUNT, typename W>
__device__ inline void widen_pack(const Pack<T, COUNT>& pack, W* to) {
    if constexpr (sizeof(T) == 2 && COUNT % 2 == 0) {
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
            widen_pair(reinterpret_cast<const unsigned*>(&pack)[j / 2], T(), to[j], to[j + 1]);
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++) to[j] = widen(pack.v[j]);
    }
}

template <typename T, int COUNT, typename W>
__device__ inline Pack<T, COUNT> narrow_pack(const W* from) {
    Pack<T, COUNT> pack;
    if constexpr (sizeof(T) == 2 && COUNT % 2 == 0) {
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
            reinterpret_cast<unsigned*>(&pack)[j / 2] = narrow_pair(from[j], from[j + 1], T());
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++) pack.v[j] = narrow<T>(from[j]);
    }
    return pack;
}

// The sizes of a problem. Three spatial dimensions (d, h, w), leading ones of size 1 for fewer; strides in
// elements. CONV in kernel_records.py has the same fields.
struct Conv {
    index_t x_image, y_image;      // from one image to the next
    small_t x_channel, y_channel;  // from one channel to the next: a plane, or 1
    small_t x_pixel, y_pixel;      // from one pixel to the next: 1, or the number of channels
    small_t images, channels, filters, groups;
    small_t size[3], kernel[3], out[3], stride[3], dilation[3], pad[3];
    small_t relu;  // whether there is an activation: ReLU, unless the build has another
    small_t spare;
#ifdef RESIDUAL  // other builds take less of the record
    index_t residual;  // address of an array like y
#endif
};

// A tap of a group's filters; `tap_table` in gemm/tap_table.py makes them.
struct Tap {
    small_t offset;   // in x, from the first input of a pixel
    small_t d, h, w;  // in the dilated kernel; outside of every input for taps that fill up a step
};

// Activations beside ReLU, which a build has instead of it; numbers as in epilogue.py.
#ifndef ACTIVATION
#define ACTIVATION 1
#endif

__device__ inline float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }
__device__ inline double sigmoid(double v) { return 1. / (1. + exp(-v)); }

// The distribution of a normal variable.
__device__ inline float normal_distribution(float v) { return 0.5f * erfcf(-0.707106781186547524f * v); }
__device__ inline double normal_distribution(double v) { return 0.5 * erfc(-0.707106781186547524 * v); }

// v times a share of it that is 0 for large negative ones, where -inf * 0 would be no limit. Keeps NaN.
template <typename T>
__device__ inline T shared_out(T v, T share) {
    return v < T(-1000) ? T(0) : v * share;
}

// Keeps NaN, as every activation does.
template <typename T>
__device__ inline T activated(T v) {
#if ACTIVATION == 1  // ReLU
    return v < 0 ? T(0) : v;
#elif ACTIVATION == 2  // clip
    return v < T(ACTIVATION_A) ? T(ACTIVATION_A) : v > T(ACTIVATION_B) ? T(ACTIVATION_B) : v;
#elif ACTIVATION == 3  // leaky ReLU
    return v < 0 ? v * T(ACTIVATION_A) : v;
#elif ACTIVATION == 4  // sigmoid
    return sigmoid(v);
#elif ACTIVATION == 5  // SiLU
    return shared_out(v, sigmoid(v));
#elif ACTIVATION == 6  // hard-swish
    const T raised = v + 3;
    const T plain = shared_out(v, (raised < 0 ? T(0) : raised > 6 ? T(6) : raised) * T(1. / 6));
    return plain * (1 + T(ACTIVATION_A)) + T(ACTIVATION_B);
#elif ACTIVATION == 7  // GELU
    return shared_out(v, normal_distribution(v));
#elif ACTIVATION == 8  // GELU by tanh: (1 + tanh(u)) / 2 = sigmoid(2 u)
    return shared_out(v, sigmoid(T(1.59576912160573071) * (v + T(0.044715) * v * v * v)));
#elif ACTIVATION == 9  // tanh
    return tanh(v);
#elif ACTIVATION == 10  // ELU, by alpha and a scale
    return T(ACTIVATION_B) * (v > 0 ? v : T(ACTIVATION_A) * expm1(v));
#elif ACTIVATION == 11  // softplus
    return (v < 0 ? T(0) : v) + log1p(exp(v < 0 ? v : -v));
#elif ACTIVATION == 12  // Mish: tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1)
    const T power = exp(v > 40 ? T(40) : v), square = power * (power + 2);
    return shared_out(v, square / (square + 2));
#endif
}

// What is added to the sum at a place of y: the bias, and in builds with RESIDUAL the residual.
template <typename E, typename T>
__device__ inline T with_residual(T bias, const Conv& p, index_t at) {
#ifdef RESIDUAL
    return bias + widen(reinterpret_cast<const E*>(p.residual)[at]);
#else
    return bias;
#endif
}

// The epilogue: sum + bias, then the activation.
template <typename T>
__device__ inline T finished(T sum, T bias, small_t active) {
    const T v = sum + bias;
    return active ? activated(v) : v;
}
