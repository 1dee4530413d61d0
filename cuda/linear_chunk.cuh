// Linear layers for prompt chunks: which calls they serve, and their launcher.
#pragma once

#include "cuda/linear.cuh"

namespace bolt::cuda {

// Rows an expert's slot should hold in these kernels, given how many an expert is likely to have. A
// slot's cost goes with its live rows in steps of eight.
constexpr int chunk_slot_rows(int expected) { return expected < 32 ? 32 : 64; }

bool chunk_serves(const LinearArgs& args);
void launch_linear_chunk(const LinearArgs& args, Format format, cudaStream_t stream);

}  // namespace bolt::cuda
