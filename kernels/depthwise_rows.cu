// Depthwise convolution: every filter sees one channel, so there is no product of matrices to share work.
//
// Five forms, one to a build:
//   rows    channels first, square kernels of up to 7: no shared memory, a thread loads whole vectors of its rows
//           straight from global memory, halo included, and writes whole vectors. Bound by memory.
//   line    short kernels along the last dimension alone, at the speed of memory.
//   staged  channels first, any kernel: a block brings planes of x to shared memory; a thread slides a window
//           of registers along each row, four taps at a time. Bound by arithmetic.
//   last    channels last, square kernels of up to 7: a thread computes VECTOR neighbouring channels.
//   plain   both layouts, any kernel, stride and dilation: every tap loads its own input.
// Weights are in sum_t, (K, T, R, S filled up to whole fours) or, channels last, (T, R, S, K).
//
// Macros: element_t, FORM_ROWS | FORM_LINE | FORM_STAGED | FORM_LAST | FORM_PLAIN, and
//   rows, last: KERNEL (rows and columns of it)
//   rows, staged, last: TX and TY (outputs of a thread along a row and a column), STRIDE (along both)
//   last, plain: VECTOR (channels of a thread).
#include "depthwise.cuh"

struct Cut {
    small_t threads;             // in all, or staged planes in all
    small_t planes;              // staged: of a block
    small_t block_x, block_y;    // staged: threads of a block over a plane
    small_t pitch, height;       // staged: elements from row to row, and rows, of a plane in shared memory
    small_t filters;             // staged: of a block: 1 where all its planes are images of one
    small_t last;                // plain: whether channels are the fastest index
    Divisor columns, rows;       // of threads over a plane: ceil(Q / TX), ceil(P / TY); staged: of blocks
    Divisor depth, k, images;    // out[0]; filters, or packs of them; images
    Divisor multiplier;          // filters of a channel
    Divisor group, across;       // staged: threads that share their rows; of them, over a row
    Divisor chunks, tile_rows;   // staged: of 32 elements in a pitch; height
    Divisor weights;             // staged: R * taps / 4
};

#if FORM_ROWS

constexpr int THREADS = 64;
constexpr int WIDEST = 16 / sizeof(element_t);  // elements of the widest load
constexpr int LEFT = (KERNEL - 1) / 2;          // taps before the output's place, as padding "same" has them
constexpr int TAPS = round_up(KERNEL, 4);
constexpr int SPAN = (TX - 1) * STRIDE + KERNEL;  // inputs of a thread in a row
constexpr int IN_ROWS = (TY - 1) * STRIDE + KERNEL;
constexpr int BLOCKS = KERNEL == 3 ? 10 : 6;  // that share the registers: loads may fill the rest

template <int VECTOR>
__device__ inline void accumulate(const element_t* x_plane, const sum_t* w_from, small_t first_h, small_t first_w,
                                  const Conv& p, sum_t (&sums)[TY][TX]) {
    sum_t taps[KERNEL][TAPS];
#pragma unroll
    for (int i = 0; i < KERNEL * TAPS / 4; i++) {
        const Pack<sum_t, 4> four = load_pack<4>(w_from + i * 4);
#pragma unroll
        for (int j = 0; j < 4; j++) taps[i * 4 / TAPS][i * 4 % TAPS + j] = four.v[j];
    }
#pragma unroll
    for (int i = 0; i < IN_ROWS; i++) {
        const small_t h = first_h + i;
        sum_t span[SPAN];
        load_span<VECTOR, LEFT>(x_plane + h * p.size[2], first_w, inside(h, p.size[1]), p.size[2], span);
#pragma unroll
        for (int o = 0; o < TY; o++) {
            const int r = i - o * STRIDE;
            if (r < 0 || r >= KERNEL) continue;
#pragma unroll
            for (int s = 0; s < KERNEL; s++)
#pragma unroll
                for (int j = 0; j < TX; j++) sums[o][j] += span[j * STRIDE + s] * taps[r][s];
        }
    }
}

