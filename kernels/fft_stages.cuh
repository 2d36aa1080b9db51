// The stages of a transform that a block computes in its registers and shared memory.
//
// Points of a tile are (HEIGHT, WIDTH), a transform along h and a weighted one along w. Stages of RADICES transform
// so many points each in a thread's registers, first those along h; between stages, points change threads through
// shared memory. A stage writes where it has read, so that one barrier parts it from the next. Spectra are in the
// order in which the last stage has them: (R, POINTS / R) of a tile, its threads' points side by side.
//
// Macros: HEIGHT, WIDTH, RADICES, THREADS, WEIGHTS (whether the transform along w is weighted), COSINES.
#pragma once
#include "fft_tiles.cuh"

constexpr int POINTS = HEIGHT * WIDTH;

__host__ __device__ constexpr int radix(int stage) {
    constexpr int all[] = {RADICES};
    return all[stage];
}

__host__ __device__ constexpr int span(int stage) { return stage ? span(stage - 1) / radix(stage - 1) : POINTS; }

__host__ __device__ constexpr int stages() {
    int count = 0;
    while (span(count) > 1) count++;
    return count;
}

constexpr int LAST = stages() - 1;
constexpr int PAD = most(16, radix(LAST));  // points after which one is left out, against bank conflicts

template <int I>
struct Stage {
    static constexpr int R = radix(I), SPAN = span(I), APART = SPAN / R;
    static constexpr int INNER = SPAN > WIDTH ? WIDTH : 1;  // points of which all have the same factors
    static constexpr int STEPS = APART / INNER;
    static constexpr bool WEIGHTED = WEIGHTS && SPAN == WIDTH;
    static constexpr int ROWS = STEPS > 1 ? Factors<R, WEIGHTED>::ROWS : 0;

    // The table of its factors, behind those of the stages before it.
    static __host__ __device__ constexpr int table() {
        if constexpr (I == 0)
            return 0;
        else
            return Stage<I - 1>::table() + Stage<I - 1>::ROWS * Stage<I - 1>::STEPS;
    }

    // The first point of a butterfly; the others follow APART from one another.
    static __device__ __forceinline__ small_t first(small_t butterfly) {
        const small_t place = butterfly % APART;
        return (butterfly - place) * R + place;
    }

    // Where a butterfly's point is in shared memory.
    static __device__ __forceinline__ small_t at(small_t butterfly, int k) {
        const small_t i = first(butterfly);
        if constexpr (APART % PAD == 0) return i + i / PAD + k * (APART + APART / PAD);
        if constexpr (PAD % SPAN == 0) return i + i / PAD + k * APART;
        return i + k * APART + (i + k * APART) / PAD;
    }

    template <bool BACK>
    static __device__ __forceinline__ void compute(Complex* v, small_t butterfly, const Complex* tables) {
        const small_t place = butterfly % APART / INNER;
        if constexpr (WEIGHTED && !BACK) weigh<R, false>(v);
        // Factors are loaded again on the way back, not kept.
        if constexpr (STEPS > 1 && BACK) twist<R, WEIGHTED, true>(v, tables + table() + forget(0), STEPS, place);
        transform<R, BACK>(v);
        if constexpr (STEPS > 1 && !BACK) twist<R, WEIGHTED, false>(v, tables + table(), STEPS, place);
        if constexpr (WEIGHTED && BACK) weigh<R, true>(v);
    }
};

constexpr int BUTTERFLIES = POINTS / THREADS / radix(0);  // of a thread in the first stage

// A stage but the first and the last, there or back, on points in shared memory.
template <int I, bool BACK>
__device__ __forceinline__ void middle(Complex* shared, const Complex* tables) {
    using S = Stage<I>;
#pragma unroll 1
    for (int pass = 0; pass < POINTS / S::R / THREADS; pass++) {
        const small_t butterfly = threadIdx.x + pass * THREADS;
        Complex v[S::R];
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = shared[S::at(butterfly, k)];
        S::template compute<BACK>(v, butterfly, tables);
#pragma unroll
        for (int k = 0; k < S::R; k++) shared[S::at(butterfly, k)] = v[k];
    }
    __syncthreads();
}

// Stages from I to the one before the last.
template <int I>
__device__ __forceinline__ void forward(Complex* shared, const Complex* tables) {
    if constexpr (I < LAST) {
        middle<I, false>(shared, tables);
        forward<I + 1>(shared, tables);
    }
}

// Stages from the one before the last back to I.
template <int I>
__device__ __forceinline__ void backward(Complex* shared, const Complex* tables) {
    if constexpr (I < LAST) {
        backward<I + 1>(shared, tables);
        middle<I, true>(shared, tables);
    }
}

// The last stage there; then its results are the spectrum, or they are multiplied by it, added to `sums` of the
// channels before (`adds`), and kept there for those that follow (`keeps`) or taken through the first stage back.
__device__ __forceinline__ void multiply(Complex* shared, Complex* sums, Complex* spectrum, const Complex* tables,
                                         bool prepares, bool adds, bool keeps) {
    using S = Stage<LAST>;
#pragma unroll 1
    for (int pass = 0; pass < POINTS / S::R / THREADS; pass++) {
        const small_t butterfly = threadIdx.x + pass * THREADS;
        Complex* mine = spectrum + butterfly;
        Complex v[S::R];
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = shared[S::at(butterfly, k)];
        S::template compute<false>(v, butterfly, tables);
        if (prepares) {
#pragma unroll
            for (int k = 0; k < S::R; k++) mine[k * (POINTS / S::R)] = v[k];
            continue;
        }
#pragma unroll
        for (int k = 0; k < S::R; k++) v[k] = v[k] * mine[k * (POINTS / S::R)];
        if (adds) {
#pragma unroll
            for (int k = 0; k < S::R; k++) v[k] = v[k] + sums[S::at(butterfly, k)];
        }
        if (!keeps) S::template compute<true>(v, butterfly, tables);
        Complex* to = keeps ? sums : shared;
#pragma unroll
        for (int k = 0; k < S::R; k++) to[S::at(butterfly, k)] = v[k];
    }
    __syncthreads();
}
