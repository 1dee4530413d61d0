// Shapes of models by name, for packages of generated weights. Sizes as the family's published
// configurations have them, but for sample (the trained sample model's) and dense-1b (bolt's own).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/pack/model_facts.h"

namespace bolt {

struct Shape {
  std::string name;
  std::string about;  // one line for the help
  ModelFacts facts;
  std::int64_t context_limit = 0;
};

// Throws Error(usage) listing the names for one that is neither a shape nor a config.json's path.
Shape find_shape(const std::string& name_or_config);
std::vector<std::string> shape_names();

}  // namespace bolt
