// Sums that several blocks share: each writes a part, and one more kernel adds them up in a fixed order, so that the
// bits are the same in every run.
#pragma once
#include "common.cuh"

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
