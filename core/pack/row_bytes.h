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

// Weight bytes of a drafter's pass that makes so many drafts: its blocks and the target's head
// once, of the Markov head what each draft reads.
inline std::uint64_t bytes_of_pass(const BlockDrafter& drafter, const Graph& target, int n_drafts) {
  std::uint64_t bytes = target.lm_head.bytes;
  each_drafter_weight(drafter,
                      [&](const std::string&, const Weight& weight) { bytes += weight.bytes; });
  bytes -= drafter.markov_w1.bytes;  // a row of it
  return bytes + static_cast<std::uint64_t>(n_drafts - 1) * drafter.markov_w2.bytes;
}

}  // namespace bolt
