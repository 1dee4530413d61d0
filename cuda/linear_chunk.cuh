// Linear layers for prompt chunks: which calls they serve, and their launcher.
#pragma once

#include "cuda/linear.cuh"

namespace bolt::cuda {

// Rows an expert's slot may hold in these kernels. A slot's cost goes with its live rows in steps
// of a quarter, so the largest that an expert's rows are likely to fill half is best.
inline constexpr int kChunkSlotRows[] = {32, 64, 128};

bool chunk_serves(const LinearArgs& args, Format format);
void launch_linear_chunk(const LinearArgs& args, Format format, cudaStream_t stream);

}  // namespace bolt::cuda
