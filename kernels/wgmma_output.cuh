// How implicit_gemm_wgmma.cu writes sums: by the threads that hold them, or rounded into shared memory, from where
// copies take them while the next tile is summed.
#pragma once
#include "hopper.cuh"

struct Output {
    small_t row, column;           // of the warp's part of the tile; pixels over all images, filters of the group
    small_t rows_end, columns_end;
    small_t line;                  // columns that follow one another in y: filters, or the pixels of an image
    small_t group_filters;         // that lie before the group
    bool channels_last;
};

// RUN neighbours, rounded to T and stored at once.
template <int RUN, typename T>
__device__ inline void store_run(T* to, const float (&v)[RUN]) {
    if constexpr (sizeof(T) == 2 && RUN > 1) {
        Pack<unsigned, RUN / 2> words;
#pragma unroll
        for (int i = 0; i < RUN / 2; i++) words.v[i] = narrow_pair(v[2 * i], v[2 * i + 1], T());
        store_pack<RUN / 2>(reinterpret_cast<unsigned*>(to), words);
    } else {
        Pack<T, RUN> pack;
#pragma unroll
        for (int i = 0; i < RUN; i++) pack.v[i] = narrow<T>(v[i]);
        store_pack<RUN>(to, pack);
    }
}

// Brings BLOCK columns of a warp's sums into rows of shared memory, plus what is added to them by rows.
template <typename T>
__device__ inline void stage_block(const T (&sums)[SUMS], T* staged, int block, const T (&of_rows)[2]) {
    const small_t lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) {  // rows 8 apart, then columns 8 apart
        const small_t at = block * BLOCK / 2 + i * 2;
        const Pack<T, 2> pair = {sums[at] + of_rows[i % 2], sums[at + 1] + of_rows[i % 2]};
        store_pack<2>(staged + (lane / 4 + i % 2 * 8) * PITCH + lane % 4 * 2 + i / 2 * 8, pair);
    }
    __syncwarp();
}

// Writes a warp's sums to y or to a part of the sum, RUN neighbouring columns at a time.
template <int RUN, typename T>
__device__ inline void write_sums(const float (&sums)[SUMS], float* staged, const Output& out, T* to,
                                  const element_t* bias, const Conv& p, small_t relu) {
    constexpr int RUNS = BLOCK / RUN, ROWS_AT_ONCE = 32 / RUNS, PASSES = 16 / ROWS_AT_ONCE;
    const small_t lane = threadIdx.x % 32, line = out.line;
    const small_t run_column = lane % RUNS * RUN, run_row = lane / RUNS;
    const index_t row_step = out.channels_last ? p.filters : line;
    small_t column = out.column + run_column, in_line = column % line;
    T* first = to + out.group_filters * (out.channels_last ? 1 : row_step) + column / line * p.y_image;

    // Bias of rows is added on the way to the stage, that of columns after it: loaded a block ahead.
    float of_rows[2] = {};
    if (bias && !out.channels_last) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const small_t row = out.row + lane / 4 + i * 8;
            if (row < out.rows_end) of_rows[i] = widen(bias[out.group_filters + row]);
        }
    }
    auto bias_of_columns = [&](small_t at) {
        Pack<element_t, RUN> found = {};
        if (bias && out.channels_last && at < out.columns_end) found = load_pack<RUN>(bias + out.group_filters + at);
        return found;
    };
    Pack<element_t, RUN> ahead = bias_of_columns(column);
#pragma unroll
    for (int block = 0; block < WIDTH / BLOCK; block++) {
        const Pack<element_t, RUN> of_columns = ahead;
        ahead = bias_of_columns(column + BLOCK);
        stage_block(sums, staged, block, of_rows);
        if (column < out.columns_end) {
#pragma unroll(RUN * sizeof(T) < 8 ? 1 : PASSES)
            for (int i = 0; i < PASSES; i++) {
                const small_t row = run_row + i * ROWS_AT_ONCE;
                if (out.row + row >= out.rows_end) break;
                const Pack<float, RUN> from = load_pack<RUN>(staged + row * PITCH + run_column);
                float values[RUN];
#pragma unroll
                for (int e = 0; e < RUN; e++) values[e] = finished(from.v[e], widen(of_columns.v[e]), relu);
                store_run<RUN>(first + in_line + (out.row + row) * row_step, values);
            }
        }
        column += BLOCK;
        in_line += BLOCK;
        if (in_line >= line) first += in_line / line * p.y_image, in_line %= line;
    }
}

// The same in the longest runs that lines are made of.
template <int RUN, typename T>
__device__ inline void write_lines(const float (&sums)[SUMS], float* staged, const Output& out, T* to,
                                   const element_t* bias, const Conv& p, small_t relu) {
    if constexpr (RUN == 1) {
        write_sums<1>(sums, staged, out, to, bias, p, relu);
    } else {
        if (out.line % RUN == 0)
            write_sums<RUN>(sums, staged, out, to, bias, p, relu);
        else
            write_lines<RUN / 2>(sums, staged, out, to, bias, p, relu);
    }
}

#if BULK
constexpr int BULK_COLUMNS = 256 / sizeof(element_t);            // that a warp rounds before copies take them,
constexpr int BULK_PITCH = BULK_COLUMNS * sizeof(element_t) + 16;  // in rows of so many bytes, off the banks of others

