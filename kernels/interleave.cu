// dx of a stride from its phases: inputs whose places leave the same remainders by the stride, computed apart.
//
// Macros: element_t, CHANNELS_LAST.
#include "common.cuh"

struct Params {
    Divisor blocks;                  // of an image
    Divisor channels;
    Divisor columns, rows, depth;    // inputs
    Divisor step_w, step_h, step_d;  // the stride, or the size where that is smaller
};

struct Phase {
    index_t first;    // element of parts, or -1 where no tap reaches the phase
    small_t size[3];  // of its images
    small_t spare;
};

constexpr int THREADS = 256;

// parts: the phases one after the other, each in dx's layout; phases (steps d, h, w); bias (C,) or null, which
// parts hold already, as they do ReLU.
extern "C" __global__ void __launch_bounds__(THREADS)
interleave(const element_t* __restrict__ parts, const element_t* __restrict__ bias, element_t* __restrict__ dx,
           const Phase* __restrict__ phases, const Conv p, const Params params) {
    unsigned image = blockIdx.x;
    const unsigned index = unsigned(take(image, params.blocks)) * THREADS + threadIdx.x;  // within the image
    if (index >= p.x_image) return;
    unsigned rest = index;
    small_t c = CHANNELS_LAST ? take(rest, params.channels) : 0;
    unsigned w = take(rest, params.columns), h = take(rest, params.rows), d = take(rest, params.depth);
    if (!CHANNELS_LAST) c = rest;
    const small_t of_w = take(w, params.step_w), of_h = take(h, params.step_h), of_d = take(d, params.step_d);
    const Phase phase = phases[(of_d * params.step_h.by + of_h) * params.step_w.by + of_w];

    element_t* to = dx + image * p.x_image + index;
    if (phase.first < 0) {
        using sum_t = decltype(widen(element_t()));
        *to = narrow<element_t>(finished(sum_t(0), bias ? widen(bias[c]) : sum_t(0), p.relu));
        return;
    }
    const small_t pixel = (small_t(d) * phase.size[1] + small_t(h)) * phase.size[2] + small_t(w);
    const small_t pixels = phase.size[0] * phase.size[1] * phase.size[2];
    const index_t at = CHANNELS_LAST ? (image * index_t(pixels) + pixel) * p.channels + c
                                     : (image * index_t(p.channels) + c) * pixels + pixel;
    *to = parts[phase.first + at];
}
