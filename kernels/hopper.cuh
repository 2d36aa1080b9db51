// Instructions that only GPUs of compute capability 9.x have (sm_90a), one function each: barriers that count
// bytes, bulk copies to and from shared memory, clusters of blocks, and products of a warpgroup over matrices in
// shared memory. Sources name none of these themselves, so that a stand-in for this file is all that another
// machine needs to run them.
//
// Source: NVIDIA's PTX ISA, sections mbarrier, cp.async.bulk, cp.async.bulk.tensor, createpolicy, mapa,
// barrier.cluster, stmatrix, wgmma and setmaxnreg.
#pragma once
#include "cluster.cuh"
#include "eight_bits.cuh"

__device__ inline unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// --- barriers -------------------------------------------------------------------------------------

// Completes a phase when all threads that it was made for have arrived and all bytes expected have.
struct Barrier {
    unsigned long long state;
};

// By one thread, which then says `barriers_are_made`, before the block's __syncthreads.
__device__ inline void make_barrier(Barrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ inline void barriers_are_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and holds the phase open until that many bytes more were copied.
__device__ inline void arrive_expecting(Barrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Until the phase of this parity (0 for the first) is complete; the one before the first counts as complete.
__device__ inline void wait_for(Barrier* barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred complete;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!done);
}

// Two teams that take turns, one barrier each: a team waits at its own, and arrives at the other's.
__device__ inline void wait_for_turn(Barrier* own, unsigned parity) { wait_for(own, parity); }
__device__ inline void give_turn(Barrier* others) { arrive(others); }

// --- clusters -------------------------------------------------------------------------------------

// Arrives at the barrier that lies in the same place of a block of the cluster, be it this one. For threads that hand
// over what products have read, in the instruction's usual order: they wrote nothing that the other block is to see,
// and to order all of their memory for a cluster would take a MEMBAR.GPU each time.
__device__ inline void arrive_in_cluster(Barrier* barrier, unsigned rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// --- copies ---------------------------------------------------------------------------------------

// What tensor_maps.py encodes: an input in channels-last order, and the pixels and channels of a copy.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// The first pixel of a copy: its channel, its place under the kernel's first tap, its image.
struct Corner {
    int channel, w, h, d, image;
};

// A tap's place in the dilated kernel.
struct TapPlace {
    int w, h, d;  // that the instruction takes in 16 bits
};

// Starts copying whole multiples of 16 bytes; they arrive at the barrier.
__device__ inline void copy_bytes(void* to, const void* from, unsigned bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// What L2 holds on to for longer than the rest: a filter, which all blocks read again and again.
__device__ inline unsigned long long kept_in_l2() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// As `copy_bytes`, to the same place in each block of the cluster that `blocks` has a bit for; the bytes arrive at
// the barrier in the same place of each of them.
__device__ inline void copy_bytes_to_cluster(void* to, const void* from, unsigned bytes, Barrier* barrier,
                                             unsigned short blocks, unsigned long long policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4, %5;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
        : "memory");
}

// Starts copying the map's pixels from a corner on, each moved by the tap, with zeros outside of the input, in
// rows of 128 bytes whose 16-byte pieces are swizzled; `to` is aligned to 1024 bytes. By spatial dimensions.
__device__ inline void copy_pixels_1d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2], {%6};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at.channel), "r"(at.w), "r"(at.image), "h"(static_cast<short>(tap.w))
        : "memory");
}

__device__ inline void copy_pixels_2d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at.channel), "r"(at.w), "r"(at.h), "r"(at.image), "h"(static_cast<short>(tap.w)),
        "h"(static_cast<short>(tap.h))
        : "memory");
}

__device__ inline void copy_pixels_3d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at.channel), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.image),
        "h"(static_cast<short>(tap.w)), "h"(static_cast<short>(tap.h)), "h"(static_cast<short>(tap.d))
        : "memory");
}

