// Stands in for kernels/hopper.cuh on the CPU: the same names, with the semantics that PTX documents and no more.
//
// Whatever the device leaves undefined is made to hurt: bytes of a copy are NaN from its start until its barrier
// was waited for, sums are NaN from a product's start until its group was waited for, and products read shared
// memory as late as that. Copies out of shared memory see what `show_to_copies` showed them, and NaN where that
// changes before they were waited for. What a kernel must not do at all stops it with a reason (`shim::refuse`).
#pragma once
#include "cluster.cuh"
#include "eight_bits.cuh"
#include <deque>
#include <map>

#define __grid_constant__

using u8_t = unsigned char;

struct e4m3_t {
    unsigned char bits;
};

struct e5m2_t {
    unsigned char bits;
};

template <typename A, typename B>
struct Factors {};

struct Barrier {
    unsigned long long state;
};

// The record that device.py makes; sizes and places innermost first: channels, w, h, d, image.
struct alignas(64) TensorMap {
    std::uint64_t address;
    std::uint64_t strides[4];  // bytes, from w on
    std::uint32_t sizes[5];
    std::uint32_t magic;
    std::int16_t lower[3], upper[3];
    std::uint16_t channels, pixels;  // of a copy
    std::uint8_t steps[3], rank, item_bytes, rounds_tf32, spare[42];
};
static_assert(sizeof(TensorMap) == 128, "as the device's");

struct Corner {
    int channel, w, h, d, image;
};

struct TapPlace {
    int w, h, d;
};

namespace shim {

constexpr unsigned SHARED_START = 384;  // address of dynamic shared memory: 128 bytes are all that is promised
constexpr unsigned MAP_MAGIC = 0x696d3263;
constexpr int WARPGROUP = 128;

inline unsigned address_of(const void* at) {
    const std::ptrdiff_t offset = static_cast<const unsigned char*>(at) - dynamic;
    if (offset < 0 || offset >= std::ptrdiff_t(shared_bytes)) refuse("an address is not in the block's shared memory");
    return SHARED_START + unsigned(offset);
}

inline unsigned char* at_address(unsigned address, unsigned bytes) {
    if (address < SHARED_START || address - SHARED_START + bytes > shared_bytes)
        refuse("an address is not in the block's shared memory");
    return dynamic + (address - SHARED_START);
}

// Pieces of 16 bytes change places within 128 bytes, by the number of the 128 bytes within 1024.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }

// --- barriers and copies --------------------------------------------------------------------------

struct BulkCopy {
    unsigned to, bytes;
    const unsigned char* from;  // or, where null, pixels of a map:
    TensorMap map;
    int at[5];
    int tap[3];
};

struct Arrivals {
    int expected = 0, pending = 0;
    long bytes = 0;
    unsigned phase = 0;
    bool visible = false;  // to the copy engine
    std::vector<BulkCopy> copies;
};

static std::map<unsigned, Arrivals> barriers[MOST_CLUSTER];  // of each block
static std::uint64_t shared_version = 0;  // changes with what copies write
static bool takes_turns[MOST_CLUSTER], has_turn[MOST_THREADS / WARP];  // blocks; warps

inline std::uint64_t mark_of(unsigned address) { return 0x6d62617272696572ull ^ address; }

// A barrier of this block, or the one in the same place of another block of the cluster.
inline Arrivals& arrivals_of(::Barrier* barrier, int block) {
    const unsigned address = address_of(barrier);
    if (block >= cluster_blocks) refuse("there is no such block in the cluster");
    if (!live_of_block[block]) refuse("the memory of a block is used that has ended");
    std::uint64_t state;
    std::memcpy(&state, memories[block] + (address - SHARED_START), sizeof state);
    if (state != mark_of(address)) refuse("a barrier was never made, or was written over");
    return barriers[block][address];
}

inline Arrivals& arrivals_of(::Barrier* barrier) { return arrivals_of(barrier, rank); }

inline void settle(Arrivals& all) {
    progress++;
    if (all.pending < 0) refuse("more threads arrive at a barrier than it was made for");
    if (all.bytes < 0 && all.pending == 0) refuse("more bytes arrive at a barrier than it expects");
    if (all.pending == 0 && all.bytes == 0) all.phase++, all.pending = all.expected;
}

inline float round_to_tf32(float v) {
    const unsigned bits = __float_as_uint(v);
    if ((bits & 0x7f800000u) == 0x7f800000u) return v;
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u);
}

