// The gradient of small depthwise filters, at the speed of memory: a thread keeps all taps of a plane of the kernel in
// registers and goes down a strip of TX columns. It loads each row of x and of dy once; the rows of dy that a row of x
// meets stay in registers.
//
// Channels first, a warp sees one filter, and its lanes' sums are added up by shuffles. Channels last, neighbouring
// threads see neighbouring filters, and `groups` of them share a filter.
//
// Macros: element_t, HEIGHT and WIDTH (taps, at least those of the kernel), STRIDE (of rows and columns), TX (columns),
// CHANNELS_LAST.
#include "depthwise_weights.cuh"

constexpr int MOST_THREADS = 128;
constexpr int TAPS = HEIGHT * WIDTH;
constexpr int DEPTH = ceil_div(HEIGHT, STRIDE);   // rows of dy that a row of x meets
constexpr int SPAN = (TX - 1) * STRIDE + WIDTH;   // inputs of a thread in a row
// Rows of dy whose loads are on their way together, as far as the registers hold them.
constexpr int AHEAD = HEIGHT == 1 || TAPS > 25 || STRIDE * TX > (CHANNELS_LAST ? 4 : 8) ? 1 : 2;
constexpr int BLOCKS = TAPS > 25 ? 3 : TAPS > 9 ? 4 : 5;  // that share the registers: loads may fill the rest

struct Params {
    small_t items;                 // strips, bands, depths and images of a filter
    small_t rows;                  // of dy in a band
    small_t groups;                // of threads in a block; each takes one item after the other
    small_t spare;
    Divisor lanes;                 // threads of a group: 1, or channels last filters
    Divisor parts, t;              // blocks of a filter; kernel[0]
    Divisor columns, bands, depth; // strips of a row, bands of a plane, out[0]
    Divisor multiplier;            // filters of a channel
};

// TX outputs of a row of dy from column q on, of which `left` are still to come, in loads of VECTOR.
template <int VECTOR>
__device__ inline void load_outputs(const element_t* from, bool there, small_t left, small_t pixel, sum_t (&row)[TX]) {
#pragma unroll
    for (int j = 0; j < TX; j += VECTOR)
        widen_pack(load_pack_or_zeros<VECTOR>(from + j * pixel, there && j < left), row + j);
}

#if CHANNELS_LAST
// SPAN inputs of a channel in a row, of which the next pixel lies p.x_pixel further.
template <int>
__device__ inline void load_inputs(const element_t* row, small_t first, bool there, const Conv& p,
                                   sum_t (&span)[SPAN]) {
    const small_t at = forget(first);  // tested anew in every row: known for all, tests fill the registers
    const element_t* from = row + at * p.x_pixel;
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
        widen_pack(load_pack_or_zeros<1>(from, there && inside(at + s, p.size[2])), span + s);
        from += p.x_pixel;
    }
}
#else
constexpr int LEFT = (WIDTH - 1) / 2;            // taps before the output's place, as padding "same" has them
constexpr int WIDEST = 16 / sizeof(element_t);  // elements of the widest load

// The same, of neighbours.
template <int VECTOR>
__device__ inline void load_inputs(const element_t* row, small_t first, bool there, const Conv& p,
                                   sum_t (&span)[SPAN]) {
    load_span<VECTOR, LEFT>(row, first, there, p.size[2], span);
}
#endif

// The products of `rows` rows of dy from first_p on, columns q and on, with the inputs that they read.
template <int VECTOR>
__device__ inline void walk(const element_t* x_plane, const element_t* dy_plane, small_t q, small_t first_p,
                            small_t rows,
                            const Conv& p, sum_t (&sums)[TAPS]) {
    const small_t first_w = q * STRIDE - p.pad[2];
    const small_t pixel_x = CHANNELS_LAST ? p.x_pixel : 1, pixel_y = CHANNELS_LAST ? p.y_pixel : 1;
    sum_t held[AHEAD + DEPTH - 1][TX] = {};  // rows of dy, the latest first
    for (small_t i = 0; i < rows + DEPTH - 1; i += AHEAD) {
#pragma unroll
        for (int k = AHEAD + DEPTH - 2; k >= AHEAD; k--)
#pragma unroll
            for (int j = 0; j < TX; j++) held[k][j] = held[k - AHEAD][j];
        sum_t spans[AHEAD * STRIDE][SPAN];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const element_t* dy_row = dy_plane + ((first_p + i + u) * p.out[2] + q) * pixel_y;
            load_outputs<VECTOR>(dy_row, i + u < rows, p.out[2] - q, pixel_y, held[AHEAD - 1 - u]);
        }
#pragma unroll
        for (int e = 0; e < AHEAD * STRIDE; e++) {
            const small_t h = (first_p + i) * STRIDE + e - p.pad[1];
            const element_t* x_row = x_plane + h * p.size[2] * pixel_x;
            load_inputs<VECTOR>(x_row, first_w, inside(h, p.size[1]), p, spans[e]);
        }
#pragma unroll
        for (int e = 0; e < AHEAD * STRIDE; e++)
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {  // row i + e / STRIDE - k of dy
                const int r = e % STRIDE + k * STRIDE;
                if (r >= HEIGHT) continue;
#pragma unroll
                for (int s = 0; s < WIDTH; s++)
#pragma unroll
                    for (int j = 0; j < TX; j++)
                        sums[r * WIDTH + s] += held[AHEAD - 1 - e / STRIDE + k][j] * spans[e][j * STRIDE + s];
            }
    }
}

