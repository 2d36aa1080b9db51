// How kernels that multiply floating-point elements, 8-bit integers or signs pad x and write y.
//
// Integers (builds with QUANTIZED) are signed in products: unsigned ones of x become so by their highest bit, which
// takes 128 from them. Padding holds x's zero point. Sums are int32, and wrap; the output step makes of them int32,
// float32, or 8 bits.
#pragma once
#include "common.cuh"
#include "eight_bits.cuh"

#ifdef QUANTIZED
// QUANTIZED_CONV in kernel_records.py has the same fields.
struct QuantizedConv : Conv {
    const int* offset;        // (K,): added to sums
    const float* multiplier;  // (K,)
    const element_t* pads;    // (16,): padding, for copies of 16 bytes
    const int* patterns;      // (pixels of an image,): of signs, which row of `borders` is added; or null
    const int* borders;       // (rows, K)
    float before, low, high;  // 8 bits: added to the product of sum and multiplier, then its limits
    small_t after;            // added once it is rounded
    unsigned filler;          // four elements of padding
    unsigned flip;            // the highest bits of four elements, where those of x are unsigned
    small_t output;           // type of y: 0 int32, 1 float32, 2 of 8 bits
    small_t unused;
};

using conv_t = QuantizedConv;
using bias_t = int;
using output_t = void;  // `output` tells

__device__ inline element_t padding_of(const QuantizedConv& p) { return p.filler; }
__device__ inline unsigned as_signed(unsigned four, const QuantizedConv& p) { return four ^ p.flip; }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// Starts copying 16 bytes of x to shared memory, or padding.
__device__ inline void copy_x(void* to, const element_t* from, bool there, const element_t*, const QuantizedConv& p) {
    copy_async_16(to, there ? from : p.pads);
}
#endif

// What is added to the sums of a filter; like them it wraps.
__device__ inline unsigned shift_of(const int* bias, small_t filter, const QuantizedConv& p) {
    return unsigned(p.offset[filter]) + (bias ? unsigned(bias[filter]) : 0u);
}

// The 32 or the lower 8 bits that y gets of a sum.
__device__ inline int output_bits(int sum, unsigned shift, float multiplier, const QuantizedConv& p) {
    const int whole = unsigned(sum) + shift;
    if (p.output == 0) return p.relu && whole < 0 ? 0 : whole;
    const float scaled = multiplied(float(whole), multiplier);
    if (p.output == 1) return __float_as_uint(p.relu ? activated(scaled) : scaled);
    const float v = added(scaled, p.before);
    return nearest(v < p.low ? p.low : v > p.high ? p.high : v) + p.after;
}

// COUNT neighbours from an element of y on, of what `output_bits` gives.
template <int COUNT>
__device__ inline void store_bits(void* y, index_t at, const Pack<int, COUNT>& whole, const QuantizedConv& p) {
    if (p.output < 2) {
        store_pack<COUNT>(static_cast<int*>(y) + at, whole);
    } else {
        Pack<element_t, COUNT> low;
#pragma unroll
        for (int i = 0; i < COUNT; i++) low.v[i] = whole.v[i];
        store_pack<COUNT>(static_cast<element_t*>(y) + at, low);
    }
}

// COUNT neighbouring outputs from an element of y on, of one filter or, with STEP 1, of as many from it on.
template <int COUNT, int STEP>
__device__ inline void store_outputs(void* y, index_t at, const int (&sums)[COUNT], const int* bias, small_t filter,
                                     const QuantizedConv& p) {
    Pack<int, COUNT> whole;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const small_t of = filter + i * STEP;
        whole.v[i] = output_bits(sums[i], shift_of(bias, of, p), p.multiplier[of], p);
    }
    store_bits<COUNT>(y, at, whole, p);
}
#else
using conv_t = Conv;
using bias_t = element_t;
using output_t = element_t;

__device__ inline element_t padding_of(const Conv&) { return element_t(); }

template <typename T>
__device__ inline T as_signed(T word, const Conv&) {
    return word;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ inline void copy_x(void* to, const element_t* from, bool there, const element_t* x, const Conv&) {
    copy_async_16_or_zeros(to, there ? from : x, there);
}
#endif

template <int COUNT, int STEP, typename T>
__device__ inline void store_outputs(element_t* y, index_t at, const T (&sums)[COUNT], const element_t* bias,
                                     small_t filter, const Conv& p) {
    Pack<element_t, COUNT> pack;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const T shift = bias ? widen(bias[filter + i * STEP]) : T(0);
        pack.v[i] = narrow<element_t>(finished(sums[i], with_residual<element_t>(shift, p, at + i), p.relu));
    }
    store_pack<COUNT>(y + at, pack);
}
#endif

template <typename T>
__device__ inline void store_output(output_t* y, index_t at, T sum, const bias_t* bias, small_t filter, const conv_t& p) {
    const T one[1] = {sum};
    store_outputs<1, 0>(y, at, one, bias, filter, p);
}
