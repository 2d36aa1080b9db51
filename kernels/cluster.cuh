// Clusters of blocks that run side by side and reach one another's shared memory: compute capability 9.0 on.
//
// Source: NVIDIA's PTX ISA, sections mapa, ld, st and barrier.cluster.
#pragma once
#include "ptx.cuh"

// Stands before a kernel's name.
#define IN_CLUSTERS(BLOCKS_OF_ONE) __cluster_dims__(BLOCKS_OF_ONE, 1, 1)

// The number of this block in its cluster.
__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of the cluster meet. Before one uses another block's shared memory, so that it is there; and before a
// block ends that others may still reach for.
__device__ inline void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Pairs of floats in the shared memory of a block of the cluster, this one's too: from the place on that `here` has
// in this block's.
struct RemotePairs {
    unsigned first;

    __device__ inline RemotePairs() {}
    __device__ inline RemotePairs(const void* here, unsigned rank) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(first)
                     : "r"(static_cast<unsigned>(__cvta_generic_to_shared(here))), "r"(rank));
    }

    __device__ inline void store(unsigned i, float low, float high) const {
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(first + 8 * i), "f"(low), "f"(high) : "memory");
    }

    __device__ inline void load(unsigned i, float& low, float& high) const {
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                     : "=f"(low), "=f"(high)
                     : "r"(first + 8 * i)
                     : "memory");
    }
};
