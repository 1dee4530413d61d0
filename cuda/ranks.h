// GPUs as ranks of one model: opening one with its part of the weights, and the exchanges.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/backend.h"
#include "core/ops/exchange.h"
#include "cuda/ops.h"

namespace bolt::cuda {

// As open_cuda, of a part whose weights may lie in pieces.
Backend open_part(const Graph& graph, const Pieces& pieces, int ordinal, CudaGraphs graphs);

// Copies between ranks that the host orders: each waits for its stream before the others read.
// For ranks that share a GPU, and where there is no NCCL. Nothing of it can be captured.
std::unique_ptr<Exchange> copied_exchange(RankMeeting& meeting, int rank, CudaOps& ops);

// NCCL's communicators of these GPUs, one a rank. Null where libnccl.so.2 is not installed.
class NcclGroup;
std::shared_ptr<NcclGroup> open_nccl(const std::vector<int>& ordinals);
std::unique_ptr<Exchange> nccl_exchange(std::shared_ptr<NcclGroup> group, RankMeeting& meeting,
                                        int rank, CudaOps& ops);

}  // namespace bolt::cuda
