// Linear layers in fp8 and GGUF's blocks (blocks.cuh).
#pragma once

#include "cuda/linear.cuh"

namespace bolt::cuda {

void launch_linear_blocks(const LinearArgs& args, Format format, cudaStream_t stream);

}  // namespace bolt::cuda
