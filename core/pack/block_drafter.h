// The shapes of a separate drafter's weights, and its file in a package: NAME.json (dspark.json,
// dflash.json), its configuration and nodes in one. Making one of a checkpoint is add_drafter.h.
#pragma once

#include <string>

#include "core/pack/graph.h"

namespace bolt {

// Sets every weight's shape by the sizes of `drafter`, whose layers are resized to n_layers;
// formats f32 for vectors, bf16 elsewhere.
void shape_drafter(BlockDrafter& drafter, int n_layers, const Graph& target);
// Throws Error(input), starting with `name`, for sizes that are out of range or do not fit the
// target.
void check_drafter(const BlockDrafter& drafter, int n_layers, const Graph& target,
                   const std::string& name);

std::string drafter_json(const BlockDrafter& drafter);
// Throws Error(input) for anything but drafter_json's own output with sizes that fit the target.
BlockDrafter parse_drafter_json(const std::string& path, const std::string& text,
                                const Graph& target);

}  // namespace bolt
