// `bolt bench --make lightning-dspark|lightning-dflash`: the checkpoint of a separate drafter with
// generated weights, laid out as NVIDIA's releases for Nemotron 3.5 Lightning are (NVFP4 linears of
// fc, MLP and Markov head, the rest BF16), for a package whose embedding it takes over. `bolt
// convert
// --drafter-for` adds it to the package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/pack/make.h"
#include "core/pack/safetensors.h"

namespace bolt {

// model.safetensors of a drafter before a byte of data is there.
struct DrafterFile {
  std::string header;           // the file's first bytes
  std::vector<Tensor> tensors;  // by place; offsets are the file's
  std::uint64_t bytes = 0;      // of the whole file
};

// Sizes of the drafters for Lightning, without weights; they have kLightningLayers layers.
inline constexpr int kLightningLayers = 6;
BlockDrafter lightning_drafter(BlockKind kind);
// The kind that a shape's name means; false for other shapes.
bool is_drafter_shape(std::string_view shape, BlockKind& kind);

// `shaped` has its weights' shapes (shape_drafter).
DrafterFile plan_drafter_file(const BlockDrafter& shaped, const Graph& target);

// Writes the folder `options.target` (config.json, model.safetensors) of a drafter of these sizes
// for the package. Equal options and packages give equal bytes. Answers the file's plan.
DrafterFile make_drafter(const MakeOptions& options, const std::string& package,
                         const BlockDrafter& sizes, int n_layers);

}  // namespace bolt
