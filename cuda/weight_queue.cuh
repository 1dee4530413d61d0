// A warp's weights on their way into shared memory: a ring of runs of groups, filled by the bulk
// copy engine (sm_90 and later) or by asynchronous 16-byte copies (before). A warp's runs are those
// of its segments first, first + step, ... of a tile, then of the tile after it; all in flight at
// once hide the memory's latency, and a kernel fills the ring before it waits for the kernels
// before it.
#pragma once

#include "core/pack/tiles.h"
#include "cuda/device.cuh"

namespace bolt::cuda {

// Groups of a run, and runs in flight: a whole segment, which one copy fetches; of q8, as much as
// lets three blocks of eleven warps share a multiprocessor.
template <Format F, int RunGroups = F == Format::q8 ? 2 : kSegmentGroups,
          int Depth = F == Format::q8 ? 3 : 1>
struct WeightQueue {
  static constexpr int kBlockBytes = block_bytes(F);
  static constexpr int kBlockGroups = block_cols(F) / kGroupCols;  // 1, or a whole segment's
  static constexpr int kRunGroups = RunGroups, kDepth = Depth;
  static constexpr int kRunBytes = kRunGroups / kBlockGroups * kBlockBytes;
  static constexpr int kBytes = kDepth * kRunBytes + kDepth * 8;
  static constexpr int kStride = (kBytes + 15) / 16 * 16;  // of the warps' rings

  std::byte* ring;
  const std::uint8_t* tile;  // the tile's first block
  int n_groups;              // of a tile
  int first_group, step;     // of this warp in a tile; between its segments
  int n_tiles;               // from `tile` on
  // The run that is issued next, and the ring's place that is read next.
  int next_group, place;
  std::uint32_t parity;

  BOLT_DEV std::uint32_t address(const void* p) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  }
  BOLT_DEV std::byte* slot(int i) const { return ring + i * kRunBytes; }
  BOLT_DEV std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(ring + kDepth * kRunBytes) + i;
  }

  // Before it is known what to fetch.
  BOLT_DEV void prepare(std::byte* memory, int lane) {
    ring = memory;
    place = 0;
    parity = 0;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(barrier(i)))
                     : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#endif
    __syncwarp();
  }
  // Starts the first kDepth runs. `first` is the warp's first segment; it may be past a tile's.
  BOLT_DEV void start(const std::uint8_t* tile_blocks, int groups, int first, int segment_step,
                      int lane, int tiles = 1) {
    tile = tile_blocks;
    n_groups = groups;
    step = segment_step;
    n_tiles = tiles;
    next_group = first_group = first * kSegmentGroups;
#pragma unroll
    for (int i = 0; i < kDepth; ++i) issue(i, lane);
    __syncwarp();
  }

  BOLT_DEV void issue(int i, int lane) {
    if (next_group < n_groups) {
      const int groups = min(kRunGroups, n_groups - next_group);
      const int blocks = (groups + kBlockGroups - 1) / kBlockGroups;
      const std::uint8_t* from =
          tile + static_cast<std::int64_t>(next_group / kBlockGroups) * kBlockBytes;
#if __CUDA_ARCH__ >= 900
      if (lane == 0) {
        const std::uint32_t bytes = blocks * kBlockBytes, full = address(barrier(i));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full),
                     "r"(bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(address(slot(i))),
            "l"(from), "r"(bytes), "r"(full)
            : "memory");
      }
#else
      for (int c = lane; c < blocks * kBlockBytes / 16; c += 32) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(slot(i) + c * 16)),
                     "l"(from + c * 16)
                     : "memory");
      }
#endif
      // The run after this one: of the same segment, of the warp's next, or of the next tile.
      next_group += kRunGroups;
      if (next_group % kSegmentGroups == 0) next_group += (step - 1) * kSegmentGroups;
      if (next_group >= n_groups && n_tiles > 1) {
        --n_tiles;
        tile += static_cast<std::int64_t>(n_groups / kBlockGroups) * kBlockBytes;
        next_group = first_group;
      }
    }
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  // Waits for the next run; its offset in the ring: group u of it is u * kBlockBytes further.
  BOLT_DEV int wait_front() const {
#if __CUDA_ARCH__ >= 900
    std::uint32_t done;
    do {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
          "p;}"
          : "=r"(done)
          : "r"(address(barrier(place))), "r"(parity)
          : "memory");
    } while (!done);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
    __syncwarp();
#endif
    return place * kRunBytes;
  }
  // Done with it: its place takes the next run that is not on its way.
  BOLT_DEV void pop(int lane) {
    __syncwarp();  // every lane has read it
    issue(place, lane);
    if (++place == kDepth) {
      place = 0;
      parity ^= 1;
    }
  }
};

}  // namespace bolt::cuda
