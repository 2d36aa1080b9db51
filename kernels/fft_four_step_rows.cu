// The rows of transforms that are longer than a block holds (fft_four_step.cu): points that lie in memory are
// transformed, multiplied by the filter's spectrum and transformed back.
//
// Macros: those of fft_stages.cuh with WEIGHTS 0, RESIDENT (blocks of a multiprocessor).
#include "fft_stages.cuh"

// points (tiles, rows, POINTS), a row to a block, times spectra (filters, rows, POINTS) and back in place; or spectra
// from the filters' points. Tiles are numbered from `first` on, `tiles` of each filter.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
rows(Complex* __restrict__ points, Complex* __restrict__ spectra, const Complex* __restrict__ tables, small_t rows,
     small_t tiles, small_t first, small_t prepares) {
    using S = Stage<0>;
    Complex* shared = static_cast<Complex*>(dynamic_shared());
    const small_t row = gridDim.x - 1 - blockIdx.x;  // what was written last is read first, while L2 has it
    const small_t tile = row / rows, filter = (first + tile) / tiles;
    Complex* mine = points + index_t(row) * POINTS;
    Complex* spectrum = spectra + (index_t(filter) * rows + row - tile * rows) * POINTS;
#pragma unroll
    for (int pass = 0; pass < BUTTERFLIES; pass++) {
        const small_t butterfly = threadIdx.x + pass * THREADS;
        Complex v[S::R];
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = mine[butterfly + k * S::APART];
        S::template compute<false>(v, butterfly, tables);
#pragma unroll
        for (int k = 0; k < S::R; k++) shared[S::at(butterfly, k)] = v[k];
    }
    __syncthreads();
    forward<1>(shared, tables);
    multiply(shared, nullptr, spectrum, tables, prepares, false, false);
    if (prepares) return;
    backward<1>(shared, tables);
#pragma unroll
    for (int pass = 0; pass < BUTTERFLIES; pass++) {
        const small_t butterfly = threadIdx.x + pass * THREADS;
        Complex v[S::R];
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = shared[S::at(butterfly, k)];
        S::template compute<true>(v, butterfly, tables);
#pragma unroll
        for (int k = 0; k < S::R; k++) mine[butterfly + k * S::APART] = v[k];
    }
}
