// What a checkpoint says of its own quantisation: hf_quant_config.json and config.json's
// quantization_config, as NVIDIA's ModelOpt writes them. Each tensor's format follows from its
// dtype and the scales beside it (binding.h); this refuses other exporters by name, and tells where
// tensors and metadata disagree.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/pack/binding.h"

namespace bolt {

struct QuantMetadata {
  std::string algo;                 // FP8, NVFP4, W4A16_NVFP4, MIXED_PRECISION; empty: none given
  std::vector<std::string> ignore;  // modules, with the wildcards of fnmatch
  std::map<std::string, std::string, std::less<>> layers;  // module to its algo, when mixed

  // What the metadata says of a module (a tensor's name without .weight): FP8, NVFP4 or none.
  std::string of(std::string_view module) const;
};

// Reads both homes as far as they are there. Throws Error(input) for exporters other than ModelOpt
// and for algorithms and group sizes that bolt has no kernels for, naming them.
QuantMetadata read_quant_metadata(const std::string& folder);

// Tensors that are quantised another way than the metadata says. The tensors decide.
std::vector<std::string> disagreements(const QuantMetadata& metadata, const BoundGraph& bound);

}  // namespace bolt
