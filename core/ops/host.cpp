// HostOps itself: its processor choice and threads. Each op has its own file.
#include "core/ops/host.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/ops/expert_scratch.h"

namespace bolt {

HostOps::HostOps(int n_threads, Isa isa)
    : isa_(isa), pool_(n_threads), expert_scratch_(std::make_unique<ExpertScratch>()) {
  require(isa != Isa::automatic && cpu_has(isa), "the instruction set is one that was resolved");
}

HostOps::~HostOps() = default;

void HostOps::begin(const Batch& batch, std::span<const int> ids) {
  (void)ids;  // the ops read segments and ids where they are
  std::fill(batch.marked.begin(), batch.marked.end(), std::uint8_t{0});
}

}  // namespace bolt
