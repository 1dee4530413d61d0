// The sample model as other writers would have packed it: GGUF files and ModelOpt checkpoints, made
// from its own safetensors by quantisers and names written for the tests alone.
#pragma once

#include <string>

namespace bolt::testing {

// GGUF type of every linear weight and of the embedding: BF16, Q8_0, Q5_0 or Q4_0.
// foreign_exp: A = -exp(A_log) by the C library instead of the contract's exp.
void write_sample_gguf(const std::string& path, const std::string& type, bool foreign_exp = false);

// A folder as ModelOpt exports it, FP8 or NVFP4 linears; head, routers and MTP stay BF16.
void write_sample_modelopt(const std::string& folder, bool fp8);

}  // namespace bolt::testing
