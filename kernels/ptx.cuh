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

// The same value, of which the compiler knows nothing: what follows from it is not kept across a loop.
__device__ inline int forget(int v) {
    asm volatile("" : "+r"(v));
    return v;
}

template <typename T>
__device__ inline T* forget(T* v) {
    asm volatile("" : "+l"(v));
    return v;
}

// --- shared memory -------------------------------------------------------------------------------

// Starts copying 16 aligned bytes from global to shared memory; `wait_for_copies` waits for this thread's.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ inline void copy_async_16(void* to, const void* from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

// The block's dynamic shared memory.
__device__ inline void* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char bytes[];
    return bytes;
}
