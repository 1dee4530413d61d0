// Rows that GPUs push into each other's memory: the kernels of peer_exchange.cu and what they
// share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/base/rows.h"

namespace bolt::cuda {

inline constexpr int kPeersMax = 8;
inline constexpr int kPeerBlocks = 24;      // of every launch, so that all count alike
inline constexpr int kPeerPartsMax = 4;     // of one exchange
inline constexpr int kPeerMarksMax = 8192;  // rows of a call

// A rank's mailbox, which the others write: [2 parities][n_ranks][capacity] floats of rows, and as
// many bytes of marks; and flags [n_ranks][kPeerBlocks + 1], how many exchanges the block of that
// rank has sent (the last one: of marks). `count` [kPeerBlocks + 1] is the rank's own: how many its
// blocks have done.
struct PeerMemory {
  float* rows = nullptr;
  std::uint8_t* marks = nullptr;
  unsigned* flags = nullptr;
  unsigned* count = nullptr;
};

struct PeerGroup {
  int rank = 0, n_ranks = 1;
  std::int64_t capacity = 0;  // floats that a rank may send at once
  PeerMemory memory[kPeersMax];
  const volatile int* stop = nullptr;  // of the host: a rank has failed, nobody waits any more
};

struct PeerRows {
  Rows<float> rows;
  int slice = 0;
};
struct PeerParts {
  PeerRows part[kPeerPartsMax];
  int n = 0;
};

// All columns of the parts' rows become every rank's. The ranks' slices fit the capacity.
void launch_exchange_rows(const PeerGroup& group, const PeerParts& parts, cudaStream_t stream);
// A mark of one is a mark of all.
void launch_exchange_marks(const PeerGroup& group, std::uint8_t* marks, int n, cudaStream_t stream);

}  // namespace bolt::cuda
