// Products of fragments on tensor cores in the arithmetic that MATH names: 0 half, 1 TF32, 2 three times TF32, 3
// float64, 4 8-bit integers, 5 signs. SPARSE: of four neighbours in a row of a, two are held (half).
#pragma once
#include "integers.cuh"
#include "one_bit.cuh"
#include "two_of_four.cuh"

#ifndef SPARSE
#define SPARSE 0
#endif

#if MATH == 3
using word_t = double;                // what lanes hold of fragments,
constexpr int OF_A = 2, OF_B = 1;     // so many of each: `mma` says which

__device__ inline void multiply(double (&sums)[4], const double (&a)[2], const double (&b)[1]) { mma(sums, a, b); }
#else
using word_t = unsigned;
constexpr int OF_A = 4, OF_B = SPARSE ? 4 : 2;

#if MATH == 4
__device__ inline void multiply(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma(sums, a, b); }
#elif SPARSE
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned places) {
    mma_sp(sums, a, b, places, element_t());
}
#elif MATH == 5
__device__ inline void multiply(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_and(sums, a, b); }
#else
// sums (16, 8) += a * b over a warp, laid out as `mma` says; float32 elements are rounded here.
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if MATH == 0
    mma(sums, a, b, element_t());
#else
    unsigned a_high[4], b_high[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a_high[i] = round_tf32(__uint_as_float(a[i]));
#pragma unroll
    for (int i = 0; i < 2; i++) b_high[i] = round_tf32(__uint_as_float(b[i]));
#if MATH == 2
    unsigned a_low[4], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a_low[i] = round_tf32(__uint_as_float(a[i]) - __uint_as_float(a_high[i]));
#pragma unroll
    for (int i = 0; i < 2; i++) b_low[i] = round_tf32(__uint_as_float(b[i]) - __uint_as_float(b_high[i]));
    mma(sums, a_low, b_high, float());
    mma(sums, a_high, b_low, float());
#endif
    mma(sums, a_high, b_high, float());
#endif
}
#endif
#endif
