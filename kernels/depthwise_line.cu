// Depthwise convolution with short kernels along the last dimension alone, at the speed of memory; in both layouts.
//
// Macros: element_t.
#include "depthwise_forward.cuh"

constexpr int THREADS = 128;
constexpr int VECTOR = 16 / sizeof(element_t);
constexpr int TAPS = 8;  // at most
constexpr int ITEMS = 2;  // vectors of outputs of a thread: the loads of all are on their way together
constexpr int LOADS = ceil_div(VECTOR - 1 + VECTOR + TAPS - 1, VECTOR);

struct Place {
    small_t q, filter;
    const element_t* x;  // the row
    element_t* y;
};

__device__ inline Place place_of(unsigned item, const element_t* x, element_t* y, const Conv& p, const Params& params) {
    Place at;
    at.q = take(item, params.columns);
    const small_t row = take(item, params.rows);
    at.filter = take(item, params.k);
    unsigned channel = at.filter;
    take(channel, params.multiplier);
    at.x = x + item * p.x_image + index_t(channel) * p.x_channel + row * p.size[2];
    at.y = y + item * p.y_image + index_t(at.filter) * p.y_channel + row * p.out[2];
    return at;
}

// The sums of VECTOR outputs from inputs that begin SHIFT before the first.
template <int SHIFT>
__device__ inline void accumulate(const sum_t (&all)[LOADS * VECTOR], const sum_t (&taps)[TAPS], small_t count,
                                  small_t shift, sum_t (&sums)[VECTOR]) {
    if (shift == SHIFT) {
#pragma unroll
        for (int s = 0; s < TAPS; s++)
            if (s < count)
#pragma unroll
                for (int j = 0; j < VECTOR; j++) sums[j] += all[SHIFT + j + s] * taps[s];
    }
    if constexpr (SHIFT + 1 < VECTOR) accumulate<SHIFT + 1>(all, taps, count, shift, sums);
}

// The inputs of VECTOR outputs from column q on, in whole vectors; zeros where there are none.
__device__ inline void load_line(Pack<element_t, VECTOR> (&packs)[LOADS], const element_t* x, small_t q, bool exists,
                                 small_t shift, const Conv& p) {
    const small_t first = q - p.pad[2] - shift, needed = shift + VECTOR + p.kernel[2] - 1;
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
        const bool there = exists && l * VECTOR < needed && inside(first + l * VECTOR, p.size[2]);
        packs[l] = load_pack_or_zeros<VECTOR>(x + first + l * VECTOR, there);
    }
}

__device__ inline void sum_line(const Pack<element_t, VECTOR> (&packs)[LOADS], const sum_t* w, small_t filter,
                                small_t shift, const Conv& p, sum_t (&sums)[VECTOR]) {
    const small_t count = p.kernel[2];
    sum_t taps[TAPS], all[LOADS * VECTOR];
#pragma unroll
    for (int s = 0; s < TAPS; s += 4) {
        const sum_t* from = w + index_t(filter) * round_up(count, 4) + s;
        widen_pack(load_pack_or_zeros<4>(from, s < count), taps + s);
    }
#pragma unroll
    for (int l = 0; l < LOADS; l++) widen_pack(packs[l], all + l * VECTOR);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) sums[j] = 0;
    accumulate<0>(all, taps, count, forget(shift), sums);  // else all is compiled once for each shift
}

// w (K, taps): taps = round_up(S, 4). A thread computes ITEMS vectors of rows of whole vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
vectors(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
        element_t* __restrict__ y, const Conv p, const Params params) {
    const small_t shift = -p.pad[2] & (VECTOR - 1);
    Pack<element_t, VECTOR> packs[ITEMS][LOADS];
    Place places[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const unsigned item = (blockIdx.x * ITEMS + i) * THREADS + threadIdx.x;
        places[i] = place_of(item, x, y, p, params);
        places[i].q = item < params.threads ? places[i].q * VECTOR : p.out[2];
        load_line(packs[i], places[i].x, places[i].q, places[i].q < p.out[2], shift, p);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const Place& at = places[i];
        if (at.q >= p.out[2]) continue;
        sum_t sums[VECTOR];
        sum_line(packs[i], w, at.filter, shift, p, sums);
        store_row<VECTOR>(at.y + at.q, sums, bias_of<sum_t>(bias, at.filter), VECTOR, VECTOR, p.relu);
    }
}