// Rounds a warp's sums and starts copies to y, where lines are made of whole 16 bytes.
template <typename T>
__device__ inline void store_sums(const float (&sums)[SUMS], unsigned char* staged, const Output& out, T* y,
                                  const T* bias, const Conv& p) {
    constexpr int PIECES = most(WIDTH / BULK_COLUMNS, 1), AT_ONCE = WIDTH / PIECES;
    const small_t lane = threadIdx.x % 32, row = out.row + lane, line = out.line;
    const index_t row_step = out.channels_last ? p.filters : line;
    T* const first = y + out.group_filters * (out.channels_last ? 1 : row_step);
    const bool biased_columns = bias && out.channels_last;
    const float floor = p.relu ? 0.f : -__uint_as_float(0x7f800000u);
    float of_rows[2] = {};
    if (bias && !out.channels_last) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const small_t at = out.row + lane / 4 + i * 8;
            if (at < out.rows_end) of_rows[i] = widen(bias[out.group_filters + at]);
        }
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const small_t column = out.column + piece * AT_ONCE;
        wait_for_stores();
        __syncwarp();
#pragma unroll
        for (int c = 0; c < AT_ONCE / 8; c += 2) {  // two of eight columns each
            float v[8];                             // rows 8 apart of the first, then of the second
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const small_t at = column + (c + i) * 8 + lane % 4 * 2, sum = piece * AT_ONCE / 2 + (c + i) * 4;
                float of_columns[2];
                widen_pack(load_pack_or_zeros<2>(bias + out.group_filters + at, biased_columns && at < out.columns_end),
                           of_columns);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[i * 4 + e] = at_least(sums[sum + e] + of_rows[e / 2] + of_columns[e % 2], floor);
            }
            if constexpr (sizeof(T) == 2) {
                unsigned words[4];
#pragma unroll
                for (int i = 0; i < 4; i++) words[i] = narrow_pair(v[2 * i], v[2 * i + 1], T());
                store_matrices(staged + lane % 16 * BULK_PITCH + (c + lane / 16) * 16, words);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    write_pair(staged + (lane / 4 + i % 2 * 8) * BULK_PITCH + ((c + i / 2) * 8 + lane % 4 * 2) * 4,
                               v[2 * i], v[2 * i + 1]);
            }
        }
        show_to_copies();
        __syncwarp();
        if (lane < 16 && row < out.rows_end) {
            const small_t end = least(column + AT_ONCE, out.columns_end);
            for (small_t at = column; at < end;) {  // a run of each image
                const small_t image = out.channels_last ? 0 : at / line, in_line = at - image * line;
                const small_t run = least(end - at, line - in_line);
                store_bytes(first + image * p.y_image + in_line + row * row_step,
                            staged + lane * BULK_PITCH + (at - column) * sizeof(T), run * sizeof(T));
                at += run;
            }
        }
        close_stores();
    }
}
#endif

#ifdef QUANTIZED
// Writes a warp's sums of integers to a part of the sum, or what the output step makes of them to y, RUN neighbouring
// columns at a time.
template <int RUN>
__device__ inline void write_integers(const int (&sums)[SUMS], int* staged, const Output& out, int* part, void* y,
                                      const int* bias, const conv_t& p) {
    constexpr int RUNS = BLOCK / RUN, ROWS_AT_ONCE = 32 / RUNS, PASSES = 16 / ROWS_AT_ONCE;
    const small_t lane = threadIdx.x % 32, line = out.line;
    const small_t run_column = lane % RUNS * RUN, run_row = lane / RUNS;
    const index_t row_step = out.channels_last ? p.filters : line;
    small_t column = out.column + run_column, in_line = column % line;
    index_t first = out.group_filters * (out.channels_last ? 1 : row_step) + column / line * p.y_image;
    const int nothing[2] = {};
#pragma unroll
    for (int block = 0; block < WIDTH / BLOCK; block++) {
        stage_block(sums, staged, block, nothing);
        if (column < out.columns_end) {
            unsigned shift[RUN];  // of the filters, which are the columns or, all one, the row
            float multiplier[RUN];
            auto load_filters = [&](small_t filter, int step) {
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    shift[e] = shift_of(bias, filter + e * step, p);
                    multiplier[e] = p.multiplier[filter + e * step];
                }
            };
            if (out.channels_last && !part) load_filters(out.group_filters + column, 1);
#pragma unroll 1
            for (int i = 0; i < PASSES; i++) {
                const small_t row = out.row + run_row + i * ROWS_AT_ONCE;
                if (row >= out.rows_end) break;
                Pack<int, RUN> whole = load_pack<RUN>(staged + (row - out.row) * PITCH + run_column);
                const index_t at = first + in_line + row * row_step;
                if (part) {
                    store_pack<RUN>(part + at, whole);
                    continue;
                }
                if (!out.channels_last) load_filters(out.group_filters + row, 0);
#pragma unroll
                for (int e = 0; e < RUN; e++) whole.v[e] = output_bits(whole.v[e], shift[e], multiplier[e], p);
                store_bits<RUN>(y, at, whole, p);
            }
        }
        column += BLOCK;
        in_line += BLOCK;
        if (in_line >= line) first += in_line / line * p.y_image, in_line %= line;
    }
}
#endif