inline void copy_pixels_now(const BulkCopy& copy) {
    const TensorMap& map = copy.map;
    const int space = map.rank - 2, row_bytes = map.channels * map.item_bytes;
    int at[4] = {0, 0, 0, 0};  // w, h, d, image, before the tap moves them
    for (int i = 0; i < space; i++) at[i] = copy.at[1 + i];
    at[3] = copy.at[4];
    for (unsigned pixel = 0; pixel < map.pixels; pixel++) {
        bool in = at[3] >= 0 && unsigned(at[3]) < map.sizes[map.rank - 1];
        std::uint64_t from = map.address + at[3] * map.strides[map.rank - 2];
        for (int i = 0; i < space; i++) {
            const int place = at[i] + copy.tap[i];
            in = in && place >= 0 && unsigned(place) < map.sizes[1 + i];
            from += place * map.strides[i];
        }
        for (int c = 0; c < map.channels; c++) {
            unsigned char item[4] = {};
            const unsigned channel = copy.at[0] + c;
            if (in && channel < map.sizes[0])
                std::memcpy(item, reinterpret_cast<unsigned char*>(from) + channel * map.item_bytes, map.item_bytes);
            if (map.rounds_tf32) {
                float v;
                std::memcpy(&v, item, 4), v = round_to_tf32(v), std::memcpy(item, &v, 4);
            }
            const unsigned to = swizzled(copy.to + pixel * row_bytes + c * map.item_bytes);
            std::memcpy(at_address(to, map.item_bytes), item, map.item_bytes);
        }
        at[0] += map.steps[0];  // to the next pixel of the box, w fastest
        for (int i = 0; i < space && at[i] > int(map.sizes[1 + i]) - 1 + map.upper[i]; i++) {
            at[i] = map.lower[i];
            if (i + 1 < space)
                at[i + 1] += map.steps[i + 1];
            else
                at[3]++;
        }
    }
}

inline void deliver(Arrivals& all) {
    for (const BulkCopy& copy : all.copies) {
        if (copy.from)
            std::memcpy(at_address(copy.to, copy.bytes), copy.from, copy.bytes);
        else
            copy_pixels_now(copy);
        shared_version++;
        all.bytes -= copy.bytes;
    }
    if (!all.copies.empty()) all.copies.clear(), settle(all);
}

inline void start_copy(const BulkCopy& copy, ::Barrier* barrier, int block) {
    Arrivals& all = arrivals_of(barrier, block);
    if (!all.visible) refuse("a copy uses a barrier that was not made visible to the copy engine");
    at_address(copy.to, copy.bytes);  // is there
    std::memset(memories[block] + (copy.to - SHARED_START), 0xff, copy.bytes);
    shared_version++;
    progress++;
    all.copies.push_back(copy);
}

inline void copy_pixels(int space, void* to, const TensorMap* map, Corner at, TapPlace tap, ::Barrier* barrier) {
    constexpr int MOST_TAP[] = {65535, 255, 31};
    const unsigned to_address = address_of(to);
    if (map->magic != MAP_MAGIC) refuse("a copy of pixels is given no tensor map");
    if (map->rank != space + 2) refuse("a copy and its tensor map differ in their dimensions");
    if (to_address % 1024) refuse("a swizzled copy starts off 1024 bytes");
    BulkCopy copy = {to_address, unsigned(map->pixels) * map->channels * map->item_bytes, nullptr, *map,
                     {at.channel, at.w, at.h, at.d, at.image}, {tap.w, tap.h, tap.d}};
    for (int i = 0; i < space; i++) {
        const int last = int(map->sizes[1 + i]) - 1 + map->upper[i];
        if (copy.at[1 + i] < map->lower[i] || copy.at[1 + i] > last) refuse("a copy starts outside of its map's box");
        if (copy.tap[i] < 0 || copy.tap[i] > MOST_TAP[space - 1])
            refuse("a tap lies where the copy engine does not reach");
    }
    start_copy(copy, barrier, rank);
}

inline void check_pieces(unsigned shared, const void* global, unsigned bytes) {
    if (shared % 16 || std::uintptr_t(global) % 16 || bytes % 16 || !bytes)
        refuse("a bulk copy is not made of whole 16 bytes");
}

// --- copies out of shared memory ------------------------------------------------------------------

struct Written {  // with ordinary instructions
    unsigned address, bytes;
};

