// Products of signs: +1 and -1 as bits, set where they are -1. As of ptx.cuh, a stand-in for this file is all that
// another machine needs to run what includes it.
#pragma once
#include "ptx.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// sums (16, 8) += in how many places both a (16, 256) and b (256, 8) are set, over a warp, in the layout of `mma` in
// ptx.cuh. As fast as xor.popc on 8.0, of which 9.0 makes two of these.
__device__ inline void mma_and(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
