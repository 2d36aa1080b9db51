// What the kernels of depthwise convolutions share.
#pragma once
#include "common.cuh"

using sum_t = decltype(widen(element_t()));

// SPAN inputs of a row from column `first` on, in loads of LOAD; zeros outside of the row. Loads are aligned where
// `first` + LEFT and the length of rows are multiples of LOAD.
template <int LOAD, int LEFT, int SPAN>
__device__ inline void load_span(const element_t* row, small_t first, bool there, small_t size, sum_t (&span)[SPAN]) {
    constexpr int BEFORE = round_up(LEFT, LOAD) - LEFT;  // loaded in front, so that vectors are aligned
    constexpr int LOADED = round_up(BEFORE + SPAN, LOAD);
    const small_t at = forget(first - BEFORE);  // tested anew in every row: known for all, tests fill the registers
    const element_t* from = row + at;
    sum_t all[LOADED];
#pragma unroll
    for (int s = 0; s < LOADED; s += LOAD) {
        widen_pack(load_pack_or_zeros<LOAD>(from + s, there && inside(at + s, size)), all + s);
    }
#pragma unroll
    for (int s = 0; s < SPAN; s++) span[s] = all[BEFORE + s];
}

template <typename T>
__device__ inline T bias_of(const element_t* bias, small_t filter) {
    return bias ? widen(bias[filter]) : T(0);
}

// Writes COUNT neighbouring outputs of a row of `size`, of which `left` are still to come: at once, in pairs or singly.
template <int COUNT>
__device__ inline void store_row(element_t* to, sum_t* sums, sum_t bias, small_t left, small_t size, small_t relu) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) sums[j] = finished(sums[j], bias, relu);
    if (size % COUNT == 0) {
        store_pack<COUNT>(to, narrow_pack<element_t, COUNT>(sums));
    } else if (COUNT % 2 == 0 && size % 2 == 0) {
#pragma unroll
        for (int j = 0; j + 1 < COUNT; j += 2)
            if (j < left) store_pack<2>(to + j, narrow_pack<element_t, 2>(sums + j));
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (j < left) to[j] = narrow<element_t>(sums[j]);
    }
}