struct Store {
    unsigned char* to;
    unsigned from;
    std::vector<unsigned char> first;  // what was seen at its start
};

struct Stores {  // of a thread
    std::vector<Written> hidden;
    std::vector<Store> open, closed;
};

static Stores stores[MOST_THREADS];
static unsigned char shown[MOST_CLUSTER][MOST_SHARED];  // shared memory as copies see it

inline void write_shared(void* to, const void* from, unsigned bytes) {
    std::memcpy(to, from, bytes);
    stores[current].hidden.push_back({address_of(to), bytes});
}

inline void finish(const Store& store) {
    const unsigned char* now = shown[rank] + (store.from - SHARED_START);
    for (std::size_t i = 0; i < store.first.size(); i++) store.to[i] = store.first[i] == now[i] ? now[i] : 0xff;
}

// --- the life of blocks ---------------------------------------------------------------------------

inline void look_after() {
    at_start = [] {
        for (auto& of_block : barriers) of_block.clear();
        for (auto& of_thread : stores) of_thread = {};
        for (auto& of_block : shown) std::memset(of_block, 0xff, shared_bytes);
        std::fill_n(takes_turns, MOST_CLUSTER, false);
        std::fill_n(has_turn, MOST_THREADS / WARP, false);
    };
    at_end = [](int block) {
        for (auto& known : barriers[block])
            if (!known.second.copies.empty()) refuse("a block ends before its copies");
        for (int thread = block * block_threads; thread < (block + 1) * block_threads; thread++)
            if (!stores[thread].open.empty() || !stores[thread].closed.empty())
                refuse("a block ends while copies read its memory");
    };
}

static const bool looked_after = (look_after(), true);

// --- products -------------------------------------------------------------------------------------

constexpr int MOST_COLUMNS = 256, MOST_DEPTH = 32;

enum Adding { IN_FLOAT32, IN_13_BITS, IN_INT32 };
using Decode = void (*)(std::uint64_t matrix, int row, float* to);  // a row of k elements

struct Product {
    void* sums;
    std::uint64_t a, b;
    bool adds;
    int columns;
    Decode decode_a, decode_b;
    int depth;  // k
    Adding adding;
};

struct Sums {  // of a thread, while products are under way
    void* seen;
    int count;
    unsigned hidden[MOST_COLUMNS / 2];
};

struct Products {  // of a thread
    bool ordered = false;
    std::deque<Sums> sums;
    std::vector<Product> open;
    std::deque<std::vector<Product>> closed;
};

static Products products[MOST_THREADS];

// What all threads of a warpgroup share of a product, for as long as shared memory stays as it is.
struct Shared {
    std::uint64_t a = 0, b = 0, version = ~0ull;
    int columns = 0, block = 0;
    Decode decode_a = nullptr, decode_b = nullptr;
    float all[64][MOST_COLUMNS];
};

static Shared computed[8];
static int next_computed = 0;

inline unsigned row_address(std::uint64_t matrix, int row) {
    const unsigned start = unsigned(matrix & 0x3fff) << 4, stride = unsigned(matrix >> 32 & 0x3fff) << 4;
    if (matrix >> 62 != 1) refuse("a matrix must be swizzled by 128 bytes");
    if (matrix >> 46 & 0xffff || matrix >> 30 & 3 || matrix >> 14 & 3) refuse("reserved bits of a matrix are set");
    if (start >> 7 & 7) refuse("a matrix does not start where the swizzle does");
    return start + row / 8 * stride + row % 8 * 128;
}

template <typename T>
float number(T item) {
    return widen(item);
}

inline float number(u8_t item) { return item; }

// A sign, bits of an exponent, and others of a fraction; WHOLE: the largest exponents are of numbers, too.
template <int FRACTION, bool WHOLE>
float short_float(unsigned bits) {
    constexpr int EXPONENT = 7 - FRACTION, BIAS = (1 << (EXPONENT - 1)) - 1, TOP = (1 << EXPONENT) - 1;
    const int exponent = bits >> FRACTION & TOP, fraction = bits & ((1 << FRACTION) - 1);
    const float sign = bits >> 7 ? -1.f : 1.f;
    if (WHOLE ? (bits & 0x7f) == 0x7f : exponent == TOP && fraction) return NAN;
    if (!WHOLE && exponent == TOP) return sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(float(fraction), 1 - BIAS - FRACTION);
    return sign * std::ldexp(float((1 << FRACTION) + fraction), exponent - BIAS - FRACTION);
}

