// Depthwise convolution of 8-bit integers, in both layouts, with any kernel, stride and dilation: four taps of a row in
// one instruction (dp4a).
//
// A thread computes TX neighbouring outputs of a row. A word holds four neighbouring inputs of a channel: so they lie
// channels first, and channels last words of four channels are turned. Windows of four taps that begin elsewhere are
// cut from two words.
//
// Macros: element_t, QUANTIZED; CHANNELS of a thread: 1, or 4, which lie in a word.
#include "integers.cuh"

constexpr int THREADS = 128;
constexpr int TX = 4;

struct Params {
    small_t threads, terms;                // in all; words that a word of the filter is the sum of
    small_t words;                         // of a row of the filter: ceil(S / 4)
    small_t last;                          // whether channels are the fastest index of threads
    Divisor columns, rows, depth, k;       // of threads: ceil(Q / TX), P, out[0], filters or fours of them
    Divisor multiplier;                    // filters of a channel
};

// A row of inputs of CHANNELS neighbouring channels.
struct Row {
    const element_t* first;
    bool there;
};

// Words 4 x 4 bytes turned: byte i of word j becomes byte j of word i.
__device__ inline void turn(unsigned (&words)[4]) {
    const unsigned a = picked_bytes(words[0], words[1], 0x5140), b = picked_bytes(words[2], words[3], 0x5140);
    const unsigned c = picked_bytes(words[0], words[1], 0x7362), d = picked_bytes(words[2], words[3], 0x7362);
    words[0] = picked_bytes(a, b, 0x5410), words[1] = picked_bytes(a, b, 0x7632);
    words[2] = picked_bytes(c, d, 0x5410), words[3] = picked_bytes(c, d, 0x7632);
}

// Of each channel four inputs of a row, `step` columns apart, padding where they lie outside. `whole`: rows are made of
// whole words, and column and step such that the four lie in one.
template <int COUNT>
__device__ inline void load_four(const Row& row, small_t column, small_t step, bool whole, const conv_t& p,
                                 unsigned (&words)[COUNT]) {
    if constexpr (COUNT == 4) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const small_t at = column + e * step;
            words[e] = p.filler;
            if (row.there && inside(at, p.size[2])) words[e] = *reinterpret_cast<const unsigned*>(row.first + at * p.x_pixel);
        }
        turn(words);
    } else if (whole) {
        words[0] = p.filler;
        if (row.there && inside(column, p.size[2])) words[0] = *reinterpret_cast<const unsigned*>(row.first + column);
    } else {
        Pack<element_t, 4> four;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const small_t at = column + e * step;
            four.v[e] = padding_of(p);
            if (row.there && inside(at, p.size[2])) four.v[e] = row.first[at * p.x_pixel];
        }
        words[0] = *reinterpret_cast<const unsigned*>(&four);
    }
#pragma unroll
    for (int c = 0; c < COUNT; c++) words[c] = as_signed(words[c], p);
}

// Four bytes from byte `from` of two words on.
__device__ inline unsigned cut(unsigned low, unsigned high, small_t from) {
    return picked_bytes(low, high, 0x3210 + 0x1111 * from);
}

using Sums = int[TX][CHANNELS];

// The products of a row and of word `s` of all terms of the filter with windows of four inputs, one for each output.
__device__ inline void multiply(Sums& sums, const unsigned (&windows)[TX][CHANNELS], const int* w, index_t term,
                                const Params& params) {
    for (small_t i = 0; i < params.terms; i++) {
        const Pack<int, CHANNELS> taps = load_pack<CHANNELS>(w + i * term);
#pragma unroll
        for (int j = 0; j < TX; j++)
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) sums[j][c] = add_four(sums[j][c], windows[j][c], taps.v[c]);
    }
}

