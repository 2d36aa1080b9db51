// Stands in for kernels/one_bit.cuh on the CPU: the same names, without PTX.
#pragma once
#include "ptx.cuh"

inline void mma_and(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Fragments {
        unsigned a[4], b[2];
    } mine, all[32];
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    shim::gather(mine, all);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int word = 0; word < 8; word++)
            sums[i] += __builtin_popcount(all[row % 8 * 4 + word % 4].a[row / 8 + word / 4 * 2] &
                                          all[column * 4 + word % 4].b[word / 4]);
    }
}
