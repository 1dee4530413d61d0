// Choosing tokens on the device (arithmetic.md §9): arguments and launcher.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"

namespace bolt::cuda {

struct SampleArgs {
  const float* logits = nullptr;
  std::int64_t stride = 0;
  int n_rows = 0, n_cols = 0;
  const SampleSpec* specs = nullptr;     // [n_rows], device
  const std::uint8_t* marked = nullptr;  // [n_rows], device
  const int* ids_of = nullptr;           // ascending, device; null: columns are ids
  Sampled* out = nullptr;                // [n_rows], device
};

void launch_sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace bolt::cuda
