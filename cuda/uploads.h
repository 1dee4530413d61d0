// How much CudaOps::place() has sent to GPUs so far, for tests that say what is sent once.
#pragma once

#include <cstdint>

namespace bolt::cuda {

struct Uploads {
  int n = 0;  // ranges of host bytes: weights that share theirs count once
  std::uint64_t bytes = 0;
};
// Of this process, whichever the device.
Uploads uploads();

}  // namespace bolt::cuda
