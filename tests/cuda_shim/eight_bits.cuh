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
    mma_words(sums, a, b, add_four);
}

inline float multiplied(float a, float b) { return a * b; }
inline float added(float a, float b) { return a + b; }
inline int nearest(float v) { return int(std::nearbyint(v)); }
