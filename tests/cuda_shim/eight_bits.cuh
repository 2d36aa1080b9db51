// Stands in for kernels/eight_bits.cuh on the CPU: the same names, without PTX.
#pragma once
#include "ptx.cuh"

using s8_t = signed char;

inline int widen(s8_t v) { return v; }
inline int widen(int v) { return v; }

inline s8_t element_of(unsigned word, int i) { return s8_t(word >> 8 * i); }

inline int add_four(int sum, unsigned a, unsigned b) {
    unsigned found = sum;  // wraps
    for (int i = 0; i < 4; i++) found += unsigned(element_of(a, i) * element_of(b, i));
    return int(found);
}

inline unsigned picked_bytes(unsigned low, unsigned high, unsigned order) {
    unsigned found = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned digit = order >> 4 * i & 15;
        if (digit > 7) shim::refuse("a digit names none of eight bytes");
        found |= ((digit < 4 ? low : high) >> 8 * (digit % 4) & 0xff) << 8 * i;
    }
    return found;
}

inline void mma(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
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
            sums[i] = add_four(sums[i], all[row % 8 * 4 + word % 4].a[row / 8 + word / 4 * 2],
                               all[column * 4 + word % 4].b[word / 4]);
    }
}

inline float multiplied(float a, float b) { return a * b; }
inline float added(float a, float b) { return a + b; }
inline int nearest(float v) { return int(std::nearbyint(v)); }