// w (K, T, KERNEL, TAPS).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
rows(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Cut cut) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= cut.threads) return;
    const small_t q = take(rest, cut.columns) * TX, row = take(rest, cut.rows) * TY;
    const small_t depth = take(rest, cut.depth), filter = take(rest, cut.k), image = rest;
    unsigned channel = filter;
    take(channel, cut.multiplier);

    const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel;
    const small_t first_h = row * STRIDE - p.pad[1], first_w = q * STRIDE - p.pad[2];
    const small_t plane = p.size[1] * p.size[2], off = p.pad[2] - LEFT;
    sum_t sums[TY][TX] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        const element_t* x_plane = x_from + d * plane;
        const sum_t* w_from = w + (index_t(filter) * p.kernel[0] + t) * (KERNEL * TAPS);
        if (p.size[2] % WIDEST == 0 && off % WIDEST == 0)
            accumulate<WIDEST>(x_plane, w_from, first_h, first_w, p, sums);
        else if (p.size[2] % 2 == 0 && off % 2 == 0)
            accumulate<2>(x_plane, w_from, first_h, first_w, p, sums);
        else
            accumulate<1>(x_plane, w_from, first_h, first_w, p, sums);
    }
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + image * p.y_image + index_t(filter) * p.y_channel + depth * p.out[1] * p.out[2];
#pragma unroll
    for (int o = 0; o < TY; o++)
        if (row + o < p.out[1])
            store_row<TX>(y_plane + (row + o) * p.out[2] + q, sums[o], b, p.out[2] - q, p.out[2], p.relu);
}

#elif FORM_LINE

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

__device__ inline Place place_of(unsigned item, const element_t* x, element_t* y, const Conv& p, const Cut& cut) {
    Place at;
    at.q = take(item, cut.columns);
    const small_t row = take(item, cut.rows);
    at.filter = take(item, cut.k);
    unsigned channel = at.filter;
    take(channel, cut.multiplier);
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
        element_t* __restrict__ y, const Conv p, const Cut cut) {
    const small_t shift = -p.pad[2] & (VECTOR - 1);
    Pack<element_t, VECTOR> packs[ITEMS][LOADS];
    Place places[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const unsigned item = (blockIdx.x * ITEMS + i) * THREADS + threadIdx.x;
        places[i] = place_of(item, x, y, p, cut);
        places[i].q = item < cut.threads ? places[i].q * VECTOR : p.out[2];
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
       element_t* __restrict__ y, const Conv p, const Cut cut) {
    __shared__ __align__(16) element_t turned[THREADS / 32][32 * VECTOR];
    const small_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, shift = -p.pad[2] & (VECTOR - 1);
    const unsigned item = blockIdx.x * (THREADS / 32) + warp;
    if (item >= cut.threads) return;  // the whole warp
    const Place at = place_of(item, x, y, p, cut);
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
      element_t* __restrict__ y, const Conv p, const Cut cut) {
    const unsigned item = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (item >= cut.threads) return;
    const Place at = place_of(item, x, y, p, cut);
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
         element_t* __restrict__ y, const Conv p, const Cut cut) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= cut.threads) return;
    const small_t filter = take(rest, cut.k) * CHANNELS, q = take(rest, cut.columns) * OUTPUTS;
    const small_t row = take(rest, cut.rows), image = rest;
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

#elif FORM_STAGED

constexpr int HELD = round_up((TX - 1) * STRIDE, 4);  // of the window, from one four taps to the next
constexpr int MOST_THREADS = 256;

// The products of one row of x with the taps s .. s + count of the rows of a filter that it meets: row i of the
// inputs of a thread and row i - o * STRIDE of the filter make sums[o]. ALL: every o has one.
template <bool ALL>
__device__ inline void multiply(const sum_t* w_row, small_t i, small_t kernel_h, small_t taps, small_t count,
                                const sum_t (&window)[HELD + 4], sum_t (&sums)[TY][TX]) {
#pragma unroll
    for (int o = 0; o < TY; o++) {
        if (!ALL && !inside(i - o * STRIDE, kernel_h)) continue;
        const Pack<sum_t, 4> four = load_pack<4>(w_row - o * STRIDE * taps);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (e < count)
#pragma unroll
                for (int j = 0; j < TX; j++) sums[o][j] += window[j * STRIDE + e] * four.v[e];
    }
}

