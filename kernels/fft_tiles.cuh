// Tiles of rows of reals that overlap: where they come from in x, and which of their places are outputs.
//
// A place (h, w) of a tile has two reals: those of columns w and w + half (`fft_passes.cuh` says why). Element types
// are known at run time only, so that a build serves all of them. Channels first.
#pragma once
#include "fft_passes.cuh"

struct Tiling {
    small_t tiles[2];      // of a plane, along (h, w)
    small_t step[2];       // positions of stride 1 that a tile computes
    small_t lead[2];       // place (0, 0) of a tile is x at (tile * step - lead)
    small_t positions[2];  // of stride 1, from the first to the last output
    small_t first;         // column of a tile's first output
    small_t upper_in;      // whether columns from half on hold input
    small_t upper_out;     // and outputs
    small_t element;       // of x, bias and y: 0 float, 1 float16_t, 2 bfloat16_t
    small_t channels;      // of a group
    small_t filters;       // of a group
};

struct Tile {
    index_t x, y;  // where its planes begin
    small_t filter;
    small_t x_at[2];   // of place (0, 0)
    small_t y_at[2];   // position of its first output
    small_t y_count[2];  // positions that it computes, within those there are
};

// The last digit of a number of which it has `count`; the others remain. Divisions are long, so none is for nothing.
__device__ __forceinline__ small_t digit(unsigned& number, small_t count) {
    if (count == 1) return 0;
    const unsigned rest = number / count, last = number - rest * count;
    number = rest;
    return last;
}

// Tiles are numbered (filter, image, depth, tile along h, tile along w): those of a filter share its spectrum.
__device__ __forceinline__ Tile tile_of(unsigned number, const Conv& p, const Tiling& tiling) {
    Tile t;
#pragma unroll
    for (int i = 1; i >= 0; i--) {
        t.y_at[i] = digit(number, tiling.tiles[i]) * tiling.step[i];
        t.x_at[i] = t.y_at[i] - tiling.lead[i];
        t.y_count[i] = least(tiling.step[i], tiling.positions[i] - t.y_at[i]);
    }
    const small_t out = digit(number, p.out[0]), image = digit(number, p.images);
    t.filter = number;
    const small_t depth = out * p.stride[0] - p.pad[0];
    unsigned group = t.filter;
    digit(group, tiling.filters);
    const small_t channel = group * tiling.channels;  // the first of its group
    if (!inside(depth, p.size[0])) t.x_at[0] = p.size[1];  // below all rows: every place is zero
    t.x = image * p.x_image + index_t(channel) * p.x_channel + index_t(depth) * p.size[1] * p.size[2];
    t.y = image * p.y_image + index_t(t.filter) * p.y_channel + index_t(out) * p.out[1] * p.out[2];
    return t;
}

template <int COUNT, typename T, typename Row, typename Column>
__device__ __forceinline__ void read_as(Complex* v, const void* x, const Tile& t, const Conv& p, const Tiling& tiling,
                                        small_t half, const Row& row, const Column& column) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const small_t h = t.x_at[0] + row(k), w = t.x_at[1] + column(k);
        const T* from = static_cast<const T*>(x) + t.x + h * p.size[2] + w;
        const bool there = inside(h, p.size[1]);
        v[k].re = there && inside(w, p.size[2]) ? widen(*from) : 0;
        v[k].im = there && tiling.upper_in && inside(w + half, p.size[2]) ? widen(from[half]) : 0;
    }
}

// v[k] = the two reals of place (row(k), column(k)).
template <int COUNT, typename Row, typename Column>
__device__ __forceinline__ void read_places(Complex* v, const void* x, const Tile& t, const Conv& p,
                                            const Tiling& tiling,
                                            small_t half, const Row& row, const Column& column) {
    if (tiling.element == 0)
        read_as<COUNT, float>(v, x, t, p, tiling, half, row, column);
    else if (tiling.element == 1)
        read_as<COUNT, float16_t>(v, x, t, p, tiling, half, row, column);
    else
        read_as<COUNT, bfloat16_t>(v, x, t, p, tiling, half, row, column);
}

__device__ __forceinline__ float bias_of(const void* bias, small_t filter, small_t element) {
    if (!bias) return 0;
    if (element == 0) return static_cast<const float*>(bias)[filter];
    if (element == 1) return widen(static_cast<const float16_t*>(bias)[filter]);
    return widen(static_cast<const bfloat16_t*>(bias)[filter]);
}

template <typename T>
__device__ __forceinline__ void write_one(void* y, index_t at, float sum, float bias, small_t relu) {
    static_cast<T*>(y)[at] = narrow<T>(finished(sum, bias, relu));
}

template <int COUNT, typename T, typename Row, typename Column>
__device__ __forceinline__ void write_as(const Complex* v, void* y, float bias, const Tile& t, const Conv& p,
                                         const Tiling& tiling, small_t half, const Row& row, const Column& column) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const small_t h = row(k), w = column(k) - tiling.first;
        const index_t at = t.y + (t.y_at[0] + h) * p.out[2] + t.y_at[1] + w;
        if (h >= t.y_count[0]) continue;
        if (inside(w, t.y_count[1])) write_one<T>(y, at, v[k].re, bias, p.relu);
        if (tiling.upper_out && inside(w + half, t.y_count[1])) write_one<T>(y, at + half, v[k].im, bias, p.relu);
    }
}

__device__ __forceinline__ bool strided(const Conv& p) { return p.stride[1] > 1 || p.stride[2] > 1; }

// The output at a place's row and column, if the strides select it.
__device__ __forceinline__ void write_selected(float sum, void* y, float bias, const Tile& t, const Conv& p,
                                               const Tiling& tiling, small_t h, small_t column) {
    const small_t w = column - tiling.first;
    const small_t at_h = t.y_at[0] + h, at_w = t.y_at[1] + w;
    if (!inside(h, t.y_count[0]) || !inside(w, t.y_count[1]) || at_h % p.stride[1] || at_w % p.stride[2]) return;
    const index_t at = t.y + at_h / p.stride[1] * p.out[2] + at_w / p.stride[2];
    if (tiling.element == 0)
        write_one<float>(y, at, sum, bias, p.relu);
    else if (tiling.element == 1)
        write_one<float16_t>(y, at, sum, bias, p.relu);
    else
        write_one<bfloat16_t>(y, at, sum, bias, p.relu);
}

// The outputs among the places (row(k), column(k)) of v, for strides of 1.
template <int COUNT, typename Row, typename Column>
__device__ __forceinline__ void write_places(const Complex* v, void* y, const void* bias, const Tile& t, const Conv& p,
                                             const Tiling& tiling, small_t half, const Row& row, const Column& column) {
    const float b = bias_of(bias, t.filter, tiling.element);
    if (tiling.element == 0)
        write_as<COUNT, float>(v, y, b, t, p, tiling, half, row, column);
    else if (tiling.element == 1)
        write_as<COUNT, float16_t>(v, y, b, t, p, tiling, half, row, column);
    else
        write_as<COUNT, bfloat16_t>(v, y, b, t, p, tiling, half, row, column);
}