// Adds up the sums of a warp: of each pair of lanes that differ in bit BY, one goes on with one half of the taps, the
// other with the other. In the end a lane has the sums of taps first .. first + count, of ceil(TAPS / 32) at most.
template <int COUNT, int BY>
__device__ inline void add_lanes(sum_t (&sums)[TAPS], small_t& first, small_t& count) {
    constexpr int HALF = ceil_div(COUNT, 2);
    const bool upper = threadIdx.x & BY;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const sum_t high = i + HALF < COUNT ? sums[least(i + HALF, COUNT - 1)] : sum_t(0);
        const sum_t given = upper ? sums[i] : high, kept = upper ? high : sums[i];
        sums[i] = kept + __shfl_xor_sync(~0u, given, BY);
    }
    first += upper ? HALF : 0;
    count = upper ? count - HALF : least(count, HALF);
    if constexpr (BY > 1) add_lanes<HALF, BY / 2>(sums, first, count);
}

// x, dy as the problem says; dw (K, T, R, S); parts (parts, K, T, R, S) or null.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS)
strips(const element_t* __restrict__ x, const element_t* __restrict__ dy, element_t* __restrict__ dw,
       sum_t* __restrict__ parts, const Conv p, const Params params) {
    __shared__ sum_t scratch[BATCH * MOST_THREADS];
    unsigned rest = blockIdx.x, group = threadIdx.x;
    const small_t t = take(rest, params.t), part = take(rest, params.parts), lane = take(group, params.lanes);
    const small_t filter = rest * params.lanes.by + lane, step = params.parts.by * params.groups;
    unsigned channel = filter;
    take(channel, params.multiplier);

    const small_t x_plane = p.size[1] * p.size[2] * p.x_pixel, y_plane = p.out[1] * p.out[2] * p.y_pixel;
    sum_t sums[TAPS] = {};
    const bool works = small_t(group) < params.groups && filter < p.filters;
    for (small_t item = part * params.groups + group; works && item < params.items; item += step) {
        unsigned image = item;
        const small_t q = take(image, params.columns) * TX, first_p = take(image, params.bands) * params.rows;
        const small_t depth = take(image, params.depth), d = depth * p.stride[0] - p.pad[0] + t * p.dilation[0];
        if (!inside(d, p.size[0])) continue;
        const element_t* x_from = x + image * p.x_image + index_t(channel) * p.x_channel + d * x_plane;
        const element_t* dy_from = dy + image * p.y_image + index_t(filter) * p.y_channel + depth * y_plane;
        const small_t rows = least(params.rows, p.out[1] - first_p);
#if CHANNELS_LAST
        walk<1>(x_from, dy_from, q, first_p, rows, p, sums);
#else
        const small_t unlike = p.size[2] | p.out[2] | (p.pad[2] - LEFT);  // 0 in the bits of whole vectors
        if (unlike % WIDEST == 0)
            walk<WIDEST>(x_from, dy_from, q, first_p, rows, p, sums);
        else if (unlike % 2 == 0)
            walk<2>(x_from, dy_from, q, first_p, rows, p, sums);
        else
            walk<1>(x_from, dy_from, q, first_p, rows, p, sums);
#endif
    }
#if CHANNELS_LAST
    add_groups(sums, scratch, params.lanes.by, params.groups, [&](int i, sum_t sum) {
        put(dw, parts, part, {filter, t, i / WIDTH, i % WIDTH}, p, sum);
    });
#else
    small_t first = 0, count = TAPS;
    add_lanes<TAPS, 16>(sums, first, count);
    sum_t left[ceil_div(TAPS, 32)];
#pragma unroll
    for (int i = 0; i < ceil_div(TAPS, 32); i++) left[i] = sums[i];
    add_groups(left, scratch, 32, blockDim.x / 32, [&](int i, sum_t sum) {
        if (i < count) put(dw, parts, part, {filter, t, (first + i) / WIDTH, (first + i) % WIDTH}, p, sum);
    });
#endif
}
