// What a pass reads of a package, for figures of bytes a second.
#pragma once

#include <cstdint>
#include <variant>

#include "core/pack/graph_walk.h"

namespace bolt {

// Weight bytes that one row of the target reads: of the experts, those it is sent to; of the
// embedding, one row, which counts as none.
inline std::uint64_t bytes_of_row(const Graph& graph) {
  std::uint64_t bytes = graph.lm_head.bytes;
  for (const Layer& layer : graph.layers) {
    each_layer_weight(layer, [&](const char*, const Weight& weight) { bytes += weight.bytes; });
    if (const auto* moe = std::get_if<Moe>(&layer.mixer)) {
      const std::uint64_t all = moe->experts_up.bytes + moe->experts_down.bytes;
      bytes -= all - all * static_cast<std::uint64_t>(moe->top_k) /
                         static_cast<std::uint64_t>(moe->n_experts);
    }
  }
  return bytes;
}

}  // namespace bolt
