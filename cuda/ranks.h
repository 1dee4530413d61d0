// GPUs as ranks of one model: opening one with its part of the weights, and the exchanges.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/backend.h"
#include "core/ops/exchange.h"
#include "cuda/check.h"
#include "cuda/ops.h"
#include "cuda/peer_exchange.cuh"

namespace bolt::cuda {

// As open_cuda, of a part whose weights may lie in pieces.
Backend open_part(const Graph& graph, const Pieces& pieces, int ordinal, CudaGraphs graphs);

// Copies between ranks that the host orders: each waits for its stream before the others read.
// For ranks that share a GPU, and where there is no NCCL. Nothing of it can be captured.
std::unique_ptr<Exchange> copied_exchange(RankMeeting& meeting, int rank, CudaOps& ops);

// Whether all of these GPUs reach each other's memory.
bool are_peers(const std::vector<int>& ordinals);

// A word of the host's that kernels look at which wait for other ranks.
class PeerStop {
 public:
  PeerStop() : flag_(pinned_alloc<int>(1, "an exchange's flag")) { *flag_.get() = 0; }
  void set() { *const_cast<volatile int*>(flag_.get()) = 1; }
  bool is_set() const { return *const_cast<const volatile int*>(flag_.get()) != 0; }
  const volatile int* flag() const { return flag_.get(); }

 private:
  PinnedPtr<int> flag_;
};

// A rank's memory that others write, on the current device.
class PeerMailbox {
 public:
  PeerMailbox(int n_ranks, std::int64_t capacity);
  PeerMemory memory;

 private:
  DevicePtr<float> rows_;
  DevicePtr<std::uint8_t> marks_;
  DevicePtr<unsigned> counters_;
};

// Stores into each other's memory. others: what many rows go by; null: by the same.
std::unique_ptr<Exchange> peer_exchange(std::unique_ptr<Exchange> others,
                                        std::shared_ptr<PeerStop> stop, RankMeeting& meeting,
                                        int rank, const std::vector<int>& ordinals, CudaOps& ops);

// NCCL's communicators of these GPUs, one a rank. Null where libnccl.so.2 is not installed.
class NcclGroup;
std::shared_ptr<NcclGroup> open_nccl(const std::vector<int>& ordinals);
std::unique_ptr<Exchange> nccl_exchange(std::shared_ptr<NcclGroup> group, RankMeeting& meeting,
                                        int rank, CudaOps& ops);

}  // namespace bolt::cuda
