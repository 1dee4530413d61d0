// config.json of a separate drafter's checkpoint (Hugging Face layout of DSpark and DFlash). The
// spellings of its fields appear in drafter_config.cpp alone.
#pragma once

#include <string>

#include "core/pack/graph.h"

namespace bolt {

struct DrafterConfig {
  BlockDrafter drafter;  // without weights
  int n_layers = 0;
};

// Throws Error(input) naming the field: an architecture that is not supported, a drafter that was
// trained for another target (width, vocabulary, tapped layers) or another scheme.
DrafterConfig read_drafter_config(const std::string& folder, const Graph& target);

// Whether the folder's config.json is of such a drafter, so that it is no model by itself.
bool is_drafter_checkpoint(const std::string& folder);

}  // namespace bolt
