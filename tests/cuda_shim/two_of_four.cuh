// Stands in for kernels/two_of_four.cuh on the CPU: the same names, without PTX.
#pragma once
#include "ptx.cuh"

template <typename T>
inline void mma_sp(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned places, T type) {
    struct Fragments {
        unsigned a[4], b[4], places;
    } mine, all[32];
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    mine.places = places;
    shim::gather(mine, all);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float of_b[32];
        for (int word = 0; word < 16; word++) elements(all[column * 4 + word % 4].b[word / 4], type, of_b + 2 * word);
        for (int four = 0; four < 8; four++) {  // of a row of a, of which a word holds what is kept
            const unsigned held = all[row % 8 * 4 + four / 4].places >> (row / 8 * 16 + four % 4 * 4) & 15;
            float of_a[2];
            elements(all[row % 8 * 4 + four % 4].a[row / 8 + four / 4 * 2], type, of_a);
            if ((held & 3) >= held >> 2) shim::refuse("the places of two elements do not rise");
            sums[i] += of_a[0] * of_b[four * 4 + (held & 3)];
            sums[i] += of_a[1] * of_b[four * 4 + (held >> 2)];
        }
    }
}
