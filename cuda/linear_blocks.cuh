// Linear layers in fp8 and GGUF's blocks (blocks.cuh): which formats these are, and their launcher.
#pragma once

#include "cuda/linear.cuh"

namespace bolt::cuda {

constexpr bool blocks_serve(Format format) { return block_form(format).n_cols > 0; }
void launch_linear_blocks(const LinearArgs& args, Format format, cudaStream_t stream);

}  // namespace bolt::cuda