// Planes are numbered with the images of a filter next to one another.
// w (K, T, R, taps): taps = round_up(S, 4). Shared: cut.planes of (height, pitch), then weights of cut.filters.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
staged(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
       element_t* __restrict__ y, const Conv p, const Cut cut) {
    const small_t tid = threadIdx.x, threads = blockDim.x, lane = tid % 32;
    unsigned rest = blockIdx.x;
    const small_t first_q = take(rest, cut.columns) * cut.block_x * TX;
    const small_t first_p = take(rest, cut.rows) * cut.block_y * TY;
    const small_t depth = take(rest, cut.depth);
    const small_t first_plane = rest * cut.planes;
    // Rows of padding are not stored: what lies outside of x is skipped.
    const small_t top = most(first_p * STRIDE - p.pad[1], 0), first_w = first_q * STRIDE - p.pad[2];

    const small_t taps = round_up(p.kernel[2], 4), weights = p.kernel[1] * taps;
    const small_t plane_size = cut.height * cut.pitch;
    sum_t* x_tile = static_cast<sum_t*>(dynamic_shared());
    sum_t* w_tile = x_tile + cut.planes * plane_size;

    // Threads of the same rows follow one another, so that whole warps skip rows together.
    rest = tid;
    unsigned mine = take(rest, cut.group);
    const small_t column = take(mine, cut.across), row = rest;
    const bool works = mine < cut.planes && row < cut.block_y && first_plane + small_t(mine) < cut.threads;
    const small_t first_h = (first_p + row * TY) * STRIDE - p.pad[1];
    const sum_t* x_mine = x_tile + small_t(mine) * plane_size + column * TX * STRIDE;
    const sum_t* w_mine = w_tile + (cut.filters == 1 ? 0 : small_t(mine)) * weights;
    sum_t sums[TY][TX] = {};

    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;  // for all threads
        __syncthreads();
        const small_t items = cut.planes * cut.height * cut.chunks.by;
#pragma unroll 4
        for (small_t item = tid / 32; item < items; item += threads / 32) {  // a warp to 32 elements of a row
            unsigned left = item;
            const small_t j = take(left, cut.chunks) * 32 + lane, at = left * cut.pitch + j;
            const small_t h = top + take(left, cut.tile_rows), column_w = first_w + j;
            unsigned filter = first_plane + left;
            const bool there = filter < cut.threads && h < p.size[1] && inside(column_w, p.size[2]);
            const small_t image = take(filter, cut.images);
            take(filter, cut.multiplier);  // now the channel
            const element_t* plane = x + image * p.x_image + index_t(filter) * p.x_channel;
            const sum_t v = there ? widen(plane[(d * p.size[1] + h) * p.size[2] + column_w]) : sum_t(0);
            if (j < cut.pitch) x_tile[at] = v;
        }
        for (small_t i = tid; i < cut.filters * small_t(cut.weights.by); i += threads) {
            unsigned left = i;
            const small_t at = take(left, cut.weights) * 4;
            unsigned filter = first_plane + left;
            const bool there = filter < cut.threads;
            take(filter, cut.images);
            const sum_t* from = w + (index_t(filter) * p.kernel[0] + t) * weights + at;
            store_pack<4>(w_tile + i * 4, load_pack_or_zeros<4>(from, there));
        }
        __syncthreads();
        if (!works) continue;
        for (small_t i = 0; i < (TY - 1) * STRIDE + p.kernel[1]; i++) {
            const small_t h = first_h + i;
            if (!inside(h, p.size[1])) continue;
            const bool all = i >= (TY - 1) * STRIDE && i < p.kernel[1];  // the same for all threads
            const sum_t *from = x_mine + (h - top) * cut.pitch, *w_row = w_mine + i * taps;
            sum_t window[HELD + 4];
#pragma unroll
            for (int j = 0; j < HELD; j += 4) widen_pack(load_pack<4>(from + j), window + j);
            for (small_t s = 0; s < p.kernel[2]; s += 4) {
                widen_pack(load_pack<4>(from + HELD + s), window + HELD);
                if (p.kernel[2] - s < 4)
                    multiply<false>(w_row + s, i, p.kernel[1], taps, p.kernel[2] - s, window, sums);
                else if (all)
                    multiply<true>(w_row + s, i, p.kernel[1], taps, 4, window, sums);
                else
                    multiply<false>(w_row + s, i, p.kernel[1], taps, 4, window, sums);
#pragma unroll
                for (int j = 0; j < HELD; j++) window[j] = window[j + 4];
            }
        }
    }
    const small_t q = first_q + column * TX, first_row = first_p + row * TY;
    if (!works || q >= p.out[2]) return;
    unsigned filter = first_plane + mine;
    const small_t image = take(filter, cut.images);
    const sum_t b = bias_of<sum_t>(bias, filter);
    element_t* y_plane = y + image * p.y_image + index_t(filter) * p.y_channel + depth * p.out[1] * p.out[2];
