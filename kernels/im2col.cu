// Explicit patches: a matrix of taps x pixels for a product by cuBLAS, and its result brought to y.
//
// Macros: element_t, CHANNELS_LAST. Both matrices run in the order of memory: channels first pixels are the
// fastest index of (groups, taps, count) and (groups, filters, count), channels last taps and filters are of
// (groups, count, taps) and (groups, count, filters).
#include "common.cuh"

using sum_t = decltype(widen(element_t()));

constexpr int THREADS = 256;

struct Tap {
    small_t offset;   // in x, from the first input of a pixel
    small_t d, h, w;  // in the dilated kernel
};

struct Cut {
    index_t size;          // elements of the matrix
    small_t first, count;  // pixels of this pass
    small_t taps, spare;   // of a group
};

extern "C" __global__ void __launch_bounds__(THREADS)
patches(const element_t* __restrict__ x, element_t* __restrict__ matrix, const Tap* __restrict__ taps, const Conv p,
        const Cut cut) {
    const index_t id = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (id >= cut.size) return;
    const index_t rest = CHANNELS_LAST ? id / cut.taps : id / cut.count;
    const small_t tap_index = CHANNELS_LAST ? id % cut.taps : rest % cut.taps;
    const small_t pixel = cut.first + small_t(CHANNELS_LAST ? rest % cut.count : id % cut.count);
    const small_t group = rest / (CHANNELS_LAST ? cut.count : cut.taps);

    const small_t out_pixels = p.out[0] * p.out[1] * p.out[2];
    const small_t at = pixel % out_pixels;
    const small_t d = at / (p.out[1] * p.out[2]) * p.stride[0] - p.pad[0];
    const small_t h = at / p.out[2] % p.out[1] * p.stride[1] - p.pad[1];
    const small_t w = at % p.out[2] * p.stride[2] - p.pad[2];
    const Tap tap = taps[tap_index];
    const bool there =
        inside(d + tap.d, p.size[0]) && inside(h + tap.h, p.size[1]) && inside(w + tap.w, p.size[2]);
    const element_t* from = x + pixel / out_pixels * p.x_image +
                            index_t(group) * (p.channels / p.groups) * p.x_channel +
                            ((index_t(d) * p.size[1] + h) * p.size[2] + w) * p.x_pixel;
    matrix[id] = there ? from[tap.offset] : element_t();
}

extern "C" __global__ void __launch_bounds__(THREADS)
output(const element_t* __restrict__ matrix, const element_t* __restrict__ bias, element_t* __restrict__ y,
       const Conv p, const Cut cut) {
    const index_t id = index_t(blockIdx.x) * THREADS + threadIdx.x;
    if (id >= index_t(p.filters) * cut.count) return;
    const small_t filters = p.filters / p.groups;
    const index_t rest = CHANNELS_LAST ? id / filters : id / cut.count;
    const small_t filter = CHANNELS_LAST ? id % filters : rest % filters;
    const small_t pixel = cut.first + small_t(CHANNELS_LAST ? rest % cut.count : id % cut.count);
    const small_t group = rest / (CHANNELS_LAST ? cut.count : filters);

    const small_t out_pixels = p.out[0] * p.out[1] * p.out[2], all = group * filters + filter;
    const index_t to = pixel / out_pixels * p.y_image + index_t(all) * p.y_channel +
                       index_t(pixel % out_pixels) * p.y_pixel;
    const sum_t b = bias ? widen(bias[all]) : sum_t(0);
    y[to] = narrow<element_t>(finished(widen(matrix[id]), b, p.relu));
}
