// CUDA's execution model on one CPU thread. The threads of a block are fibres: each runs until it waits at a
// barrier or ends. Blocks run one after the other, those of a cluster at once; every second one runs its threads
// backwards, so that a kernel which forgets a barrier gives different answers. Dynamic shared memory starts as NaN
// in every block.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time; kernels that run in clusters have none of it
#define __cluster_dims__(...) [[shim::cluster(__VA_ARGS__)]]  // which device.py reads

struct dim3 {
    unsigned x, y, z;
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

inline float __uint_as_float(unsigned bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}

inline unsigned __float_as_uint(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, 4);
    return bits;
}

namespace shim {

constexpr int WARP = 32, MOST_THREADS = 4096, WORDS = 16, MOST_CLUSTER = 8;
constexpr std::size_t STACK = 128 << 10, MOST_SHARED = 232448;

struct Barrier {
    int arrived = 0, generation = 0;
};

struct Fibre {
    ucontext_t start;
    jmp_buf at;
    char* stack = nullptr;
    bool done = true;
};

static Fibre fibres[MOST_THREADS];  // of all blocks of a cluster, which `current` counts through
static Barrier cluster_barrier, block_barriers[MOST_CLUSTER], warp_barriers[MOST_THREADS / WARP];
static int live, live_of_block[MOST_CLUSTER], live_of_warp[MOST_THREADS / WARP], current, progress;
static int cluster_blocks, block_threads;
static int rank;                   // the number of a block in its cluster, of the thread that runs
static unsigned first_block;       // of the cluster
static jmp_buf scheduler;
static ucontext_t unused;
alignas(128) static unsigned char memories[MOST_CLUSTER][MOST_SHARED];
static unsigned char* dynamic = memories[0];  // that of the block that runs
static std::size_t shared_bytes;  // of it that the launch asked for
static const char* reason;        // why a block cannot end
static std::vector<std::pair<void*, const void*>> copies[MOST_THREADS];  // started, not waited for
static std::uint64_t mailbox[MOST_THREADS][WORDS];  // what lanes hand to one another

static void (*body)();
static void (*at_start)();      // of a cluster, and at the end of a block's last thread: what a header has to
static void (*at_end)(int block);  // look after

inline void leave() {  // until it is this thread's turn again
    if (!_setjmp(fibres[current].at)) _longjmp(scheduler, 1);
}

// A thread that did what no thread may: it never goes on, so that the block cannot end.
[[noreturn]] inline void refuse(const char* why) {
    if (!reason) reason = why;
    for (;;) leave();
}

inline void release(Barrier& barrier, int expected) {
    if (barrier.arrived && barrier.arrived == expected) barrier.arrived = 0, barrier.generation++, progress++;
}

inline void wait(Barrier& barrier, int& expected) {
    const int generation = barrier.generation;
    barrier.arrived++;
    release(barrier, expected);
    while (barrier.generation == generation) leave();
}

inline void enter() {
    for (;;) {  // once per block
        body();
        Fibre& self = fibres[current];
        const int warp = current / WARP;
        if (live_of_block[rank] == 1 && at_end) at_end(rank);
        self.done = true;
        progress++;
        release(cluster_barrier, --live);
        release(block_barriers[rank], --live_of_block[rank]);
        release(warp_barriers[warp], --live_of_warp[warp]);
        leave();
    }
}

inline void resume(int thread) {
    current = thread;
    rank = thread / block_threads;
    blockIdx.x = first_block + rank;
    dynamic = memories[rank];
    threadIdx = {unsigned(thread % block_threads), 0, 0};
    Fibre& fibre = fibres[thread];
    if (_setjmp(scheduler)) return;
    if (fibre.stack) _longjmp(fibre.at, 1);
    fibre.stack = (char*)std::malloc(STACK);
    getcontext(&fibre.start);
    fibre.start.uc_stack.ss_sp = fibre.stack;
    fibre.start.uc_stack.ss_size = STACK;
    fibre.start.uc_link = &unused;
    makecontext(&fibre.start, enter, 0);
    setcontext(&fibre.start);
}

// Null, or why the blocks of a cluster never end.
inline const char* run_cluster(int blocks, bool backwards) {
    const int threads = blocks * block_threads;
    cluster_blocks = blocks;
    reason = nullptr;
    cluster_barrier = {};
    live = threads;
    for (int block = 0; block < blocks; block++) block_barriers[block] = {}, live_of_block[block] = block_threads;
    std::memset(memories, 0xff, blocks * MOST_SHARED);
    if (at_start) at_start();
    for (int warp = 0; warp < MOST_THREADS / WARP; warp++) {
        warp_barriers[warp] = {};
        live_of_warp[warp] = std::max(0, std::min(WARP, threads - warp * WARP));
    }
    for (int i = 0; i < threads; i++) fibres[i].done = false;
    while (live) {
        bool any = false;
        for (int i = 0; i < blocks; i++) {  // each as far ahead as it can go without the others
            const int block = backwards ? blocks - 1 - i : i;
            do {
                progress = 0;
                for (int j = 0; j < block_threads; j++) {
                    const int thread = block * block_threads + (backwards ? block_threads - 1 - j : j);
                    if (!fibres[thread].done) resume(thread);
                }
                any |= progress > 0;
            } while (progress);
        }
        if (!any) {
            for (int i = 0; i < threads; i++) std::free(fibres[i].stack), fibres[i].stack = nullptr;
            return reason ? reason : "the threads wait for one another for ever";
        }
    }
    return nullptr;
}

template <typename... A, std::size_t... I>
const char* launch(void (*kernel)(A...), unsigned cluster, const unsigned* grid, unsigned threads, unsigned shared,
                   void** arguments, std::index_sequence<I...>) {
    static void (*kernel_)(A...);
    static void** arguments_;
    kernel_ = kernel;
    arguments_ = arguments;
    body = [] { kernel_(*static_cast<std::remove_reference_t<A>*>(arguments_[I])...); };
    shared_bytes = shared;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    block_threads = int(threads);
    if (cluster > MOST_CLUSTER || cluster * threads > MOST_THREADS) return "the stand-in has no room for the cluster";
    if (grid[0] % cluster) return "a grid is not made of whole clusters";
    bool backwards = false;
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (first_block = 0; first_block < grid[0]; first_block += cluster) {
                blockIdx = {first_block, y, z};
                if (const char* why = run_cluster(int(cluster), backwards = !backwards)) return why;
            }
    return nullptr;
}

template <typename... A>
const char* launch(void (*kernel)(A...), unsigned cluster, const unsigned* grid, unsigned threads, unsigned shared,
                   void** arguments) {
    return launch(kernel, cluster, grid, threads, shared, arguments, std::index_sequence_for<A...>());
}

template <typename T>
T exchange(T value, int lane) {  // what that lane of the warp gave
    const int warp = current / WARP;
    static_assert(sizeof(T) <= sizeof(mailbox[0]), "fits the mailbox");
    std::memcpy(mailbox[current], &value, sizeof(T));
    wait(warp_barriers[warp], live_of_warp[warp]);
    T found;
    std::memcpy(&found, mailbox[warp * WARP + lane], sizeof(T));
    wait(warp_barriers[warp], live_of_warp[warp]);
    return found;
}

template <typename T>
void gather(const T& value, T (&all)[WARP]) {  // what all lanes of the warp gave
    const int warp = current / WARP;
    static_assert(sizeof(T) <= sizeof(mailbox[0]), "fits the mailbox");
    std::memcpy(mailbox[current], &value, sizeof(T));
    wait(warp_barriers[warp], live_of_warp[warp]);
    for (int lane = 0; lane < WARP; lane++) std::memcpy(&all[lane], mailbox[warp * WARP + lane], sizeof(T));
    wait(warp_barriers[warp], live_of_warp[warp]);
}

}  // namespace shim

inline void __syncthreads() { shim::wait(shim::block_barriers[shim::rank], shim::live_of_block[shim::rank]); }

inline void __syncwarp(unsigned = ~0u) {
    const int warp = shim::current / shim::WARP;
    shim::wait(shim::warp_barriers[warp], shim::live_of_warp[warp]);
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
    return shim::exchange(value, lane & 31);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return shim::exchange(value, (shim::current & 31) ^ mask);
}

template <typename T>
T __shfl_down_sync(unsigned, T value, int by) {
    const int lane = shim::current & 31;
    return shim::exchange(value, lane + by < 32 ? lane + by : lane);
}

template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
    const int lane = shim::current & 31;
    return shim::exchange(value, lane >= by ? lane - by : lane);
}