#pragma unroll
    for (int o = 0; o < TY; o++) {
        const small_t at = first_row + o;
        if (at < p.out[1])
            store_row<TX>(y_plane + at * p.out[2] + q, sums[o], b, p.out[2] - q, p.out[2], p.relu);
    }
}

#elif FORM_LAST

constexpr int THREADS = 128;
constexpr int SPAN = (TX - 1) * STRIDE + KERNEL;

// w (T, KERNEL, KERNEL, K). Neighbouring threads compute neighbouring channels.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
last(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
     element_t* __restrict__ y, const Conv p, const Cut cut) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= cut.threads) return;
    const small_t filter = take(rest, cut.k) * VECTOR;
    const small_t q = take(rest, cut.columns) * TX, row = take(rest, cut.rows) * TY;
    const small_t depth = take(rest, cut.depth), image = rest;
    const small_t first_h = row * STRIDE - p.pad[1], first_w = q * STRIDE - p.pad[2];

    const element_t* x_from = x + image * p.x_image + filter;
    sum_t sums[TY][TX][VECTOR] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        // Where they fit the registers, all loads are on their way together.
#pragma unroll KERNEL * STRIDE == 3 && sizeof(element_t) == 2 ? TY - 1 + KERNEL : 1
        for (int i = 0; i < (TY - 1) * STRIDE + KERNEL; i++) {
            const small_t h = first_h + i;
            const bool there = inside(h, p.size[1]);
            const small_t at = forget(first_w);  // tested anew in every row: known for all, tests fill the registers
            const element_t* x_row = x_from + ((d * p.size[1] + h) * p.size[2] + at) * p.channels;
            sum_t span[SPAN][VECTOR];
#pragma unroll
            for (int s = 0; s < SPAN; s++) {
                widen_pack(load_pack_or_zeros<VECTOR>(x_row, there && inside(at + s, p.size[2])), span[s]);
                x_row += p.channels;
            }
#pragma unroll
            for (int o = 0; o < TY; o++) {
                const int r = i - o * STRIDE;
                if (r < 0 || r >= KERNEL) continue;
                const sum_t* w_row = w + index_t(t * KERNEL + r) * KERNEL * p.filters + filter;
#pragma unroll
                for (int s = 0; s < KERNEL; s++) {
                    const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * p.filters);
#pragma unroll
                    for (int j = 0; j < TX; j++)
#pragma unroll
                        for (int c = 0; c < VECTOR; c++) sums[o][j][c] += span[j * STRIDE + s][c] * tap.v[c];
                }
            }
        }
    }
    sum_t b[VECTOR];