// The same for rows of y that are no whole vectors: a warp computes 32 vectors of a row, and turns them in shared memory
// so that neighbouring lanes write neighbours.
extern "C" __global__ void __launch_bounds__(THREADS)
strips(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
       element_t* __restrict__ y, const Conv p, const Params params) {
    __shared__ __align__(16) element_t turned[THREADS / 32][32 * VECTOR];
    const small_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, shift = -p.pad[2] & (VECTOR - 1);
    const unsigned item = blockIdx.x * (THREADS / 32) + warp;
    if (item >= params.threads) return;  // the whole warp
    const Place at = place_of(item, x, y, p, params);
    const small_t first = at.q * (32 * VECTOR), q = first + lane * VECTOR;
    Pack<element_t, VECTOR> packs[LOADS];
    load_line(packs, at.x, q, q < p.out[2], shift, p);
    sum_t sums[VECTOR];
    sum_line(packs, w, at.filter, shift, p, sums);
    store_row<VECTOR>(turned[warp] + lane * VECTOR, sums, bias_of<sum_t>(bias, at.filter), VECTOR, VECTOR, p.relu);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        const small_t k = j * 32 + lane;
        if (first + k < p.out[2]) at.y[first + k] = turned[warp][k];
    }
}

// The same for rows of x that are no whole vectors: a warp computes 32 * VECTOR outputs, each from loads of its own.
extern "C" __global__ void __launch_bounds__(THREADS)
lanes(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
      element_t* __restrict__ y, const Conv p, const Params params) {
    const unsigned item = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (item >= params.threads) return;
    const Place at = place_of(item, x, y, p, params);
    const small_t count = p.kernel[2];
    sum_t taps[TAPS] = {};
#pragma unroll
    for (int s = 0; s < TAPS; s++)
        if (s < count) taps[s] = w[index_t(at.filter) * round_up(count, 4) + s];
    const sum_t b = bias_of<sum_t>(bias, at.filter);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        const small_t q = at.q * (32 * VECTOR) + j * 32 + threadIdx.x % 32;
        if (q >= p.out[2]) break;
        sum_t sum = 0;
#pragma unroll
        for (int s = 0; s < TAPS; s++)
            if (s < count && inside(q - p.pad[2] + s, p.size[2])) sum += widen(at.x[q - p.pad[2] + s]) * taps[s];
        at.y[q] = narrow<element_t>(finished(sum, b, p.relu));
    }
}

constexpr int CHANNELS = 8 / sizeof(element_t);  // of a thread, channels last
constexpr int OUTPUTS = 8;                         // of a thread along a row, channels last

// Channels last: w (S, K). Neighbouring threads compute neighbouring channels; each input is loaded once.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
channels(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
         element_t* __restrict__ y, const Conv p, const Params params) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= params.threads) return;
    const small_t filter = take(rest, params.k) * CHANNELS, q = take(rest, params.columns) * OUTPUTS;
    const small_t row = take(rest, params.rows), image = rest;
    const small_t first = q - p.pad[2], count = p.kernel[2];
    const element_t* x_from = x + image * p.x_image + (row * p.size[2] + first) * p.channels + filter;
    sum_t taps[TAPS][CHANNELS], sums[OUTPUTS][CHANNELS] = {};
#pragma unroll
    for (int s = 0; s < TAPS; s++)
        widen_pack(load_pack_or_zeros<CHANNELS>(w + index_t(s) * p.filters + filter, s < count), taps[s]);
#pragma unroll
    for (int i = 0; i < OUTPUTS + TAPS - 1; i++) {
        sum_t v[CHANNELS];
        const bool there = i < OUTPUTS + count - 1 && inside(first + i, p.size[2]);
        widen_pack(load_pack_or_zeros<CHANNELS>(x_from, there), v);
        x_from += p.channels;
#pragma unroll
        for (int s = 0; s < TAPS; s++) {
            if (i - s < 0 || i - s >= OUTPUTS || s >= count) continue;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) sums[i - s][c] += v[c] * taps[s][c];
        }
    }
    sum_t b[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) b[c] = bias_of<sum_t>(bias, filter + c);
    element_t* to = y + image * p.y_image + (row * p.out[2] + q) * p.filters + filter;
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) {
        if (q + j >= p.out[2]) break;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) sums[j][c] = finished(sums[j][c], b[c], p.relu);
        store_pack<CHANNELS>(to, narrow_pack<element_t, CHANNELS>(sums[j]));
        to += p.filters;
    }
}
