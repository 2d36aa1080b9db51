// Sums that several blocks share: each writes a part in y's layout, and one more kernel adds them up.
#pragma once
#include "common.cuh"

using sum_t = decltype(widen(element_t()));

// y = sum of the parts, in their order, then the output step. parts (count, ...) in y's layout. Blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
reduce(const sum_t* __restrict__ parts, const element_t* __restrict__ bias, element_t* __restrict__ y, const Conv p,
       const small_t count) {
    const index_t size = index_t(p.images) * p.y_image;
    const index_t i = index_t(blockIdx.x) * 256 + threadIdx.x;
    if (i >= size) return;
    sum_t sum = 0;
    for (small_t part = 0; part < count; part++) sum += parts[part * size + i];
    const small_t filter = i / p.y_channel % p.filters;
    const sum_t added = with_residual<element_t>(bias ? widen(bias[filter]) : sum_t(0), p, i);
    y[i] = narrow<element_t>(finished(sum, added, p.relu));
}
