// The output step of 8-bit integers by itself, for sums that a library has made: one part of them, or several that are
// added up. Macros: element_t, QUANTIZED.
#include "split_k.cuh"

extern "C" __global__ void __launch_bounds__(256)
reduce(const sum_t* __restrict__ parts, const bias_t* __restrict__ bias, output_t* __restrict__ y, const conv_t p,
       const small_t count) {
    reduce_parts(parts, bias, y, p, count);
}