inline float number(e4m3_t item) { return short_float<3, true>(item.bits); }
inline float number(e5m2_t item) { return short_float<2, false>(item.bits); }

template <typename T>
void decode_row(std::uint64_t matrix, int row, float* to) {
    const unsigned from = row_address(matrix, row);
    for (int piece = 0; piece < 2; piece++) {
        T items[16 / sizeof(T)];
        std::memcpy(items, at_address(swizzled(from + piece * 16), 16), 16);
        for (T item : items) {
            float v = number(item);
            if (sizeof(T) == 4) v = __uint_as_float(__float_as_uint(v) & 0xffffe000u);  // the rest is not looked at
            *to++ = v;
        }
    }
}

// v without what lies below 13 bits after the first one.
inline float cut(float v) { return __uint_as_float(__float_as_uint(v) & ~1023u); }

// Of 8-bit floats: products are cut off 13 bits below the largest one's first bit, and added as integers.
__attribute__((optimize("O3"))) inline void multiply_in_13_bits(Shared& to, const float (&a)[64][MOST_DEPTH],
                                                                const float (&b)[MOST_DEPTH][MOST_COLUMNS]) {
    for (int row = 0; row < 64; row++) {
        static float largest[MOST_COLUMNS], plain[MOST_COLUMNS];
        static int sums[MOST_COLUMNS];
        for (int j = 0; j < to.columns; j++) largest[j] = plain[j] = sums[j] = 0;
        for (int k = 0; k < MOST_DEPTH; k++)
            for (int j = 0; j < to.columns; j++) {
                const float v = a[row][k] * b[k][j];
                plain[j] += v;
                largest[j] = std::max(largest[j], std::abs(v));
            }
        static float units[MOST_COLUMNS];  // 1 over the least unit, which is a power of 2
        for (int j = 0; j < to.columns; j++)
            units[j] = 0x1p13f / __uint_as_float(std::max(__float_as_uint(largest[j]), 1u << 23) & 0x7f800000u);
        for (int k = 0; k < MOST_DEPTH; k++)
            for (int j = 0; j < to.columns; j++) sums[j] += int(a[row][k] * b[k][j] * units[j]);
        for (int j = 0; j < to.columns; j++)
            to.all[row][j] = std::isfinite(plain[j]) ? cut(sums[j] / units[j]) : plain[j];
    }
}

__attribute__((optimize("O3"))) inline void multiply_all(Shared& to, const float (&a)[64][MOST_DEPTH],
                                                         const float (&b)[MOST_DEPTH][MOST_COLUMNS], int depth) {
    for (int row = 0; row < 64; row++) {
        float* sums = to.all[row];
        for (int j = 0; j < to.columns; j++) sums[j] = 0;
        for (int k = 0; k < depth; k++)
            for (int j = 0; j < to.columns; j++) sums[j] += a[row][k] * b[k][j];
    }
}

inline const Shared& result_of(const Product& product) {
    for (const Shared& known : computed)
        if (known.version == shared_version && known.a == product.a && known.b == product.b &&
            known.columns == product.columns && known.decode_a == product.decode_a &&
            known.decode_b == product.decode_b && known.block == rank)
            return known;
    Shared& fresh = computed[next_computed++ % 8];
    fresh.a = product.a, fresh.b = product.b, fresh.columns = product.columns;
    fresh.decode_a = product.decode_a, fresh.decode_b = product.decode_b;
    fresh.version = shared_version, fresh.block = rank;
    static float a[64][MOST_DEPTH], b[MOST_DEPTH][MOST_COLUMNS];
    for (int row = 0; row < 64; row++) product.decode_a(product.a, row, a[row]);
    for (int column = 0; column < product.columns; column++) {
        float of_column[MOST_DEPTH];
        product.decode_b(product.b, column, of_column);
        for (int k = 0; k < product.depth; k++) b[k][column] = of_column[k];
    }
    if (product.adding == IN_13_BITS)
        multiply_in_13_bits(fresh, a, b);
    else
        multiply_all(fresh, a, b, product.depth);
    return fresh;
}

// The sums as they will be, of an array that shows NaN from now on.
inline void* hidden_sums(Products& mine, void* seen, int count) {
    for (Sums& known : mine.sums)
        if (known.seen == seen) return known.hidden;
    mine.sums.push_back({seen, count});
    std::memcpy(mine.sums.back().hidden, seen, count * sizeof(float));
    std::memset(seen, 0xff, count * sizeof(float));
    return mine.sums.back().hidden;
}

