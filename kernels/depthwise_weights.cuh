// What the kernels of the gradient of depthwise filters share: sums of a tap over pixels that many threads have seen,
// added up in a fixed order.
//
// dw (K, T, R, S). Blocks that share the pixels of a filter are its parts: each writes its sums into a dw of its own,
// and `add_parts` adds these up.
#pragma once
#include "depthwise.cuh"
#include "split_k.cuh"

constexpr int BATCH = 4;  // sums of a thread that go through shared memory together

struct Tap3 {
    small_t filter, t, r, s;
};

// A sum of a part; nothing for taps beyond the kernel. `parts` is null where there is one part alone.
__device__ inline void put(element_t* dw, sum_t* parts, small_t part, const Tap3& tap, const Conv& p, sum_t sum) {
    if (tap.filter >= p.filters || tap.r >= p.kernel[1] || tap.s >= p.kernel[2]) return;
    const index_t taps = index_t(p.kernel[0]) * p.kernel[1] * p.kernel[2];
    const index_t at = tap.filter * taps + (tap.t * p.kernel[1] + tap.r) * p.kernel[2] + tap.s;
    if (parts)
        parts[part * p.filters * taps + at] = sum;
    else
        dw[at] = narrow<element_t>(sum);
}

// The sums of all groups of a block, in their order: thread `tid` is lane tid % lanes of group tid / lanes. Those of
// the first group call `use` with each of their sums. scratch (BATCH, threads).
template <int COUNT, typename Use>
__device__ inline void add_groups(const sum_t (&sums)[COUNT], sum_t* scratch, small_t lanes, small_t groups, Use use) {
    const small_t tid = threadIdx.x, threads = blockDim.x;
#pragma unroll
    for (int first = 0; first < COUNT; first += BATCH) {
        __syncthreads();
#pragma unroll
        for (int i = first; i < least(first + BATCH, COUNT); i++) scratch[(i - first) * threads + tid] = sums[i];
        __syncthreads();
        if (tid >= lanes) continue;
#pragma unroll
        for (int i = first; i < least(first + BATCH, COUNT); i++) {
            sum_t sum = sums[i];
            for (small_t group = 1; group < groups; group++) sum += scratch[(i - first) * threads + group * lanes + tid];
            use(i, sum);
        }
    }
}

// dw = the sums of parts (count, size), by `lanes` threads each. Blocks of 256.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const sum_t* __restrict__ parts, element_t* __restrict__ dw, const index_t size, const small_t count,
          const small_t lanes) {
    index_t i;
    sum_t sum;
    if (added_up(parts, size, count, lanes, i, sum)) dw[i] = narrow<element_t>(sum);
}
