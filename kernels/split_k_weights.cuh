// What gradients of filters share whose sums run over all pixels: outputs of all images, one after the other.
//
// Of a group, dw is the product of dy, as filters x pixels, and the patches of x, as pixels x taps. The pixels are
// cut into steps and these into parts: where there are several, each writes its own sums, and `add_parts` adds
// them up in a fixed order, so that the bits are the same in every run.
#pragma once
#include "split_k.cuh"

struct Params {
    Divisor columns, rows, depth;     // outputs
    Divisor filter_tiles, tap_tiles;  // of a group
    small_t taps;                     // of a group
    small_t steps;                    // of all pixels
    small_t parts;                    // of them
    small_t lanes;                    // threads of `add_parts` that share an element of dw
};

struct Pixel {
    const element_t* x;   // its input under the kernel's first tap, which may lie in the padding,
    const element_t* dy;  // and the gradient of the group's first filter there
    small_t d, h, w;      // place of that input; outside of every input for what is no pixel
    bool exists;
};

// x and dy from a group's first channel and filter on.
__device__ inline Pixel pixel_at(unsigned index, const element_t* x, const element_t* dy, const Conv& p,
                                 const Params& params) {
    Pixel pixel;
    unsigned image = index;
    const small_t w = take(image, params.columns), h = take(image, params.rows), d = take(image, params.depth);
    pixel.exists = image < unsigned(p.images);
    pixel.w = w * p.stride[2] - p.pad[2];
    pixel.h = h * p.stride[1] - p.pad[1];
    pixel.d = d * p.stride[0] - p.pad[0];
    const index_t row = index_t(pixel.d) * p.size[1] + pixel.h;
    pixel.x = x + image * p.x_image + (row * p.size[2] + pixel.w) * p.x_pixel;
    pixel.dy = dy + image * p.y_image + index_t((d * p.out[1] + h) * p.out[2] + w) * p.y_pixel;
    return pixel;
}

// Whether a tap of a pixel lies in x.
__device__ inline bool reads(const Pixel& pixel, const Tap& tap, const Conv& p) {
    return pixel.exists && inside(pixel.d + tap.d, p.size[0]) && inside(pixel.h + tap.h, p.size[1]) &&
           inside(pixel.w + tap.w, p.size[2]);
}

// What a block sums: filters and taps of a group from the first ones on, over steps of pixels.
struct Share {
    small_t group, first_filter, first_tap, begin, end;
};

__device__ inline Share share_of(unsigned block, unsigned part, const Params& params) {
    Share share;
    share.first_filter = take(block, params.filter_tiles) * TILE_F;
    share.first_tap = take(block, params.tap_tiles) * TILE_T;
    share.group = block;
    share.begin = index_t(params.steps) * part / params.parts;
    share.end = index_t(params.steps) * (part + 1) / params.parts;
    return share;
}

// Where the gradient of a tap lies in dw: taps have the order of x in memory, dw that of the filter.
__device__ inline index_t place_in_dw(index_t filter, small_t tap, const Conv& p, const Params& params) {
    const small_t channels = p.channels / p.groups;
    const small_t at = CHANNELS_LAST ? tap % channels * (params.taps / channels) + tap / channels : tap;
    return filter * params.taps + at;
}

// COUNT sums of neighbouring taps, of which the first exists: to dw, or to a part (K, taps).
template <int COUNT>
__device__ inline void store_sums(const sum_t (&sums)[COUNT], index_t filter, small_t tap, element_t* dw, sum_t* part,
                                  const Conv& p, const Params& params) {
    const index_t at = filter * params.taps + tap;
    if (part && params.taps % COUNT == 0) {
        Pack<sum_t, COUNT> pack;
#pragma unroll
        for (int i = 0; i < COUNT; i++) pack.v[i] = sums[i];
        store_pack<COUNT>(part + at, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (tap + i >= params.taps) break;
        if (part)
            part[at + i] = sums[i];
        else
            dw[place_in_dw(filter, tap + i, p, params)] = narrow<element_t>(sums[i]);
    }
}

// dw = sum of the parts (parts, K, taps): by `lanes` threads each, then theirs in their order. Blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const sum_t* __restrict__ parts, element_t* __restrict__ dw, const Conv p, const Params params) {
    index_t i;
    sum_t sum;
    if (!added_up(parts, index_t(p.filters) * params.taps, params.parts, params.lanes, i, sum)) return;
    const index_t filter = i / params.taps;
    dw[place_in_dw(filter, i - filter * params.taps, p, params)] = narrow<element_t>(sum);
}