// What this thread wrote to shared memory, copies that start later can read.
__device__ inline void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts copying whole multiples of 16 bytes out of shared memory, in a group of this thread's that
// `close_stores` closes. Memory may be written again once `wait_for_stores` has waited for the group.
__device__ inline void store_bytes(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

__device__ inline void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Two neighbours that copies will read, at a multiple of 8 bytes of shared memory.
__device__ inline void write_pair(void* to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared_address(to)), "f"(first), "f"(second) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements, written to shared memory: lane l tells where row l % 8 of matrix l / 8
// starts, at a multiple of 16 bytes, and gives of matrix i row l / 4, columns l % 4 * 2 and the next, in words[i].
__device__ inline void store_matrices(void* row, const unsigned (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

// The greater of the two; NaN stays NaN.
__device__ inline float at_least(float v, float least) {
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(v), "f"(least));
    return greater;
}

// --- registers ------------------------------------------------------------------------------------

// By all warps of a warpgroup: gives registers back down to COUNT a thread, or takes such up to COUNT.
template <int COUNT>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- products of a warpgroup ----------------------------------------------------------------------

// Before the first product, and whenever ordinary code has touched the sums since the last one.
__device__ inline void order_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of the products started since the group before.
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ inline void unread_before(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ inline void unread_before(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }

// Until at most LEFT groups are under way. Sums may be read when none is.
template <int LEFT, int SLICES, int COUNT, typename T>
__device__ inline void wait_for_products(T (&sums)[SLICES][COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    if (LEFT == 0) {  // the compiler reads none before
#pragma unroll
        for (int i = 0; i < SLICES * COUNT; i++) unread_before(sums[i / COUNT][i % COUNT]);
    }
}

using u8_t = unsigned char;

struct e4m3_t {
    unsigned char bits;
};

struct e5m2_t {
    unsigned char bits;
};

// The types of a and b in a product.
template <typename A, typename B>
struct Factors {};

// start_product(sums, a, b, adds, factors): sums (64, N) = a (64, k) * b (N, k), plus the sums themselves if `adds`;
// k is 32 bytes of elements, N twice the number of a thread's sums. a and b describe rows of k in shared memory. Of
// lane l of warp w, sums[4 j + 2 i + e] is row 16 w + l / 4 + 8 i and column 8 j + l % 4 * 2 + e. Integers are summed
// in int32, where they wrap, all else in float32; sums of 8-bit floats keep 13 explicit bits of the significand.
#define TEN(D) "%" #D "0, %" #D "1, %" #D "2, %" #D "3, %" #D "4, %" #D "5, %" #D "6, %" #D "7, %" #D "8, %" #D "9, "
#define ONES "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define NAMES_32 ONES TEN(1) TEN(2) "%30, %31"
#define NAMES_64 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_96 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_128                                                                                        \
    ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) "%120, %121, "    \
    "%122, %123, %124, %125, %126, %127"
#define SUMS_8(R, I)                                                                                     \
    R(sums[I]), R(sums[I + 1]), R(sums[I + 2]), R(sums[I + 3]), R(sums[I + 4]), R(sums[I + 5]),           \
        R(sums[I + 6]), R(sums[I + 7])
#define SUMS_32(R, I) SUMS_8(R, I), SUMS_8(R, I + 8), SUMS_8(R, I + 16), SUMS_8(R, I + 24)
#define SUMS_64(R, I) SUMS_32(R, I), SUMS_32(R, I + 32)
#define SUMS_96(R, I) SUMS_64(R, I), SUMS_32(R, I + 64)
#define SUMS_128(R, I) SUMS_64(R, I), SUMS_64(R, I + 64)
#define PRODUCT(SUM, R, A_T, B_T, COUNT, N, A, B, ADDS, SHAPE, SIGNS)                                           \
    __device__ inline void start_product(SUM (&sums)[COUNT], unsigned long long a, unsigned long long b,     \
                                         bool adds, Factors<A_T, B_T>) {                                     \
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n" N SHAPE " {" NAMES_##COUNT "}, " A ", " B           \
                     ", adds" SIGNS ";\n}"                                                                   \
                     : SUMS_##COUNT(R, 0)                                                                    \
                     : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                         \
    }
#define PRODUCTS(SUM, R, A_T, B_T, SHAPE, SIGNS)                                \
    PRODUCT(SUM, R, A_T, B_T, 32, "64", "%32", "%33", "%34", SHAPE, SIGNS)         \
    PRODUCT(SUM, R, A_T, B_T, 64, "128", "%64", "%65", "%66", SHAPE, SIGNS)        \
    PRODUCT(SUM, R, A_T, B_T, 96, "192", "%96", "%97", "%98", SHAPE, SIGNS)        \
    PRODUCT(SUM, R, A_T, B_T, 128, "256", "%128", "%129", "%130", SHAPE, SIGNS)

// Those of 16 bits alone could be read the other way round, turned: the last two operands. Of 8 bits rows are of k.
PRODUCTS(float, "+f", float16_t, float16_t, "k16.f32.f16.f16", ", 1, 1, 0, 0")
PRODUCTS(float, "+f", bfloat16_t, bfloat16_t, "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
PRODUCTS(float, "+f", float, float, "k8.f32.tf32.tf32", ", 1, 1")
PRODUCTS(float, "+f", e4m3_t, e4m3_t, "k32.f32.e4m3.e4m3", ", 1, 1")
PRODUCTS(float, "+f", e4m3_t, e5m2_t, "k32.f32.e4m3.e5m2", ", 1, 1")
PRODUCTS(float, "+f", e5m2_t, e4m3_t, "k32.f32.e5m2.e4m3", ", 1, 1")
PRODUCTS(float, "+f", e5m2_t, e5m2_t, "k32.f32.e5m2.e5m2", ", 1, 1")
PRODUCTS(int, "+r", s8_t, s8_t, "k32.s32.s8.s8", "")
PRODUCTS(int, "+r", s8_t, u8_t, "k32.s32.s8.u8", "")
PRODUCTS(int, "+r", u8_t, s8_t, "k32.s32.u8.s8", "")
PRODUCTS(int, "+r", u8_t, u8_t, "k32.s32.u8.u8", "")
#undef PRODUCTS
#undef PRODUCT
#undef SUMS_128
#undef SUMS_96
#undef SUMS_64
#undef SUMS_32
#undef SUMS_8
#undef NAMES_128
#undef NAMES_96
#undef NAMES_64
#undef NAMES_32
#undef ONES
#undef TEN
