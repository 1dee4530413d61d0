// The table of shapes.
#include "core/pack/shapes.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/pack/config.h"

namespace bolt {
namespace {

constexpr int kVocabulary = 131072;

struct MambaSizes {
  int n_heads, head_dim, d_state, n_groups;
};
struct AttentionSizes {
  int n_heads, n_kv_heads;
};
struct MoeSizes {
  int n_experts, top_k, d_expert, d_shared, d_latent;
  float factor;
};

struct Row {
  const char* name;
  const char* about;
  int d_model, vocab_size;
  std::int64_t context_limit;
  const char* pattern;
  const char* draft_pattern;
  MambaSizes mamba;
  AttentionSizes attention;
  int d_ff;
  MoeSizes moe;
};

constexpr Row kRows[] = {
    {"sample",
     "the sample model's shape: latent experts, MTP head",
     256,
     3200,
     8192,
     "MEM*EMEM*EME",
     "*E",
     {8, 64, 64, 2},
     {4, 1},
     256,
     {16, 4, 128, 256, 128, 2.5f}},
    {"dense-1b",
     "a small dense model with an MTP head, about 1 GB in q8",
     2048,
     32768,
     131072,
     "M-M-M-M*-M-M-M-M*-M-M-M-",
     "*-",
     {64, 64, 128, 8},
     {16, 4},
     8192,
     {}},
    {"dense-8b",
     "Nemotron-H-8B",
     4096,
     kVocabulary,
     131072,
     "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
     "",
     {128, 64, 128, 8},
     {32, 8},
     21504,
     {}},
    {"nano-4b",
     "Nemotron 3 Nano 4B",
     3136,
     kVocabulary,
     262144,
     "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
     "",
     {96, 80, 128, 8},
     {40, 8},
     12544,
     {}},
    {"nano-30b",
     "Nemotron 3 Nano 30B-A3B with the MTP head of Lightning",
     2688,
     kVocabulary,
     262144,
     "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
     "*E",
     {64, 64, 128, 8},
     {32, 2},
     1856,
     {128, 6, 1856, 3712, 0, 2.5f}},
    {"super-120b",
     "Nemotron 3 Super 120B-A12B: latent experts, MTP head",
     4096,
     kVocabulary,
     262144,
     "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
     "*E",
     {128, 64, 128, 8},
     {32, 2},
     2688,
     {512, 22, 2688, 5376, 1024, 5.0f}},
};

ModelFacts facts_of(const Row& row) {
  ModelFacts facts;
  facts.d_model = row.d_model;
  facts.vocab_size = row.vocab_size;
  facts.pattern = row.pattern;
  facts.draft_pattern = row.draft_pattern;
  facts.mamba2.n_heads = row.mamba.n_heads;
  facts.mamba2.head_dim = row.mamba.head_dim;
  facts.mamba2.d_state = row.mamba.d_state;
  facts.mamba2.n_ssm_groups = row.mamba.n_groups;
  facts.attention.n_heads = row.attention.n_heads;
  facts.attention.n_kv_heads = row.attention.n_kv_heads;
  facts.attention.head_dim = 128;
  Mlp mlp;
  mlp.d_ff = row.d_ff;
  Moe moe;
  moe.n_experts = row.moe.n_experts;
  moe.top_k = row.moe.top_k;
  moe.d_expert = row.moe.d_expert;
  moe.d_shared = row.moe.d_shared;
  moe.d_latent = row.moe.d_latent;
  moe.scaling_factor = row.moe.factor;
  const auto fill = [&](const std::string& pattern, std::vector<Mlp>& mlps,
                        std::vector<Moe>& moes) {
    for (const char kind : pattern) {
      if (kind == '-') mlps.push_back(mlp);
      if (kind == 'E') moes.push_back(moe);
    }
  };
  fill(facts.pattern, facts.mlps, facts.moes);
  fill(facts.draft_pattern, facts.draft_mlps, facts.draft_moes);
  return facts;
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

Shape find_shape(const std::string& name_or_config) {
  for (const Row& row : kRows) {
    if (name_or_config == row.name) return {row.name, row.about, facts_of(row), row.context_limit};
  }
  if (!is_regular_file(name_or_config)) {
    std::string names;
    for (const std::string& name : shape_names()) names += (names.empty() ? "" : ", ") + name;
    throw Error(Exit::usage, fmt::format("--make {}: no such shape, expected {} or a config.json",
                                         name_or_config, names));
  }
  CheckpointConfig config = read_config_file(name_or_config);
  if (!config.draft_declared) {
    config.facts.draft_pattern.clear();
    config.facts.draft_mlps.clear();
    config.facts.draft_moes.clear();
  }
  return {name_or_config, "", config.facts, config.model.context_limit};
}

}  // namespace bolt
