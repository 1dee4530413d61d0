// What a model is, under normalised names: kinds of layers and their sizes. From it every weight's
// shape follows (graph_skeleton). Reading a checkpoint's config.json is checkpoint_config.h.
#pragma once

#include <string>
#include <vector>

#include "core/pack/graph.h"

namespace bolt {

// Limits that keep every product of sizes inside 64 bits and every index inside an int.
inline constexpr int kModelWidthMax = 1 << 17;  // d_model, head counts, widths of one layer
inline constexpr int kVocabularyMax = 1 << 22;
inline constexpr int kExpertsMax = 1 << 12;
inline constexpr int kLayersMax = 1 << 12;

// The sizes inside these nodes are set; their weights are empty.
struct ModelFacts {
  int d_model = 0, vocab_size = 0;
  float norm_eps = 1e-5f;
  bool tied_embedding = false;  // the head reads the embedding's rows
  // One letter a layer: M mamba2, * attention, - mlp, E moe.
  std::string pattern;
  std::string draft_pattern;  // of the MTP head, empty if there is none
  Mamba2 mamba2;
  Attention attention;
  // One a layer of that kind, in order; the draft head's own behind them.
  std::vector<Mlp> mlps, draft_mlps;
  std::vector<Moe> moes, draft_moes;
};

// The graph with every size and shape set and no bytes: formats f32 for vectors, bf16 elsewhere.
Graph graph_skeleton(const ModelFacts& facts);

// Throws Error(input), starting with `name`, if sizes are out of range or do not divide.
void check_facts(const ModelFacts& facts, const std::string& name);

}  // namespace bolt
