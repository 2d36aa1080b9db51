// Stands in for kernels/cluster.cuh on the CPU. Memory of a block that may not have started, or has ended, is not there.
#pragma once
#include "ptx.cuh"

#define IN_CLUSTERS(BLOCKS_OF_ONE) __cluster_dims__(BLOCKS_OF_ONE, 1, 1)

inline unsigned cluster_rank() { return shim::rank; }

inline void meet_cluster() { shim::wait(shim::cluster_barrier, shim::live); }

class RemotePairs {
    std::ptrdiff_t first = 0;  // bytes
    int rank = 0;

    float* at(unsigned i) const {
        if (!shim::cluster_barrier.generation) shim::refuse("the memory of a block is used that may not have started");
        if (shim::live_of_block[rank] < shim::block_threads) shim::refuse("the memory of a block is used that ends");
        const std::ptrdiff_t byte = first + 8 * std::ptrdiff_t(i);
        if (byte < 0 || byte + 8 > std::ptrdiff_t(shim::shared_bytes)) shim::refuse("a pair lies outside of shared memory");
        return reinterpret_cast<float*>(shim::memories[rank] + byte);
    }

public:
    RemotePairs() {}
    RemotePairs(const void* here, unsigned rank)
        : first(static_cast<const unsigned char*>(here) - shim::dynamic), rank(int(rank)) {
        if (int(rank) >= shim::cluster_blocks) shim::refuse("there is no such block in the cluster");
    }

    void store(unsigned i, float low, float high) const { at(i)[0] = low, at(i)[1] = high; }
    void load(unsigned i, float& low, float& high) const { low = at(i)[0], high = at(i)[1]; }
};
