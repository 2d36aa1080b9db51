// Convolution through spectra of rows too long for a block, without a trip to memory: a cluster of blocks holds a
// tile in its shared memories.
//
// Points of a tile are (CLUSTER, POINTS), a row to a block. Blocks share out the columns, of CLUSTER points that lie
// POINTS apart: a thread reads a column from x, transforms it in its registers and sends each result to the block of
// its row. That transforms the row, multiplies it by the filter's spectrum and transforms back; then threads fetch the
// columns again, from all blocks. Everything between x and y passes from one multiprocessor to another, not through L2.
//
// Macros: those of fft_stages.cuh with HEIGHT 1 and WEIGHTS 0, RESIDENT (blocks of a multiprocessor), CLUSTER.
#include "cluster.cuh"
#include "fft_stages.cuh"

constexpr int COLUMNS = POINTS / CLUSTER;       // of a block
constexpr int AT_ONCE = most(1, 8 / CLUSTER);   // columns of a thread, for as many loads as it can wait for at once
constexpr int HELD = AT_ONCE * CLUSTER;         // points of them
constexpr int FINE = 128, FACTORS = FINE + POINTS / FINE;  // of a table: places 0, 1, 2, ... and 0, FINE, 2 FINE, ...
static_assert(COLUMNS % (AT_ONCE * THREADS) == 0, "threads have the same number of columns");

// The factors of a column's results: weights and all, of result 0 and from each to the next.
__device__ __forceinline__ Complex factor(const Complex* table, small_t column) {
    return table[column % FINE] * table[FINE + column / FINE];
}

template <bool BACK>
__device__ __forceinline__ void twist_column(Complex* v, const Complex* table, small_t column) {
    Complex at = factor(table, column);
    const Complex next = factor(table + FACTORS, column);
#pragma unroll
    for (int k = 0; k < CLUSTER; k++) {
        v[k] = times<BACK>(v[k], at);
        at = at * next;
    }
}

// The rows of a tile, found anew where they are needed: kept in between, they would take registers from transforms.
struct Rows {
    RemotePairs row[CLUSTER];

    __device__ __forceinline__ explicit Rows(const Complex* shared) {
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) row[k] = RemotePairs(shared, k);
    }
};

// Where a point of a row is in shared memory.
__device__ __forceinline__ small_t place(small_t i) { return i + i / PAD; }

// y from x, a tile to a cluster; or spectra (filters, CLUSTER, POINTS) from the filters' planes. columns
// (2, FACTORS): their factors; tables: those of the stages. Channels first.
extern "C" __global__ void IN_CLUSTERS(CLUSTER) __launch_bounds__(THREADS, RESIDENT)
cluster_tiles(const void* __restrict__ x, Complex* __restrict__ spectra, const void* __restrict__ bias,
              void* __restrict__ y, const Complex* __restrict__ columns, const Complex* __restrict__ tables,
              const Conv p, const Tiling tiling, small_t prepares) {
    Complex* shared = static_cast<Complex*>(dynamic_shared());
    const small_t rank = cluster_rank();
    const Tile tile = tile_of(blockIdx.x / CLUSTER, p, tiling);
    const small_t half = CLUSTER * POINTS, first_column = rank * COLUMNS + threadIdx.x;
    const auto row = [](int) { return 0; };

    meet_cluster();  // every block is there
    const Rows to(shared);
#pragma unroll 1
    for (small_t i = 0; i < COLUMNS; i += AT_ONCE * THREADS) {
        const small_t column = first_column + i;
        const auto at = [=](int k) { return column + k / CLUSTER * THREADS + k % CLUSTER * POINTS; };
        Complex v[HELD];
        read_places<HELD>(v, x, tile, p, tiling, half, row, at);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (k % CLUSTER == 0) {
                weigh<CLUSTER, false>(v + k);
                transform<CLUSTER, false>(v + k);
                twist_column<false>(v + k, columns, at(k));
            }
            to.row[k % CLUSTER].store(place(at(k - k % CLUSTER)), v[k].re, v[k].im);
        }
    }
    meet_cluster();  // rows are whole

    Complex* spectrum = spectra + (index_t(tile.filter) * CLUSTER + rank) * POINTS;
    middle<0, false>(shared, tables);
    forward<1>(shared, tables);
    multiply(shared, nullptr, spectrum, tables, prepares, false, false);
    if (prepares) return;  // nobody reaches for its memory any more
    backward<1>(shared, tables);
    middle<0, true>(shared, tables);

    meet_cluster();  // columns are whole
    const Rows from(shared);
#pragma unroll 1
    for (small_t i = 0; i < COLUMNS; i += AT_ONCE * THREADS) {
        const small_t column = first_column + i;
        const auto at = [=](int k) { return column + k / CLUSTER * THREADS + k % CLUSTER * POINTS; };
        Complex v[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++) from.row[k % CLUSTER].load(place(at(k - k % CLUSTER)), v[k].re, v[k].im);
#pragma unroll
        for (int k = 0; k < HELD; k += CLUSTER) {
            twist_column<true>(v + k, columns, at(k));
            transform<CLUSTER, true>(v + k);
            weigh<CLUSTER, true>(v + k);
        }
        if (!strided(p)) {
            write_places<HELD>(v, y, bias, tile, p, tiling, half, row, at);
        } else {
            const float b = bias_of(bias, tile.filter, tiling.element);
#pragma unroll
            for (int k = 0; k < HELD; k++) {
                write_selected(v[k].re, y, b, tile, p, tiling, 0, at(k));
                write_selected(v[k].im, y, b, tile, p, tiling, 0, at(k) + half);
            }
        }
    }
    meet_cluster();  // nobody ends whom others still reach for
}
