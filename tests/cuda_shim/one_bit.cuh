// Stands in for kernels/one_bit.cuh on the CPU: the same names, without PTX.
#pragma once
#include "ptx.cuh"

inline void mma_and(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_words(sums, a, b, [](int sum, unsigned p, unsigned q) { return sum + __builtin_popcount(p & q); });
}
