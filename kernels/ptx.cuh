// What CUDA C++ has no word for without its headers: 16-bit elements, shared memory by size, and single
// instructions of PTX. Sources name none of these themselves, so that a stand-in for this file is all that
// another machine needs to run them.
#pragma once

struct float16_t {
    unsigned short bits;
};

struct bfloat16_t {
    unsigned short bits;
};

// --- elements, and the wider type that they are summed in ---------------------------------------

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }

__device__ inline float widen(float16_t v) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
    return wide;
}

__device__ inline float widen(bfloat16_t v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }

template <typename T>
__device__ inline T narrow(decltype(widen(T())) v) {
    return v;
}

template <>
__device__ inline float16_t narrow<float16_t>(float v) {
    float16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(v));
    return half;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
__device__ inline bfloat16_t narrow<bfloat16_t>(float v) {
    bfloat16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half.bits) : "f"(v));
    return half;
}
#endif

// The two 16-bit elements of a word, and a word of two rounded numbers.
__device__ inline void widen_pair(unsigned word, float16_t, float& low, float& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high) : "r"(word));
}

__device__ inline void widen_pair(unsigned word, bfloat16_t, float& low, float& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ inline unsigned narrow_pair(float low, float high, float16_t) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

__device__ inline unsigned narrow_pair(float low, float high, bfloat16_t) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
#else
template <typename T>
__device__ inline unsigned narrow_pair(float low, float high, T) {
    return narrow<T>(low).bits | static_cast<unsigned>(narrow<T>(high).bits) << 16;
}
#endif

// --- tensor cores ---------------------------------------------------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// sums (16, 8) += a (16, k) * b (k, 8) over a warp; k is 16 for 16-bit elements and 8 for TF32. Of lane l,
// sums are rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next; a[i] is word l % 4 + i / 2 * 4 of row
// l / 4 + i % 2 * 8, b[i] word l % 4 + i * 4 of column l / 4.
#define MMA(SHAPE_AND_TYPES)                                                                             \
    asm volatile("mma.sync.aligned." SHAPE_AND_TYPES                                                     \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ inline void mma(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], float16_t) {
    MMA("m16n8k16.row.col.f32.f16.f16.f32");
}

__device__ inline void mma(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], bfloat16_t) {
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}

__device__ inline void mma(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], float) {
    MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef MMA

// The same of float64 with a k of 4: a[i] is word l % 4 of row l / 4 + i * 8, b[0] word l % 4 of column l / 4.
__device__ inline void mma(double (&sums)[4], const double (&a)[2], const double (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
                 : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#else
    for (int i = 0; i < 2; i++)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(sums[2 * i]), "+d"(sums[2 * i + 1])
                     : "d"(a[i]), "d"(b[0]));
#endif
}

// Four 8 x 8 matrices of 16-bit elements in shared memory, turned: lane l tells where row l % 8 of matrix l / 8
// starts, at a multiple of 16 bytes. Of matrix i it gets in words[i] column l / 4, of rows l % 4 * 2 and the next.
__device__ inline void load_matrices_turned(unsigned (&words)[4], const void* row) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

// The bits of the nearest number of TF32's 10 explicit bits.
__device__ inline unsigned round_tf32(float v) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}
#endif

// The same value, of which the compiler knows nothing: what follows from it is not kept across a loop.
__device__ inline int forget(int v) {
    asm volatile("" : "+r"(v));
    return v;
}

__device__ inline unsigned forget(unsigned v) {
    asm volatile("" : "+r"(v));
    return v;
}

template <typename T>
__device__ inline T* forget(T* v) {
    asm volatile("" : "+l"(v));
    return v;
}

// Loads from arrays that nobody writes meanwhile, through pointers of which the compiler knows nothing.
__device__ inline float load_constant(const float* from) { return __ldg(from); }

// 2 or 4 neighbours, or zeros.
template <int COUNT>
__device__ inline void load_constants(const float* from, bool loads, float* to) {
    if constexpr (COUNT == 4) {
        const float4 v = loads ? __ldg(reinterpret_cast<const float4*>(from)) : float4{};
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
        const float2 v = loads ? __ldg(reinterpret_cast<const float2*>(from)) : float2{};
        to[0] = v.x, to[1] = v.y;
    }
}

// --- shared memory -------------------------------------------------------------------------------

// Starts copying 16 aligned bytes from global to shared memory; `wait_for_copies` waits for this thread's.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ inline void copy_async_16(void* to, const void* from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// The same, or zeros; then nothing is read.
__device__ inline void copy_async_16_or_zeros(void* to, const void* from, bool copies) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = copies ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

// The block's dynamic shared memory.
__device__ inline void* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char bytes[];
    return bytes;
}
