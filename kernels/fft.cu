// Around the transforms of cuFFT: tiles of x with their padding, the product of spectra, tiles back to y.
//
// Macros: element_t, the type of x and y; tiles and spectra are real_t.
#include "common.cuh"

using real_t = decltype(widen(element_t()));

struct alignas(2 * sizeof(real_t)) Complex {
    real_t re, im;
};

struct Params {
    index_t size;          // elements to write
    index_t frequencies;   // of a spectrum
    small_t rows;          // images * tiles
    small_t tiles[3];      // of an image, along (d, h, w)
    small_t length[3];     // of a tile
    small_t step[3];       // positions that a tile computes
};

// tiles (images, tiles, C, length): x with its padding around, in tiles that overlap.
extern "C" __global__ void __launch_bounds__(256)
pack(const element_t* __restrict__ x, real_t* __restrict__ tiles, const Conv p, const Params params) {
    const index_t id = index_t(blockIdx.x) * 256 + threadIdx.x;
    if (id >= params.size) return;
    index_t rest = id;
    small_t at[3];
#pragma unroll
    for (int i = 2; i >= 0; i--) {
        at[i] = rest % params.length[i];
        rest /= params.length[i];
    }
    const small_t channel = rest % p.channels;
    rest /= p.channels;
    bool there = true;
#pragma unroll
    for (int i = 2; i >= 0; i--) {
        at[i] += small_t(rest % params.tiles[i]) * params.step[i] - p.pad[i];
        rest /= params.tiles[i];
        there = there && inside(at[i], p.size[i]);
    }
    const index_t pixel = (index_t(at[0]) * p.size[1] + at[1]) * p.size[2] + at[2];
    tiles[id] = there ? widen(x[rest * p.x_image + index_t(channel) * p.x_channel + pixel * p.x_pixel]) : real_t(0);
}

constexpr int ROWS = 2, FILTERS = 4;  // of a thread

// y (rows, K, frequencies) = sum over C/groups of x (rows, C, frequencies) * w (K, C/groups, frequencies).
extern "C" __global__ void __launch_bounds__(128, 4)
multiply(const Complex* __restrict__ x, const Complex* __restrict__ w, Complex* __restrict__ y, const Conv p,
         const Params params) {
    const index_t frequency = index_t(blockIdx.x) * 128 + threadIdx.x;
    if (frequency >= params.frequencies) return;
    const small_t filters = p.filters / p.groups, channels = p.channels / p.groups;
    const small_t blocks = ceil_div(filters, FILTERS);
    const small_t group = blockIdx.y / blocks, filter = blockIdx.y % blocks * FILTERS;
    for (small_t row = blockIdx.z * ROWS; row < params.rows; row += gridDim.z * ROWS) {
        Complex sums[ROWS][FILTERS] = {};
        for (small_t c = 0; c < channels; c++) {
            Complex a[ROWS], b[FILTERS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const index_t from = index_t(least(row + i, params.rows - 1)) * p.channels + group * channels + c;
                a[i] = x[from * params.frequencies + frequency];
            }
#pragma unroll
            for (int j = 0; j < FILTERS; j++) {
                const index_t from = index_t(group * filters + least(filter + j, filters - 1)) * channels + c;
                b[j] = w[from * params.frequencies + frequency];
            }
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < FILTERS; j++) {
                    sums[i][j].re += a[i].re * b[j].re - a[i].im * b[j].im;
                    sums[i][j].im += a[i].re * b[j].im + a[i].im * b[j].re;
                }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < FILTERS; j++)
                if (row + i < params.rows && filter + j < filters)
                    y[(index_t(row + i) * p.filters + group * filters + filter + j) * params.frequencies + frequency] =
                        sums[i][j];
    }
}

// y from tiles (images, tiles, K, length): the positions that its stride selects, bias and ReLU.
extern "C" __global__ void __launch_bounds__(256)
unpack(const real_t* __restrict__ tiles, const element_t* __restrict__ bias, element_t* __restrict__ y, const Conv p,
       const Params params) {
    const index_t id = index_t(blockIdx.x) * 256 + threadIdx.x;
    const small_t pixels = p.out[0] * p.out[1] * p.out[2];
    const index_t image = id / pixels / p.filters;
    if (image >= p.images) return;
    const bool first = p.y_pixel == 1;  // channels first, or a single one
    const small_t pixel = first ? id % pixels : id / p.filters % pixels;
    const small_t filter = first ? id / pixels % p.filters : id % p.filters;
    const small_t o[3] = {small_t(pixel / (p.out[1] * p.out[2])), small_t(pixel / p.out[2] % p.out[1]),
                          small_t(pixel % p.out[2])};
    index_t tile = image, place = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const small_t at = o[i] * p.stride[i];
        tile = tile * params.tiles[i] + at / params.step[i];
        place = place * params.length[i] + at % params.step[i];
    }
    const index_t length = index_t(params.length[0]) * params.length[1] * params.length[2];
    const real_t v = tiles[(tile * p.filters + filter) * length + place];
    const real_t b = bias ? widen(bias[filter]) : real_t(0);
    y[image * p.y_image + index_t(filter) * p.y_channel + index_t(pixel) * p.y_pixel] =
        narrow<element_t>(finished(v, b, p.relu));
}
