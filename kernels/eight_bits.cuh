// Elements of 8 bits, and the instructions that multiply the four of a word. As of ptx.cuh, a stand-in for this file
// is all that another machine needs to run what includes it.
#pragma once
#include "ptx.cuh"

using s8_t = signed char;

__device__ inline int widen(s8_t v) { return v; }
__device__ inline int widen(int v) { return v; }

// sum + the products of the four elements of two words; what does not fit wraps.
__device__ inline int add_four(int sum, unsigned a, unsigned b) {
    int found;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(sum));
    return found;
}

// The bytes of two words, 0 to 3 and 4 to 7, that the digits of `order` name, the lowest first.
__device__ inline unsigned picked_bytes(unsigned low, unsigned high, unsigned order) {
    unsigned found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "r"(order));
    return found;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// sums (16, 8) += a (16, 32) * b (32, 8) over a warp, in the layout of `mma` in ptx.cuh.
__device__ inline void mma(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Rounded once each, never as one multiply-add; to the nearest integer, ties to even.
__device__ inline float multiplied(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float added(float a, float b) { return __fadd_rn(a, b); }
__device__ inline int nearest(float v) { return __float2int_rn(v); }
