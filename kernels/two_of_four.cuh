// Products with a matrix of which at most two of four neighbours in a row are not zero. As of ptx.cuh, a stand-in for
// this file is all that another machine needs to run what includes it.
#pragma once
#include "ptx.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// sums (16, 8) += a (16, 32) * b (32, 8) over a warp, in the layout of `mma` in ptx.cuh, where b has twice as many
// words. Of a there are 16 of the 32 elements of a row, and in `places` where they were: of lane l, for l % 4 < 2, of
// the elements l % 4 * 16 to l % 4 * 16 + 15, in the lower half for row l / 4 and in the upper one for row l / 4 + 8,
// two bits for each that is kept, four for each four. The places in a four rise.
#define MMA_SP(TYPES)                                                                                    \
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col." TYPES                         \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"  \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places))

__device__ inline void mma_sp(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned places,
                              float16_t) {
    MMA_SP("f32.f16.f16.f32");
}

__device__ inline void mma_sp(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned places,
                              bfloat16_t) {
    MMA_SP("f32.bf16.bf16.f32");
}
#undef MMA_SP
#endif
