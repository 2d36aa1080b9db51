// Split-K: several blocks share a sum. Each writes a part of it, and one more kernel adds the parts up in a fixed
// order, so that the bits are the same in every run.
#pragma once
#include "integers.cuh"

using sum_t = decltype(widen(element_t()));

// Of parts (count, size), the sum of all at an element: `lanes` threads take every so many-th part, then their sums are
// added in their order. Blocks of 256. Whether this thread has the sum of an element in the end, and of which.
template <typename T>
__device__ inline bool added_up(const T* parts, index_t size, small_t count, small_t lanes, index_t& element, T& sum) {
    __shared__ T kept[256];
    const small_t tid = threadIdx.x, each = 256 / lanes;
    element = index_t(blockIdx.x) * each + tid % each;
    sum = 0;
    if (element < size)
#pragma unroll 4
        for (small_t part = tid / each; part < count; part += lanes) sum += parts[part * size + element];
    kept[tid] = sum;
    __syncthreads();
    if (tid >= each || element >= size) return false;
    for (small_t lane = 1; lane < lanes; lane++) sum += kept[tid + lane * each];
    return true;
}

// The body of a kernel `reduce`: y = sum of the parts, in their order, then the epilogue. parts (count, ...) in y's
// layout. Blocks of 256.
__device__ inline void reduce_parts(const sum_t* __restrict__ parts, const bias_t* __restrict__ bias,
                                    output_t* __restrict__ y, const conv_t& p, small_t count) {
    const index_t size = index_t(p.images) * p.y_image;
    const index_t i = index_t(blockIdx.x) * 256 + threadIdx.x;
    if (i >= size) return;
    sum_t sum = 0;
    for (small_t part = 0; part < count; part++) sum += parts[part * size + i];
    store_output(y, i, sum, bias, i / p.y_channel % p.filters, p);
}
