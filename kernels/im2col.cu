// Explicit patches: a matrix of taps x pixels for a product by cuBLAS, and its result brought to y.
//
// Macros: element_t, CHANNELS_LAST. Both matrices run in the order of memory: channels first pixels are the
// fastest index of (groups, taps, count) and (groups, filters, count), channels last taps and filters are of
// (groups, count, taps) and (groups, count, filters).
#include "common.cuh"

using sum_t = decltype(widen(element_t()));

constexpr int THREADS = 256;
constexpr int ITEMS = 8;  // elements of a thread, along the slower of the matrix's two sides

struct Params {
    Divisor columns, rows, depth;  // outputs
    Divisor fastest, slowest;      // of the patches: pixels and ITEMS of taps, or channels last the other way round
    Divisor count, filters;        // pixels of this pass; filters of a group
    small_t first, taps;           // the first pixel of this pass; taps of a group
    small_t threads, spare;        // of the patches
};

// A pixel's first input under the kernel, and that one's position.
struct Pixel {
    const element_t* first;
    small_t d, h, w;
};

__device__ inline Pixel pixel_of(const element_t* x, small_t pixel, small_t group, const Conv& p,
                                 const Params& params) {
    Pixel at;
    unsigned image = params.first + pixel;
    at.w = take(image, params.columns) * p.stride[2] - p.pad[2];
    at.h = take(image, params.rows) * p.stride[1] - p.pad[1];
    at.d = take(image, params.depth) * p.stride[0] - p.pad[0];
    const index_t row = index_t(at.d) * p.size[1] + at.h;
    at.first = x + image * p.x_image + index_t(group) * (p.channels / p.groups) * p.x_channel +
               (row * p.size[2] + at.w) * p.x_pixel;
    return at;
}

__device__ inline element_t input_of(const Pixel& at, const Tap& tap, const Conv& p) {
    const bool there = inside(at.d + tap.d, p.size[0]) && inside(at.h + tap.h, p.size[1]) &&
                       inside(at.w + tap.w, p.size[2]);
    return there ? at.first[tap.offset] : element_t();
}

extern "C" __global__ void __launch_bounds__(THREADS)
patches(const element_t* __restrict__ x, element_t* __restrict__ matrix, const Tap* __restrict__ taps, const Conv p,
        const Params params) {
    unsigned group = blockIdx.x * THREADS + threadIdx.x;
    if (group >= params.threads) return;
    const small_t fast = take(group, params.fastest), slow = take(group, params.slowest) * ITEMS;
    const small_t count = params.count.by;
    if (CHANNELS_LAST) {
        const Tap tap = taps[fast];
        element_t* to = matrix + (index_t(group) * count + slow) * params.taps + fast;
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (slow + i < count)
                to[index_t(i) * params.taps] = input_of(pixel_of(x, slow + i, group, p, params), tap, p);
    } else {
        const Pixel at = pixel_of(x, fast, group, p, params);
        element_t* to = matrix + (index_t(group) * params.taps + slow) * count + fast;
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (slow + i < params.taps) to[index_t(i) * count] = input_of(at, taps[slow + i], p);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
output(const element_t* __restrict__ matrix, const element_t* __restrict__ bias, element_t* __restrict__ y,
       const Conv p, const Params params) {
    const unsigned id = blockIdx.x * THREADS + threadIdx.x;
    if (id >= unsigned(p.filters) * params.count.by) return;
    unsigned rest = id;
    small_t filter = CHANNELS_LAST ? take(rest, params.filters) : 0;
    unsigned image = params.first + take(rest, params.count);
    filter = CHANNELS_LAST ? rest * params.filters.by + filter : rest;  // of all groups
    const small_t w = take(image, params.columns), h = take(image, params.rows), d = take(image, params.depth);
    const index_t pixel = (index_t(d) * p.out[1] + h) * p.out[2] + w;
    const sum_t b = bias ? widen(bias[filter]) : sum_t(0);
    y[image * p.y_image + index_t(filter) * p.y_channel + pixel * p.y_pixel] =
        narrow<element_t>(finished(widen(matrix[id]), b, p.relu));
}