#pragma unroll
    for (int c = 0; c < VECTOR; c++) b[c] = bias_of<sum_t>(bias, filter + c);
    element_t* y_from = y + image * p.y_image + filter;
#pragma unroll
    for (int o = 0; o < TY; o++)
#pragma unroll
        for (int j = 0; j < TX; j++) {
            if (row + o >= p.out[1] || q + j >= p.out[2]) continue;
            sum_t v[VECTOR];
#pragma unroll
            for (int c = 0; c < VECTOR; c++) v[c] = finished(sums[o][j][c], b[c], p.relu);
            const small_t pixel = (depth * p.out[1] + row + o) * p.out[2] + q + j;
            store_pack<VECTOR>(y_from + pixel * p.filters, narrow_pack<element_t, VECTOR>(v));
        }
}

#elif FORM_PLAIN

constexpr int THREADS = 128;
constexpr int TX = 4;  // outputs of a thread, a fourth of a row apart: neighbours in neighbouring lanes

// w (K, T, R, taps) with taps = round_up(S, 4), or channels last (T, R, S, K), where threads of neighbouring
// channels are neighbours.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
plain(const element_t* __restrict__ x, const sum_t* __restrict__ w, const element_t* __restrict__ bias,
      element_t* __restrict__ y, const Conv p, const Cut cut) {
    unsigned rest = blockIdx.x * THREADS + threadIdx.x;
    if (rest >= cut.threads) return;
    const bool last = cut.last;
    small_t filter = last ? take(rest, cut.k) * VECTOR : 0;
    const small_t first_q = take(rest, cut.columns), row = take(rest, cut.rows), depth = take(rest, cut.depth);
    if (!last) filter = take(rest, cut.k);
    const small_t image = rest, columns = cut.columns.by;
    unsigned channel = filter;
    take(channel, cut.multiplier);

    const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel;
    const small_t taps = last ? p.kernel[2] : round_up(p.kernel[2], 4), tap_step = last ? p.filters : 1;
    const sum_t* w_from = last ? w + filter : w + index_t(filter) * p.kernel[0] * p.kernel[1] * taps;
    sum_t sums[TX][VECTOR] = {};
    for (small_t t = 0; t < p.kernel[0]; t++) {
        const small_t d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        for (small_t r = 0; r < p.kernel[1]; r++) {
            const small_t h = row * p.stride[1] - p.pad[1] + r * p.dilation[1];
            if (!inside(h, p.size[1])) continue;
            const element_t* x_row = x_from + (d * p.size[1] + h) * p.size[2] * p.x_pixel;
            const sum_t* w_row = w_from + index_t(t * p.kernel[1] + r) * taps * tap_step;
            for (small_t s = 0; s < p.kernel[2]; s++) {
                const Pack<sum_t, VECTOR> tap = load_pack<VECTOR>(w_row + index_t(s) * tap_step);
#pragma unroll
                for (int j = 0; j < TX; j++) {
                    const small_t at = (first_q + j * columns) * p.stride[2] - p.pad[2] + s * p.dilation[2];
                    if (!inside(at, p.size[2])) continue;
                    sum_t v[VECTOR];
                    widen_pack(load_pack<VECTOR>(x_row + at * p.x_pixel), v);
#pragma unroll
                    for (int c = 0; c < VECTOR; c++) sums[j][c] += v[c] * tap.v[c];
                }
            }
        }
    }
    element_t* y_from = y + image * p.y_image + index_t(filter) * p.y_channel;
#pragma unroll
    for (int j = 0; j < TX; j++) {
        const small_t q = first_q + j * columns;
        if (q >= p.out[2]) break;
        sum_t v[VECTOR];
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            v[c] = finished(sums[j][c], bias_of<sum_t>(bias, filter + c), p.relu);
        const small_t pixel = (depth * p.out[1] + row) * p.out[2] + q;
        store_pack<VECTOR>(y_from + pixel * p.y_pixel, narrow_pack<element_t, VECTOR>(v));
    }
}

#endif
