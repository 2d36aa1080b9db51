// Stands in for kernels/ptx.cuh on the CPU: the same names, without PTX.
#pragma once

struct float16_t {
    unsigned short bits;
};

struct bfloat16_t {
    unsigned short bits;
};

inline float widen(float v) { return v; }
inline double widen(double v) { return v; }

inline float widen(float16_t v) {
    const unsigned sign = (v.bits & 0x8000u) << 16, exponent = v.bits >> 10 & 31, fraction = v.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    const float magnitude = exponent ? __uint_as_float((exponent + 112) << 23 | fraction << 13)
                                     : fraction * 0x1p-24f;
    return __uint_as_float(__float_as_uint(magnitude) | sign);
}

inline float widen(bfloat16_t v) { return __uint_as_float(unsigned(v.bits) << 16); }

template <typename T>
inline T narrow(decltype(widen(T())) v) {
    return v;
}

template <>
inline float16_t narrow<float16_t>(float v) {
    const unsigned bits = __float_as_uint(v), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {(unsigned short)(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {(unsigned short)(sign | 0x7c00u)};  // rounds beyond the largest
    if (magnitude < 0x38800000u)  // below the least normal number: 2^-24 is the unit
        return {(unsigned short)(sign | (unsigned)std::nearbyint(__uint_as_float(magnitude) * 0x1p24f))};
    const unsigned odd = magnitude >> 13 & 1;
    return {(unsigned short)(sign | ((magnitude + 0xfffu + odd - 0x38000000u) >> 13))};
}

template <>
inline bfloat16_t narrow<bfloat16_t>(float v) {
    const unsigned bits = __float_as_uint(v), odd = bits >> 16 & 1;
    if (v != v) return {0x7fff};
    return {(unsigned short)((bits + 0x7fffu + odd) >> 16)};
}

template <typename T>
inline void widen_pair(unsigned word, T, float& low, float& high) {
    low = widen(T{(unsigned short)word}), high = widen(T{(unsigned short)(word >> 16)});
}

template <typename T>
inline unsigned narrow_pair(float low, float high, T) {
    return narrow<T>(low).bits | unsigned(narrow<T>(high).bits) << 16;
}

template <typename T>
T forget(T v) {
    return v;
}

inline float load_constant(const float* from) { return *from; }

template <int COUNT>
inline void load_constants(const float* from, bool loads, float* to) {
    if (loads && reinterpret_cast<std::uintptr_t>(from) % (COUNT * sizeof(float))) std::abort();  // as the device would
    for (int j = 0; j < COUNT; j++) to[j] = loads ? from[j] : 0.f;
}

// Bytes arrive when they are waited for, as on the device: a kernel that does not wait reads old ones.
inline void copy_async_16(void* to, const void* from) { shim::copies[shim::current].push_back({to, from}); }

inline void copy_async_16_or_zeros(void* to, const void* from, bool copies) {
    static const unsigned char zeros[16] = {};
    shim::copies[shim::current].push_back({to, copies ? from : zeros});
}

inline void wait_for_copies() {
    for (const auto& copy : shim::copies[shim::current]) std::memcpy(copy.first, copy.second, 16);
    shim::copies[shim::current].clear();
}

inline void load_matrices_turned(unsigned (&words)[4], const void* row) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16) std::abort();  // as the device would
    const void* rows[32];
    shim::gather(row, rows);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++) {
        unsigned short pair[2];
        for (int e = 0; e < 2; e++)
            pair[e] = static_cast<const unsigned short*>(rows[i * 8 + lane % 4 * 2 + e])[lane / 4];
        words[i] = pair[0] | unsigned(pair[1]) << 16;
    }
}

inline unsigned round_tf32(float v) {
    const unsigned bits = __float_as_uint(v);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

// The elements of a word, as numbers.
inline int elements(unsigned word, float16_t, float* to) {
    to[0] = widen(float16_t{(unsigned short)word}), to[1] = widen(float16_t{(unsigned short)(word >> 16)});
    return 2;
}

inline int elements(unsigned word, bfloat16_t, float* to) {
    to[0] = widen(bfloat16_t{(unsigned short)word}), to[1] = widen(bfloat16_t{(unsigned short)(word >> 16)});
    return 2;
}

inline int elements(unsigned word, float, float* to) {
    to[0] = __uint_as_float(word & 0xffffe000u);  // the device does not look at the last bits
    return 1;
}

// A product of fragments over a warp, laid out as kernels/ptx.cuh says.
template <typename T>
inline void mma(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], T type) {
    struct Fragments {
        unsigned a[4], b[2];
    } mine;
    std::memcpy(mine.a, a, sizeof a);
    std::memcpy(mine.b, b, sizeof b);
    Fragments all[32];
    shim::gather(mine, all);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int word = 0; word < 8; word++) {
            float of_a[2], of_b[2];
            const int count = elements(all[row % 8 * 4 + word % 4].a[row / 8 + word / 4 * 2], type, of_a);
            elements(all[column * 4 + word % 4].b[word / 4], type, of_b);
            for (int e = 0; e < count; e++) sums[i] += of_a[e] * of_b[e];
        }
    }
}

inline void mma(double (&sums)[4], const double (&a)[2], const double (&b)[1]) {
    struct Fragments {
        double a[2], b;
    } all[32];
    shim::gather(Fragments{{a[0], a[1]}, b[0]}, all);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 4; k++)
            sums[i] = std::fma(all[row % 8 * 4 + k].a[row / 8], all[column * 4 + k].b, sums[i]);
    }
}

// Products of 8 words of each row and column, which `add(sum, a, b)` adds to a sum of integers.
template <typename Add>
inline void mma_words(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], Add add) {
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
            sums[i] = add(sums[i], all[row % 8 * 4 + word % 4].a[row / 8 + word / 4 * 2],
                          all[column * 4 + word % 4].b[word / 4]);
    }
}

inline void* dynamic_shared() { return shim::dynamic; }
