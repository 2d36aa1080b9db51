// x as the copy engine can read it: channels last, in pixels of whole 16 bytes. Of implicit_gemm_wgmma.cu.
//
// It knows no padding but zeros: where x's zero point is another, the padding of an image is written out.
#pragma once
#include "hopper.cuh"
#include "integers.cuh"

constexpr int PACKED_PIXELS = 64, PACKERS = 256;  // of a block: pixels of STEP channels, and threads

struct Packing {
    small_t pixel_tiles, channel_tiles;  // of an image and a group
    small_t padded;                      // channels of a group in the result
    small_t parts;                       // of x there: x itself, or TF32's high part, then what it leaves
    small_t size[3];                     // of an image there
};

// Where a pixel of the result lies in an image, or -1 in the padding, which is written for integers alone.
__device__ inline small_t source_of(small_t pixel, const conv_t& p, const Packing& packing) {
#ifdef QUANTIZED
    const small_t w = pixel % packing.size[2] - p.pad[2], rest = pixel / packing.size[2];
    const small_t h = rest % packing.size[1] - p.pad[1], d = rest / packing.size[1] - p.pad[0];
    if (!inside(d, p.size[0]) || !inside(h, p.size[1]) || !inside(w, p.size[2])) return -1;
    return (d * p.size[1] + h) * p.size[2] + w;
#else
    return pixel;
#endif
}

__device__ inline x_t outside(const conv_t& p) {
#ifdef QUANTIZED
    return padding_of(p);
#else
    return x_t();
#endif
}

// 16 bytes to where they belong.
template <typename T>
__device__ inline void store_channels(T* to, const Pack<T, CHUNK>& values, const Packing&) {
    store_pack<CHUNK>(to, values);
}

__device__ inline void store_channels(float* to, Pack<float, CHUNK> values, const Packing& packing) {
    if (packing.parts == 2) {
        Pack<float, CHUNK> rest;
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
            const float high = __uint_as_float(round_tf32(values.v[e]));
            rest.v[e] = values.v[e] - high;
            values.v[e] = high;
        }
        store_pack<CHUNK>(to + packing.padded, rest);
    }
    store_pack<CHUNK>(to, values);
}

// packed (images, pixels, groups, parts, padded channels): x with whole 16 bytes of channels. What lies beyond those
// of a group is multiplied by zeros of the filter: zeros, as it may be NaN.
extern "C" __global__ void __launch_bounds__(PACKERS)
pack(const x_t* __restrict__ x, x_t* __restrict__ packed, const conv_t p, const Packing packing) {
    __shared__ x_t tile[STEP][PACKED_PIXELS + 1];
    const small_t tid = threadIdx.x, channels = p.channels / p.groups;
    const small_t pixels = packing.size[0] * packing.size[1] * packing.size[2];
    const small_t first_pixel = blockIdx.x % packing.pixel_tiles * PACKED_PIXELS;
    const small_t channel_tile = blockIdx.x / packing.pixel_tiles % packing.channel_tiles;
    const small_t group = blockIdx.x / packing.pixel_tiles / packing.channel_tiles % p.groups;
    const small_t image = blockIdx.x / packing.pixel_tiles / packing.channel_tiles / p.groups;
    const small_t channel = channel_tile * STEP;
    const x_t* from = x + image * p.x_image + index_t(group * channels + channel) * p.x_channel;
    constexpr int PIECES = STEP / CHUNK;
    auto place = [&](small_t pixel, small_t c) {  // in the result
        const index_t row = (index_t(image) * pixels + pixel) * p.groups + group;
        return packed + row * packing.parts * packing.padded + channel + c;
    };
#ifdef QUANTIZED
    if (p.x_channel == 1 && channels % CHUNK == 0) {  // 16 bytes that lie together stay so
        for (small_t i = tid; i < PACKED_PIXELS * PIECES; i += PACKERS) {
            const small_t pixel = first_pixel + i / PIECES, c = i % PIECES * CHUNK;
            if (pixel >= pixels || channel + c >= packing.padded) continue;
            const small_t source = source_of(pixel, p, packing);
            Pack<x_t, CHUNK> values;
#pragma unroll
            for (int e = 0; e < CHUNK; e++) values.v[e] = outside(p);
            if (source >= 0 && channel + c < channels) values = load_pack<CHUNK>(from + index_t(source) * p.x_pixel + c);
            store_pack<CHUNK>(place(pixel, c), values);
        }
        return;
    }
    const bool vectors = false;
#else
    const bool vectors = p.x_pixel == 1 && pixels % CHUNK == 0;  // of pixels
#endif
    if (vectors) {
        constexpr int LINE = PACKED_PIXELS / CHUNK;
        for (small_t i = tid; i < STEP * LINE; i += PACKERS) {
            const small_t c = i / LINE, at = i % LINE * CHUNK;
            Pack<x_t, CHUNK> values = {};
            if (channel + c < channels && first_pixel + at < pixels)
                values = load_pack<CHUNK>(from + index_t(c) * p.x_channel + first_pixel + at);
#pragma unroll
            for (int e = 0; e < CHUNK; e++) tile[c][at + e] = values.v[e];
        }
    } else if (p.x_pixel == 1) {  // neighbouring threads read neighbours: pixels
        const small_t at = tid % PACKED_PIXELS, pixel = first_pixel + at;
        const small_t source = pixel < pixels ? source_of(pixel, p, packing) : -1;
        for (small_t c = tid / PACKED_PIXELS; c < STEP; c += PACKERS / PACKED_PIXELS)
            tile[c][at] = source >= 0 && channel + c < channels ? from[index_t(c) * p.x_channel + source] : outside(p);
    } else {  // channels
        for (small_t i = tid; i < STEP * PACKED_PIXELS; i += PACKERS) {
            const small_t c = i % STEP, at = i / STEP, pixel = first_pixel + at;
            const small_t source = pixel < pixels && channel + c < channels ? source_of(pixel, p, packing) : -1;
            tile[c][at] = source >= 0 ? from[index_t(c) * p.x_channel + index_t(source) * p.x_pixel] : outside(p);
        }
    }
    __syncthreads();
    for (small_t i = tid; i < PACKED_PIXELS * PIECES; i += PACKERS) {
        const small_t at = i / PIECES, c = i % PIECES * CHUNK;
        if (first_pixel + at >= pixels || channel + c >= packing.padded) continue;
        Pack<x_t, CHUNK> values;
#pragma unroll
        for (int e = 0; e < CHUNK; e++) values.v[e] = tile[c + e][at];
        store_channels(place(first_pixel + at, c), values, packing);
    }
}