// A row whose outputs are STRIDE inputs apart, without dilation: each word is loaded once for all outputs.
template <int STRIDE>
__device__ inline void slide(Sums& sums, const Row& row, small_t first, const int* w, index_t term, const conv_t& p,
                             const Params& params) {
    constexpr int HELD = ceil_div((TX - 1) * STRIDE, 4) + 1;  // words that the windows of a word of taps need
    const bool whole = CHANNELS == 1 && p.x_pixel == 1 && p.size[2] % 4 == 0;
    const small_t shift = whole ? first & 3 : 0;  // of the first window in its word: the same for all threads
    unsigned raw[CHANNELS], next[CHANNELS], held[HELD][CHANNELS];
    small_t at = first - shift;
    if (whole) load_four(row, at, 1, true, p, raw);
    auto load = [&](unsigned (&to)[CHANNELS]) {
        if (whole) {
            load_four(row, at += 4, 1, true, p, next);
            to[0] = cut(raw[0], next[0], shift), raw[0] = next[0];
        } else {
            load_four(row, at, 1, false, p, to);
            at += 4;
        }
    };
#pragma unroll
    for (int i = 0; i < HELD - 1; i++) load(held[i]);
    for (small_t s = 0; s < params.words; s++) {
        load(held[HELD - 1]);
        unsigned windows[TX][CHANNELS];
#pragma unroll
        for (int j = 0; j < TX; j++)
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                windows[j][c] = j * STRIDE % 4 ? cut(held[j * STRIDE / 4][c], held[j * STRIDE / 4 + 1][c], j * STRIDE % 4)
                                               : held[j * STRIDE / 4][c];
        multiply(sums, windows, w + index_t(s) * p.filters, term, params);
#pragma unroll
        for (int i = 0; i < HELD - 1; i++)
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) held[i][c] = held[i + 1][c];
    }
}

// Any row.
__device__ inline void gather(Sums& sums, const Row& row, small_t first, const int* w, index_t term, const conv_t& p,
                              const Params& params) {
    for (small_t s = 0; s < params.words; s++) {
        unsigned windows[TX][CHANNELS];
#pragma unroll
        for (int j = 0; j < TX; j++)
            load_four(row, first + j * p.stride[2] + s * 4 * p.dilation[2], p.dilation[2], false, p, windows[j]);
        multiply(sums, windows, w + index_t(s) * p.filters, term, params);
    }
}

// w (terms, T, R, words, K): four taps to a word, zeros beyond the row. Neighbouring threads compute neighbours in
// memory.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
depthwise_dp4a(const element_t* __restrict__ x, const int* __restrict__ w, const int* __restrict__ bias,
               void* __restrict__ y, const conv_t p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    small_t filter = params.last ? take(rest, params.k) * CHANNELS : 0;
    const small_t q = take(rest, params.columns) * TX, out_row = take(rest, params.rows);
    const small_t depth = take(rest, params.depth);
    if (!params.last) filter = take(rest, params.k) * CHANNELS;
    const small_t image = rest;
    unsigned channel = filter;
    take(channel, params.multiplier);

    const element_t* plane = x + image * p.x_image + index_t(channel) * p.x_channel;
    const index_t term = index_t(p.kernel[0]) * p.kernel[1] * params.words * p.filters;
    const small_t first = q * p.stride[2] - p.pad[2];
    Sums sums = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        for (small_t r = 0; r < p.kernel[1]; r++) {
            const small_t h = out_row * p.stride[1] - p.pad[1] + r * p.dilation[1];
            Row row;
            row.there = inside(d, p.size[0]) && inside(h, p.size[1]);
            row.first = plane + (index_t(d) * p.size[1] + h) * p.size[2] * p.x_pixel;
            const int* w_row = w + index_t(t * p.kernel[1] + r) * params.words * p.filters + filter;
            if (p.dilation[2] != 1 || p.stride[2] > 2)
                gather(sums, row, first, w_row, term, p, params);
            else if (p.stride[2] == 1)
                slide<1>(sums, row, first, w_row, term, p, params);
            else
                slide<2>(sums, row, first, w_row, term, p, params);
        }
    }

    const small_t pixel = (depth * p.out[1] + out_row) * p.out[2] + q;
    const index_t to = image * p.y_image + index_t(filter) * p.y_channel + index_t(pixel) * p.y_pixel;
    if (CHANNELS == 1 && p.y_pixel == 1 && p.out[2] % TX == 0) {
        int outputs[TX];
#pragma unroll
        for (int j = 0; j < TX; j++) outputs[j] = sums[j][0];
        store_outputs<TX, 0>(y, to, outputs, bias, filter, p);
        return;
    }
#pragma unroll
    for (int j = 0; j < TX; j++)
        if (q + j < p.out[2]) store_outputs<CHANNELS, 1>(y, to + index_t(j) * p.y_pixel, sums[j], bias, filter, p);
}