inline void finish(const Product& product) {
    const int lane = current % WARP, row = current % WARPGROUP / WARP * 16 + lane / 4;
    const Shared& result = result_of(product);
    for (int i = 0; i < product.columns / 2; i++) {
        const float v = result.all[row + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        if (product.adding == IN_INT32) {
            unsigned& sum = static_cast<unsigned*>(product.sums)[i];  // wraps
            sum = unsigned(int(v)) + (product.adds ? sum : 0);
        } else {
            float& sum = static_cast<float*>(product.sums)[i];
            sum = product.adds ? sum + v : v;
            if (product.adding == IN_13_BITS) sum = cut(sum);
        }
    }
}

template <typename A, typename B>
void start_product(void* sums, int columns, std::uint64_t a, std::uint64_t b, bool adds, Adding adding) {
    Products& mine = products[current];
    if (!mine.ordered) refuse("a product starts before order_products");
    if (takes_turns[rank] && !has_turn[current / WARP]) refuse("a product starts out of turn");
    void* hidden = hidden_sums(mine, sums, columns / 2);
    mine.open.push_back({hidden, a, b, adds, columns, decode_row<A>, decode_row<B>, int(32 / sizeof(A)), adding});
}

}  // namespace shim

inline unsigned shared_address(const void* at) { return shim::address_of(at); }

inline void make_barrier(Barrier* barrier, unsigned arrivals) {
    const unsigned address = shim::address_of(barrier);
    if (address % 8) shim::refuse("a barrier lies off 8 bytes");
    if (arrivals < 1 || arrivals >= 1 << 20) shim::refuse("a barrier for no arrivals, or too many");
    shim::Arrivals& all = shim::barriers[shim::rank][address] = {};
    all.expected = all.pending = int(arrivals);
    barrier->state = shim::mark_of(address);
}

inline void barriers_are_made() {
    for (auto& known : shim::barriers[shim::rank]) known.second.visible = true;
}

inline void arrive(Barrier* barrier) {
    shim::Arrivals& all = shim::arrivals_of(barrier);
    all.pending--;
    shim::settle(all);
}

inline void arrive_expecting(Barrier* barrier, unsigned bytes) {
    shim::Arrivals& all = shim::arrivals_of(barrier);
    all.bytes += bytes;
    all.pending--;
    shim::settle(all);
}

inline void wait_for(Barrier* barrier, unsigned parity) {
    if (parity > 1) shim::refuse("a parity is 0 or 1");
    for (;; shim::leave()) {
        shim::Arrivals& all = shim::arrivals_of(barrier);
        if ((all.phase & 1) != parity) return;
        shim::deliver(all);
        if ((all.phase & 1) != parity) return;
    }
}

inline void wait_for_turn(Barrier* own, unsigned parity) {
    wait_for(own, parity);
    shim::has_turn[shim::current / shim::WARP] = true;
}

inline void give_turn(Barrier* others) {
    shim::takes_turns[shim::rank] = true;
    shim::has_turn[shim::current / shim::WARP] = false;
    arrive(others);
}

inline void arrive_in_cluster(Barrier* barrier, unsigned rank) {
    shim::Arrivals& all = shim::arrivals_of(barrier, rank);
    all.pending--;
    shim::settle(all);
}

inline void copy_bytes(void* to, const void* from, unsigned bytes, Barrier* barrier) {
    shim::check_pieces(shim::address_of(to), from, bytes);
    shim::start_copy({shim::address_of(to), bytes, static_cast<const unsigned char*>(from)}, barrier, shim::rank);
}

inline unsigned long long kept_in_l2() { return shim::MAP_MAGIC; }

inline void copy_bytes_to_cluster(void* to, const void* from, unsigned bytes, Barrier* barrier, unsigned short blocks,
                                  unsigned long long policy) {
    shim::check_pieces(shim::address_of(to), from, bytes);
    if (policy != kept_in_l2()) shim::refuse("a copy is given no policy");
    for (int block = 0; block < 16; block++)
        if (blocks >> block & 1)
            shim::start_copy({shim::address_of(to), bytes, static_cast<const unsigned char*>(from)}, barrier, block);
}

