// The first stage of transforms too long for a block, and the last one back: columns of RADIX points that lie
// `columns` apart. Between them, rows of points are transformed, multiplied and transformed back (fft_fused.cu);
// neither the reals beside a tile's input nor those beside its outputs touch memory.
//
// Macros: RADIX, COSINES.
#include "fft_tiles.cuh"

constexpr int THREADS = 128;

// points (tiles, RADIX, columns) from x, a column to a thread; tiles are numbered from `first` on.
extern "C" __global__ void __launch_bounds__(THREADS)
columns_in(const void* __restrict__ x, Complex* __restrict__ points, const Complex* __restrict__ table,
           small_t columns, small_t first, const Conv p, const Tiling tiling) {
    unsigned number = blockIdx.x;
    const small_t column = digit(number, columns / THREADS) * THREADS + threadIdx.x;
    const Tile tile = tile_of(first + number, p, tiling);
    Complex v[RADIX];
    read_places<RADIX>(v, x, tile, p, tiling, columns * RADIX, [](int) { return 0; },
                       [=](int k) { return column + k * columns; });
    weigh<RADIX, false>(v);
    transform<RADIX, false>(v);
    twist<RADIX, true, false>(v, table, columns, column);
    Complex* mine = points + index_t(number) * RADIX * columns + column;
#pragma unroll
    for (int k = 0; k < RADIX; k++) mine[index_t(k) * columns] = v[k];
}

// y from points (tiles, RADIX, columns).
extern "C" __global__ void __launch_bounds__(THREADS)
columns_out(const Complex* __restrict__ points, const void* __restrict__ bias, void* __restrict__ y,
            const Complex* __restrict__ table, small_t columns, small_t first, const Conv p, const Tiling tiling) {
    unsigned number = blockIdx.x;
    const small_t column = digit(number, columns / THREADS) * THREADS + threadIdx.x;
    const Tile tile = tile_of(first + number, p, tiling);
    const Complex* mine = points + index_t(number) * RADIX * columns + column;
    Complex v[RADIX];
#pragma unroll
    for (int k = 0; k < RADIX; k++) v[k] = mine[index_t(k) * columns];
    twist<RADIX, true, true>(v, table, columns, column);
    transform<RADIX, true>(v);
    weigh<RADIX, true>(v);
    const small_t half = columns * RADIX;
    if (!strided(p)) {
        write_places<RADIX>(v, y, bias, tile, p, tiling, half, [](int) { return 0; },
                            [=](int k) { return column + k * columns; });
    } else {
        const float b = bias_of(bias, tile.filter, tiling.element);
#pragma unroll
        for (int k = 0; k < RADIX; k++) {
            write_selected(v[k].re, y, b, tile, p, tiling, 0, column + k * columns);
            write_selected(v[k].im, y, b, tile, p, tiling, 0, column + k * columns + half);
        }
    }
}
