// Convolution through spectra without a trip to memory: a block transforms a tile of a plane in its registers and
// shared memory, multiplies by the filter's spectrum, transforms back and writes the outputs.
//
// Macros: those of fft_stages.cuh with WEIGHTS 1, RESIDENT (blocks of a multiprocessor).
#include "fft_stages.cuh"

// y from x, a tile to a block; or spectra (filters, channels, POINTS) from the filters' planes. Channels first. Of
// several channels the products are summed in shared memory behind the points.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tiles(const void* __restrict__ x, Complex* __restrict__ spectra, const void* __restrict__ bias, void* __restrict__ y,
      const Complex* __restrict__ tables, const Conv p, const Tiling tiling, small_t prepares) {
    using S = Stage<0>;
    Complex* shared = static_cast<Complex*>(dynamic_shared());
    Complex* sums = shared + POINTS + POINTS / PAD;
    Tile tile = tile_of(blockIdx.x, p, tiling);
    const auto row = [](small_t butterfly) {
        return [=](int k) { return HEIGHT > 1 ? butterfly / WIDTH + k * (S::APART / WIDTH) : 0; };
    };
    const auto column = [](small_t butterfly) {
        return [=](int k) { return HEIGHT > 1 ? butterfly % WIDTH : butterfly + k * S::APART; };
    };
    Complex* spectrum = spectra + index_t(tile.filter) * tiling.channels * POINTS;
#pragma unroll 1
    for (small_t c = 0; c < tiling.channels; c++) {
        tile.x_at[0] = forget(tile.x_at[0]), tile.x_at[1] = forget(tile.x_at[1]);  // not where all its places are
#pragma unroll
        for (int pass = 0; pass < BUTTERFLIES; pass++) {
            const small_t butterfly = threadIdx.x + pass * THREADS;
            Complex v[S::R];
            read_places<S::R>(v, x, tile, p, tiling, WIDTH, row(butterfly), column(butterfly));
            S::template compute<false>(v, butterfly, tables);
#pragma unroll
            for (int k = 0; k < S::R; k++) shared[S::at(butterfly, k)] = v[k];
        }
        __syncthreads();
        forward<1>(shared, tables);
        multiply(shared, sums, spectrum, tables, prepares, c > 0, c + 1 < tiling.channels);
        tile.x += p.x_channel;
        spectrum += POINTS;
    }
    if (prepares) return;
    backward<1>(shared, tables);
#pragma unroll
    for (int pass = 0; pass < BUTTERFLIES; pass++) {
        const small_t butterfly = threadIdx.x + pass * THREADS;
        Complex v[S::R];
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = shared[S::at(butterfly, k)];
        S::template compute<true>(v, butterfly, tables);
        if (!strided(p)) {
            write_places<S::R>(v, y, bias, tile, p, tiling, WIDTH, row(butterfly), column(butterfly));
        } else {
#pragma unroll
            for (int k = 0; k < S::R; k++) shared[S::at(butterfly, k)] = v[k];
        }
    }
    if (!strided(p)) return;
    __syncthreads();
    const float b = bias_of(bias, tile.filter, tiling.element);
#pragma unroll 1
    for (small_t i = threadIdx.x; i < POINTS; i += THREADS) {
        const Complex v = shared[i + i / PAD];
        write_selected(v.re, y, b, tile, p, tiling, i / WIDTH, i % WIDTH);
        write_selected(v.im, y, b, tile, p, tiling, i / WIDTH, i % WIDTH + WIDTH);
    }
}