inline void show_to_copies() {
    shim::Stores& mine = shim::stores[shim::current];
    for (const shim::Written& written : mine.hidden)
        std::memcpy(shim::shown[shim::rank] + (written.address - shim::SHARED_START),
                    shim::at_address(written.address, written.bytes), written.bytes);
    mine.hidden.clear();
}

inline void store_bytes(void* to, const void* from, unsigned bytes) {
    const unsigned address = shim::address_of(from);
    shim::check_pieces(address, to, bytes);
    shim::at_address(address, bytes);  // is there
    const unsigned char* seen = shim::shown[shim::rank] + (address - shim::SHARED_START);
    shim::stores[shim::current].open.push_back({static_cast<unsigned char*>(to), address, {seen, seen + bytes}});
}

inline void close_stores() {
    shim::Stores& mine = shim::stores[shim::current];
    for (shim::Store& store : mine.open) mine.closed.push_back(std::move(store));
    mine.open.clear();
}

inline void wait_for_stores() {
    shim::Stores& mine = shim::stores[shim::current];
    for (const shim::Store& store : mine.closed) shim::finish(store);
    mine.closed.clear();
}

inline void write_pair(void* to, float first, float second) {
    const float pair[2] = {first, second};
    if (shim::address_of(to) % 8) shim::refuse("a pair lies off 8 bytes");
    shim::write_shared(to, pair, sizeof pair);
}

inline void store_matrices(void* row, const unsigned (&words)[4]) {
    if (shim::address_of(row) % 16) shim::refuse("a row of a matrix lies off 16 bytes");
    void* rows[32];
    shim::gather(row, rows);
    const int lane = shim::current % 32;
    for (int i = 0; i < 4; i++)
        shim::write_shared(static_cast<unsigned*>(rows[i * 8 + lane / 4]) + lane % 4, &words[i], sizeof words[i]);
}

inline void copy_pixels_1d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    shim::copy_pixels(1, to, map, at, tap, barrier);
}

inline void copy_pixels_2d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    shim::copy_pixels(2, to, map, at, tap, barrier);
}

inline void copy_pixels_3d(void* to, const TensorMap* map, Corner at, TapPlace tap, Barrier* barrier) {
    shim::copy_pixels(3, to, map, at, tap, barrier);
}

inline float at_least(float v, float least) { return v < least ? least : v; }

template <int COUNT>
void give_registers() {
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "what setmaxnreg takes");
}

template <int COUNT>
void take_registers() {
    give_registers<COUNT>();
}

inline void order_products() {
    __syncwarp();
    shim::products[shim::current].ordered = true;
}

inline void close_products() {
    __syncwarp();
    shim::Products& mine = shim::products[shim::current];
    mine.closed.push_back(std::move(mine.open));
    mine.open.clear();
}

template <int LEFT, int SLICES, int COUNT, typename T>
void wait_for_products(T (&sums)[SLICES][COUNT]) {
    __syncwarp();
    shim::Products& mine = shim::products[shim::current];
    while (mine.closed.size() > LEFT) {
        for (const shim::Product& product : mine.closed.front()) shim::finish(product);
        mine.closed.pop_front();
    }
    if (mine.closed.empty() && mine.open.empty()) {
        for (shim::Sums& known : mine.sums) {
            if (known.seen < sums[0] || known.seen >= sums[SLICES])
                shim::refuse("the sums that are waited for are not those under way");
            std::memcpy(known.seen, known.hidden, known.count * sizeof(float));
        }
        mine.sums.clear();
        mine.ordered = false;
    }
    __syncwarp();  // the products of all lanes end at once
}

template <int COUNT, typename A, typename B>
void start_product(float (&sums)[COUNT], unsigned long long a, unsigned long long b, bool adds, Factors<A, B>) {
    static_assert(COUNT == 32 || COUNT == 64 || COUNT == 96 || COUNT == 128, "as kernels/hopper.cuh");
    shim::start_product<A, B>(sums, 2 * COUNT, a, b, adds, sizeof(A) == 1 ? shim::IN_13_BITS : shim::IN_FLOAT32);
}

template <int COUNT, typename A, typename B>
void start_product(int (&sums)[COUNT], unsigned long long a, unsigned long long b, bool adds, Factors<A, B>) {
    static_assert(COUNT == 32 || COUNT == 64 || COUNT == 96 || COUNT == 128, "as kernels/hopper.cuh");
    shim::start_product<A, B>(sums, 2 * COUNT, a, b, adds, shim::IN_INT32);
}
