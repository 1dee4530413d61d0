// Visits every weight of a graph by name, in the order of graph.json. One list, so that reader,
// writer, converter and loader cannot disagree about which weights a node has.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/pack/graph.h"

namespace bolt {

// visit(name, weight) for the weights of one mixer, present or not. Node may be const.
template <class Node, class Visit>
void each_mixer_weight(Node& node, Visit&& visit) {
  using T = std::remove_const_t<Node>;
  if constexpr (std::is_same_v<T, Mamba2>) {
    visit("in_proj", node.in_proj);
    visit("conv_w", node.conv_w);
    visit("conv_b", node.conv_b);
    visit("A", node.A);
    visit("D", node.D);
    visit("dt_bias", node.dt_bias);
    visit("gate_norm", node.gate_norm);
    visit("out_proj", node.out_proj);
  } else if constexpr (std::is_same_v<T, Attention>) {
    visit("q_proj", node.q_proj);
    visit("k_proj", node.k_proj);
    visit("v_proj", node.v_proj);
    visit("o_proj", node.o_proj);
  } else if constexpr (std::is_same_v<T, Mlp>) {
    visit("up_proj", node.up_proj);
    visit("down_proj", node.down_proj);
  } else {
    static_assert(std::is_same_v<T, Moe>);
    visit("router", node.router);
    visit("router_bias", node.router_bias);
    visit("latent_down", node.latent_down);
    visit("experts_up", node.experts_up);
    visit("experts_down", node.experts_down);
    visit("latent_up", node.latent_up);
    visit("shared_up", node.shared_up);
    visit("shared_down", node.shared_down);
  }
}

template <class L, class Visit>
void each_layer_weight(L& layer, Visit&& visit) {
  visit("norm", layer.norm);
  std::visit([&](auto& mixer) { each_mixer_weight(mixer, visit); }, layer.mixer);
}

inline const char* kind_name(BlockKind kind) {
  return kind == BlockKind::dspark ? "dspark" : "dflash";
}

// visit(name, weight) for the weights of a separate drafter, present or not, with full names such
// as "dspark.layers.1.o_proj".
template <class D, class Visit>
void each_drafter_weight(D& drafter, Visit&& visit) {
  const std::string at = std::string(kind_name(drafter.kind)) + ".";
  visit(at + "mask_embedding", drafter.mask_embedding);
  visit(at + "fc", drafter.fc);
  visit(at + "hidden_norm", drafter.hidden_norm);
  visit(at + "kv_proj", drafter.kv_proj);
  visit(at + "k_norm", drafter.k_norm);
  for (std::size_t i = 0; i < drafter.layers.size(); ++i) {
    const std::string in = at + "layers." + std::to_string(i) + ".";
    auto& layer = drafter.layers[i];
    visit(in + "input_norm", layer.input_norm);
    visit(in + "q_proj", layer.q_proj);
    visit(in + "q_norm", layer.q_norm);
    visit(in + "sinks", layer.sinks);
    visit(in + "o_proj", layer.o_proj);
    visit(in + "post_norm", layer.post_norm);
    visit(in + "gate_proj", layer.gate_proj);
    visit(in + "up_proj", layer.up_proj);
    visit(in + "down_proj", layer.down_proj);
  }
  visit(at + "final_norm", drafter.final_norm);
  visit(at + "markov_w1", drafter.markov_w1);
  visit(at + "markov_w2", drafter.markov_w2);
}

// visit(name, weight) for every weight the graph has, with full names such as "layers.3.in_proj".
template <class G, class Visit>
void each_weight(G& graph, Visit&& visit) {
  const auto present = [&](const std::string& name, auto& weight) {
    if (weight.present()) visit(name, weight);
  };
  const auto layers = [&](const std::string& prefix, auto& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string at = prefix + std::to_string(i) + ".";
      each_layer_weight(list[i],
                        [&](const char* name, auto& weight) { present(at + name, weight); });
    }
  };
  present("embedding", graph.embedding);
  layers("layers.", graph.layers);
  present("final_norm", graph.final_norm);
  present("lm_head", graph.lm_head);
  if (graph.draft) {
    auto& draft = *graph.draft;
    present("draft.enorm", draft.enorm);
    present("draft.hnorm", draft.hnorm);
    present("draft.eh_proj", draft.eh_proj);
    layers("draft.layers.", draft.layers);
    present("draft.final_norm", draft.final_norm);
    present("draft.vocab_head", draft.vocab_head);
  }
  for (auto& drafter : graph.drafters) each_drafter_weight(drafter, present);
}

}  // namespace bolt
