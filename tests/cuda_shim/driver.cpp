// Stands in for the driver's cuTensorMapEncodeIm2col: refuses what its manual forbids, and fills in the record
// that the stand-in for hopper.cuh reads. Compiled after that.

using u64 = unsigned long long;

inline bool within(const int* corner, int count, int most) {
    return std::all_of(corner, corner + count, [&](int v) { return -most <= v && v < most; });
}

extern "C" int cuTensorMapEncodeIm2col(void* map, int type, unsigned rank, void* address, const u64* sizes,
                                       const u64* strides, const int* lower, const int* upper, unsigned channels,
                                       unsigned pixels, const unsigned* steps, int interleave, int swizzle,
                                       int promotion, int fill) {
    enum { FINE, INVALID_VALUE };
    enum { UINT8, UINT16, TFLOAT32 = 11 };  // of CUtensorMapDataType
    constexpr int MOST_CORNER[] = {1 << 15, 1 << 7, 1 << 4};
    if (std::uintptr_t(map) % 64 || std::uintptr_t(address) % 16) return INVALID_VALUE;
    if ((type != UINT8 && type != UINT16 && type != TFLOAT32) || rank < 3 || rank > 5) return INVALID_VALUE;
    const int space = int(rank) - 2, item_bytes = type == TFLOAT32 ? 4 : type + 1;
    for (unsigned i = 0; i < rank; i++)
        if (sizes[i] < 1 || sizes[i] > 1ull << 32 || steps[i] < 1 || steps[i] > 8) return INVALID_VALUE;
    for (unsigned i = 0; i + 1 < rank; i++)
        if (strides[i] % 16 || strides[i] >= 1ull << 40) return INVALID_VALUE;
    if (strides[0] < sizes[0] * item_bytes) return INVALID_VALUE;
    if (!within(lower, space, MOST_CORNER[space - 1]) || !within(upper, space, MOST_CORNER[space - 1]))
        return INVALID_VALUE;
    for (int i = 0; i < space; i++)
        if (lower[i] > (long long)(sizes[1 + i]) - 1 + upper[i]) return INVALID_VALUE;  // an empty box
    if (channels < 1 || channels > 256 || pixels < 1 || pixels > 1024) return INVALID_VALUE;
    // The stand-in knows rows of 128 bytes, swizzled as such, with zeros outside.
    if (channels * item_bytes != 128 || interleave != 0 || swizzle != 3 || fill != 0) return INVALID_VALUE;
    if (promotion < 0 || promotion > 3) return INVALID_VALUE;

    TensorMap made = {};
    made.address = std::uintptr_t(address);
    made.magic = shim::MAP_MAGIC;
    made.rank = rank, made.item_bytes = item_bytes, made.rounds_tf32 = type == TFLOAT32;
    made.channels = channels, made.pixels = pixels;
    std::copy_n(sizes, rank, made.sizes);
    std::copy_n(strides, rank - 1, made.strides);
    std::copy_n(lower, space, made.lower);
    std::copy_n(upper, space, made.upper);
    std::copy_n(steps + 1, space, made.steps);
    std::memcpy(map, &made, sizeof made);
    return FINE;
}
