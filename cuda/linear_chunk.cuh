// Linear layers for prompt chunks: which calls they serve, and their launcher.
#pragma once

#include "cuda/linear.cuh"

namespace bolt::cuda {

// Rows an expert's slot should hold in these kernels, given how many an expert is likely to have:
// the largest that is likely to be filled half, since a slot's cost goes with its live rows in
// steps of an eighth. Float formats have slots of 32 and 64.
constexpr int chunk_slot_rows(int expected, bool integer) {
  return expected < 32 ? 32 : expected < 64 || !integer ? 64 : 128;
}

bool chunk_serves(const LinearArgs& args, Format format);
void launch_linear_chunk(const LinearArgs& args, Format format, cudaStream_t stream);

}  // namespace bolt::cuda
