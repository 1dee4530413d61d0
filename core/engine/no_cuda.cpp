// The CUDA backend of a build without CUDA: there is none. cuda/backend.cu is the other.
#include "core/base/error.h"
#include "core/engine/backend.h"

namespace bolt {

bool built_with_cuda() { return false; }

std::vector<CudaDevice> cuda_devices(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA";
  return {};
}

std::optional<GpuState> gpu_state(int) { return std::nullopt; }

double cuda_read_ceiling(int) { return 0.0; }

namespace {
[[noreturn]] void has_none() {
  throw Error(Exit::usage,
              "--device cuda: this build has no CUDA; use --device cpu, or build with it");
}
}  // namespace

Backend open_cuda(const Graph&, int, bool) { has_none(); }
void open_cuda_ranks(const std::vector<int>&, bool, RankSetup&) { has_none(); }

}  // namespace bolt
