// Windows of x reduced to their maxima or their means, the places of maxima, and the gradients of both.
//
// A thread computes one element: of y, or of dx, which gathers from all windows over it, so that no sums are made
// by atomic additions and runs repeat. Neighbouring threads work on neighbours in memory.
//
// Macros: element_t, INTEGERS (8 bits, of maxima only), MAXIMUM (else the mean), CHANNELS_LAST.
#include "common.cuh"

constexpr int THREADS = 256;

#if INTEGERS
using sum_t = int;
__device__ inline sum_t value_of(element_t v) { return v; }
__device__ inline element_t element_of(sum_t v) { return static_cast<element_t>(v); }
#else
using sum_t = decltype(widen(element_t()));
__device__ inline sum_t value_of(element_t v) { return widen(v); }
__device__ inline element_t element_of(sum_t v) { return narrow<element_t>(v); }
#endif

// The window of an output along a dimension; WINDOW in plan.py has the same fields.
struct Window {
    small_t first, taps;  // inside x
    small_t divisor;      // of a mean
};

// Dimensions are (d, h, w). PARAMS in plan.py has the same fields.
struct Params {
    index_t x_image, y_image;
    Divisor blocks;                          // of an image
    Divisor channels, columns, rows, depth;  // by which the threads of an image are numbered: those of y, or of dx
    small_t threads;                         // of an image
    small_t x_channel, y_channel, x_pixel, y_pixel;
    small_t size[3], out[3], stride[3], dilation[3], before[3], extent[3];
};

struct Place {
    unsigned image;
    small_t channel, d, h, w;
    bool exists;
};

__device__ inline Place place_of_thread(const Params& p) {
    Place at;
    at.image = blockIdx.x;
    unsigned rest = unsigned(take(at.image, p.blocks)) * THREADS + threadIdx.x;
    at.exists = rest < unsigned(p.threads);
    at.channel = CHANNELS_LAST ? take(rest, p.channels) : 0;
    at.w = take(rest, p.columns);
    at.h = take(rest, p.rows);
    at.d = take(rest, p.depth);
    if (!CHANNELS_LAST) at.channel = rest;
    return at;
}

// windows: those of all slices of y, then of its rows, then of its columns. places: of maxima within a map of x,
// written beside y, or null.
extern "C" __global__ void __launch_bounds__(THREADS)
pool(const element_t* __restrict__ x, element_t* __restrict__ y, small_t* __restrict__ places,
     const Window* __restrict__ windows, const Params p) {
    const Place at = place_of_thread(p);
    if (!at.exists) return;
    const Window slices = windows[at.d], rows = windows[p.out[0] + at.h];
    const Window columns = windows[p.out[0] + p.out[1] + at.w];
    const element_t* map = x + at.image * p.x_image + index_t(at.channel) * p.x_channel;
    sum_t found = 0;
    small_t place = -1;
    for (small_t i = 0; i < slices.taps; i++)
        for (small_t j = 0; j < rows.taps; j++) {
            const small_t row = ((slices.first + i * p.dilation[0]) * p.size[1] + rows.first + j * p.dilation[1]) *
                                    p.size[2] + columns.first;
            for (small_t k = 0; k < columns.taps; k++) {
                const small_t pixel = row + k * p.dilation[2];
                const sum_t v = value_of(map[index_t(pixel) * p.x_pixel]);
#if MAXIMUM
                if (place < 0 || !(v <= found)) {  // larger, or NaN: of these the last counts, as in torch
                    if (place >= 0 && found != found && v == v) continue;
                    found = v;
                    place = pixel;
                }
#else
                found += v;
#endif
            }
        }
#if !MAXIMUM
    found /= sum_t(slices.divisor) * sum_t(rows.divisor) * sum_t(columns.divisor);
#endif
    const small_t pixel = (at.d * p.out[1] + at.h) * p.out[2] + at.w;
    const index_t to = at.image * p.y_image + index_t(at.channel) * p.y_channel + index_t(pixel) * p.y_pixel;
    y[to] = element_of(found);
    if (places) places[to] = place;
}

#if !INTEGERS
// The first window whose last tap is at or behind a place, and how many there are up to the last that begins
// at or before it.
__device__ inline small_t windows_over(small_t place, small_t dim, const Params& p, small_t& first) {
    const small_t from = place + p.before[dim], after = from - p.extent[dim] + p.stride[dim];
    first = after > 0 ? after / p.stride[dim] : 0;
    return least(from / p.stride[dim], p.out[dim] - 1) - first + 1;
}

// Whether a window has a tap at a place.
__device__ inline bool meets(small_t place, small_t window, small_t dim, const Params& p) {
    return (place + p.before[dim] - window * p.stride[dim]) % p.dilation[dim] == 0;
}

// dx of dy: of means in equal shares, of maxima at their places.
extern "C" __global__ void __launch_bounds__(THREADS)
pool_gradient(const element_t* __restrict__ dy, const small_t* __restrict__ places, element_t* __restrict__ dx,
              const Window* __restrict__ windows, const Params p) {
    const Place at = place_of_thread(p);
    if (!at.exists) return;
    const small_t pixel = (at.d * p.size[1] + at.h) * p.size[2] + at.w;
    const index_t map = at.image * p.y_image + index_t(at.channel) * p.y_channel;
    small_t first_o, first_p, first_q;
    const small_t slices = windows_over(at.d, 0, p, first_o), rows = windows_over(at.h, 1, p, first_p);
    const small_t columns = windows_over(at.w, 2, p, first_q);
    sum_t sum = 0;
    for (small_t o = first_o; o < first_o + slices; o++)
        for (small_t r = first_p; r < first_p + rows; r++)
            for (small_t q = first_q; q < first_q + columns; q++) {
                const index_t from = map + index_t((o * p.out[1] + r) * p.out[2] + q) * p.y_pixel;
#if MAXIMUM
                if (places[from] == pixel) sum += value_of(dy[from]);
#else
                if (!meets(at.d, o, 0, p) || !meets(at.h, r, 1, p) || !meets(at.w, q, 2, p)) continue;
                const sum_t count = sum_t(windows[o].divisor) * sum_t(windows[p.out[0] + r].divisor) *
                                    sum_t(windows[p.out[0] + p.out[1] + q].divisor);
                sum += value_of(dy[from]) / count;
#endif
            }
    dx[at.image * p.x_image + index_t(at.channel) * p.x_channel + index_t(pixel) * p.x_pixel] = element_of(sum);
}
#endif
