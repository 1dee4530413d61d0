#include "core/pack/format_choice.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

// Norms, the conv, A, D and dt_bias are f32 vectors, the embedding is plain: all of them, and the
// router, whose choice of experts hangs on small differences, keep their format.
bool may_quantise(const std::string& name, const Weight& w) {
  return w.layout == Layout::tiles && !name.ends_with(".router");
}

bool kept(const ConvertOptions& options, const std::string& name, const Binding& binding) {
  const auto matches = [&](const std::string& text) {
    return std::any_of(options.keep.begin(), options.keep.end(), [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
    });
  };
  if (matches(name)) return true;
  return std::any_of(binding.tensors.begin(), binding.tensors.end(),
                     [&](const Tensor* tensor) { return matches(tensor->name); });
}

}  // namespace

void check_keep(const ConvertOptions& options, const BoundGraph& bound) {
  for (const std::string& pattern : options.keep) {
    ConvertOptions one;
    one.keep = {pattern};
    const bool any =
        std::any_of(bound.bindings.begin(), bound.bindings.end(),
                    [&](const auto& item) { return kept(one, item.first, item.second); });
    if (!any)
      throw Error(Exit::usage,
                  fmt::format("--keep {}: matches no weight or tensor", json_quote(pattern)));
  }
}

void choose_formats(const ConvertOptions& options, BoundGraph& bound, ConvertFacts& facts) {
  if (!options.quant) return;
  each_weight(bound.graph, [&](const std::string& name, Weight& w) {
    if (!may_quantise(name, w) || kept(options, name, bound.bindings.at(name))) return;
    if (is_integer(w.format)) return;  // what a checkpoint packed stays as it is
    w.format = *options.quant;
    facts.quantised.push_back(name);
  });
}

}  // namespace bolt
