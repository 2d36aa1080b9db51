// Signs of channels as bits, set where an element is below 0, the first channel in the lowest bit: a thread packs up to
// 128 channels of a pixel and group into 16 bytes. What lies beyond the channels is 0.
#include "common.cuh"
#include "eight_bits.cuh"

constexpr int THREADS = 256, WORDS = 4;  // words of 32 channels of a thread

// SIGNS in gpu/gemm/signs.py has the same fields.
struct Signs {
    index_t x_image;             // strides of x, in elements
    small_t x_channel, x_pixel;
    small_t channels;            // of a group; or words, where x is packed already
    small_t last;                // whether x lies channels last, and then
    small_t whole;               // whether 16 bytes of it can be loaded at once
    unsigned threads;
    Divisor chunks, groups, pixels;  // of 16 bytes in a group of a pixel
    unsigned unused;
};

// Signs of `count` neighbours, at most 32.
template <typename T>
__device__ inline unsigned signs_of(const T* from, index_t step, small_t count, bool whole) {
    constexpr int EACH = 16 / sizeof(T);
    unsigned signs = 0;
    if (whole && count >= 32) {
#pragma unroll
        for (int c = 0; c < 32; c += EACH) {
            const Pack<T, EACH> pack = load_pack<EACH>(from + c);
#pragma unroll
            for (int e = 0; e < EACH; e++) signs |= unsigned(pack.v[e] < 0) << (c + e);
        }
    } else {
#pragma unroll
        for (int c = 0; c < 32; c++)
            if (c < count) signs |= unsigned(from[c * step] < 0) << c;
    }
    return signs;
}

// The 32 channels from so many of them on, of a pixel of a group.
template <typename T>
__device__ inline unsigned word_of(const T* from, small_t first, const Signs& p) {
    return first < p.channels ? signs_of(from + first * index_t(p.x_channel), p.x_channel, p.channels - first, p.whole) : 0u;
}

__device__ inline unsigned word_of(const unsigned long long* from, small_t first, const Signs& p) {
    const small_t word = first / 64;
    return word < p.channels ? from[word * index_t(p.x_channel)] >> first % 64 : 0u;
}

// packed (images, pixels, groups, chunks) of 16 bytes.
template <typename T>
__device__ inline void pack(const T* __restrict__ x, Pack<unsigned, WORDS>* __restrict__ packed, const Signs& p) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= p.threads) return;
    // neighbouring threads read neighbours in memory
    small_t pixel = p.last ? 0 : take(rest, p.pixels);
    const small_t chunk = take(rest, p.chunks), group = take(rest, p.groups);
    if (p.last) pixel = take(rest, p.pixels);
    const index_t image = rest;
    const T* from = x + image * p.x_image + index_t(group) * p.channels * p.x_channel + index_t(pixel) * p.x_pixel;
    Pack<unsigned, WORDS> words;
#pragma unroll
    for (int i = 0; i < WORDS; i++) words.v[i] = word_of(from, (chunk * WORDS + i) * 32, p);
    packed[((image * p.pixels.by + pixel) * p.groups.by + group) * p.chunks.by + chunk] = words;
}

extern "C" __global__ void __launch_bounds__(THREADS)
pack_int8(const s8_t* __restrict__ x, Pack<unsigned, WORDS>* __restrict__ packed, const Signs p) {
    pack(x, packed, p);
}

extern "C" __global__ void __launch_bounds__(THREADS)
pack_float32(const float* __restrict__ x, Pack<unsigned, WORDS>* __restrict__ packed, const Signs p) {
    pack(x, packed, p);
}

extern "C" __global__ void __launch_bounds__(THREADS)
pack_uint64(const unsigned long long* __restrict__ x, Pack<unsigned, WORDS>* __restrict__ packed, const Signs p) {
    pack(x, packed, p);
}
