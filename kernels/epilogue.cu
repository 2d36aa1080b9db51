// The epilogue by itself, for results of kernels that do not have it in them: a residual and an activation.
//
// Macros: element_t, ACTIVATION and its numbers.
#include "common.cuh"

constexpr int COUNT = 16 / sizeof(element_t);  // of a thread

// y = activation(y + residual), with neither where it is null or not `active`. Blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
epilogue(element_t* __restrict__ y, const element_t* __restrict__ residual, const index_t size, const small_t active) {
    using sum_t = decltype(widen(element_t()));
    const index_t first = (index_t(blockIdx.x) * 256 + threadIdx.x) * COUNT;
    if (first + COUNT <= size) {
        sum_t sums[COUNT], added[COUNT] = {};
        widen_pack(load_pack<COUNT>(y + first), sums);
        if (residual) widen_pack(load_pack<COUNT>(residual + first), added);
#pragma unroll
        for (int j = 0; j < COUNT; j++) sums[j] = finished(sums[j], added[j], active);
        store_pack<COUNT>(y + first, narrow_pack<element_t, COUNT>(sums));
        return;
    }
    for (index_t i = first; i < size; i++)
        y[i] = narrow<element_t>(finished(widen(y[i]), residual ? widen(residual[i]) : sum_t(0), active));
}
