// From a model's sizes to the shape of every weight.
#include "core/pack/model_facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/printable.h"

namespace bolt {
namespace {

Weight shaped_weight(Format format, Layout layout, int n_matrices, int n_rows, int n_cols) {
  Weight w;
  w.format = format;
  w.layout = layout;
  w.n_matrices = n_matrices;
  w.n_rows = n_rows;
  w.n_cols = n_cols;
  return w;
}
Weight vector(int n) { return shaped_weight(Format::f32, Layout::plain, 1, 1, n); }
Weight linear(int n_rows, int n_cols, int n_matrices = 1) {
  return shaped_weight(Format::bf16, Layout::tiles, n_matrices, n_rows, n_cols);
}

Mamba2 shaped(Mamba2 m, int d_model) {
  m.in_proj = linear(m.d_in_proj(), d_model);
  m.conv_w = shaped_weight(Format::f32, Layout::plain, 1, m.d_conv(), m.conv_kernel);
  m.conv_b = vector(m.d_conv());
  m.A = vector(m.n_heads);
  m.D = vector(m.n_heads);
  m.dt_bias = vector(m.n_heads);
  m.gate_norm = vector(m.d_inner());
  m.out_proj = linear(d_model, m.d_inner());
  return m;
}

Attention shaped(Attention a, int d_model) {
  a.q_proj = linear(a.n_heads * a.head_dim, d_model);
  a.k_proj = linear(a.n_kv_heads * a.head_dim, d_model);
  a.v_proj = linear(a.n_kv_heads * a.head_dim, d_model);
  a.o_proj = linear(d_model, a.n_heads * a.head_dim);
  return a;
}

Mlp shaped(Mlp m, int d_model) {
  m.up_proj = linear(m.d_ff, d_model);
  m.down_proj = linear(d_model, m.d_ff);
  return m;
}

Moe shaped(Moe m, int d_model) {
  const int d_in = m.d_latent > 0 ? m.d_latent : d_model;
  m.router = linear(m.n_experts, d_model);
  m.router_bias = vector(m.n_experts);
  m.experts_up = linear(m.d_expert, d_in, m.n_experts);
  m.experts_down = linear(d_in, m.d_expert, m.n_experts);
  if (m.d_shared > 0) {
    m.shared_up = linear(m.d_shared, d_model);
    m.shared_down = linear(d_model, m.d_shared);
  }
  if (m.d_latent > 0) {
    m.latent_down = linear(m.d_latent, d_model);
    m.latent_up = linear(d_model, m.d_latent);
  }
  return m;
}

std::vector<Layer> shaped_layers(const ModelFacts& facts, const std::string& pattern,
                                 const std::vector<Mlp>& mlps, const std::vector<Moe>& moes) {
  std::vector<Layer> layers;
  std::size_t mlp = 0, moe = 0;
  for (const char kind : pattern) {
    Layer layer;
    layer.norm = vector(facts.d_model);
    switch (kind) {
      case 'M':
        layer.mixer = shaped(facts.mamba2, facts.d_model);
        break;
      case '*':
        layer.mixer = shaped(facts.attention, facts.d_model);
        break;
      case '-':
        layer.mixer = shaped(mlps.at(mlp++), facts.d_model);
        break;
      default:
        layer.mixer = shaped(moes.at(moe++), facts.d_model);
        break;
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// One check of a size against a range; the first failure throws.
class Checker {
 public:
  explicit Checker(const std::string& name) : name_(name) {}
  void range(const char* what, std::int64_t x, std::int64_t min, std::int64_t max) const {
    if (x < min || x > max) {
      throw Error(Exit::input,
                  fmt::format("{}: {} is {}, expected {} to {}", name_, what, x, min, max));
    }
  }
  void divides(const char* what, int n, const char* by, int d) const {
    if (n % d != 0) {
      throw Error(Exit::input, fmt::format("{}: {} is {}, expected a multiple of {}, {}", name_,
                                           what, n, by, d));
    }
  }
  void pattern(const char* what, const std::string& text, std::string_view letters) const {
    range(fmt::format("the number of {} layers", what).c_str(),
          static_cast<std::int64_t>(text.size()), 1, kLayersMax);
    const auto bad = text.find_first_not_of(letters);
    if (bad != std::string::npos) {
      throw Error(Exit::input, fmt::format("{}: {} layer {} is '{}', expected one of {}", name_,
                                           what, bad, printable(text.substr(bad, 1)), letters));
    }
  }
  void same(const char* what, std::size_t found, std::size_t expected) const {
    if (found != expected) {
      throw Error(Exit::input,
                  fmt::format("{}: {} is {}, expected {}", name_, what, found, expected));
    }
  }

 private:
  const std::string& name_;
};

std::size_t count(const std::string& pattern, char kind) {
  return static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), kind));
}

void check(const Checker& check, const Moe& m) {
  check.range("the number of experts", m.n_experts, 1, kExpertsMax);
  check.range("the expert width", m.d_expert, 1, kModelWidthMax);
  check.range("the shared expert width", m.d_shared, 0, kModelWidthMax);
  check.range("the latent width", m.d_latent, 0, kModelWidthMax);
  check.range("the number of router groups", m.n_router_groups, 1, m.n_experts);
  check.divides("the number of experts", m.n_experts, "the router groups", m.n_router_groups);
  check.range("the number of chosen router groups", m.top_k_groups, 1, m.n_router_groups);
  check.range("the number of chosen experts", m.top_k, 1,
              static_cast<std::int64_t>(m.n_experts) / m.n_router_groups * m.top_k_groups);
}

}  // namespace

Graph graph_skeleton(const ModelFacts& facts) {
  Graph graph;
  graph.d_model = facts.d_model;
  graph.vocab_size = facts.vocab_size;
  graph.norm_eps = facts.norm_eps;
  graph.embedding = shaped_weight(Format::bf16, Layout::plain, 1, facts.vocab_size, facts.d_model);
  graph.layers = shaped_layers(facts, facts.pattern, facts.mlps, facts.moes);
  graph.final_norm = vector(facts.d_model);
  graph.lm_head = linear(facts.vocab_size, facts.d_model);
  if (!facts.draft_pattern.empty()) {
    DraftHead draft;
    draft.enorm = vector(facts.d_model);
    draft.hnorm = vector(facts.d_model);
    draft.eh_proj = linear(facts.d_model, 2 * facts.d_model);
    draft.layers = shaped_layers(facts, facts.draft_pattern, facts.draft_mlps, facts.draft_moes);
    draft.final_norm = vector(facts.d_model);
    graph.draft = std::move(draft);
  }
  return graph;
}

void check_facts(const ModelFacts& facts, const std::string& name) {
  const Checker checker(name);
  checker.range("the model width", facts.d_model, 1, kModelWidthMax);
  checker.range("the vocabulary size", facts.vocab_size, 1, kVocabularyMax);
  if (!(facts.norm_eps > 0.0f && facts.norm_eps < 1.0f)) {
    throw Error(Exit::input,
                fmt::format("{}: the norm epsilon is {}, expected a number between 0 and 1", name,
                            facts.norm_eps));
  }
  checker.pattern("model", facts.pattern, "M*-E");
  if (!facts.draft_pattern.empty()) checker.pattern("draft head", facts.draft_pattern, "*-E");
  if (count(facts.pattern, 'M') > 0) {
    const Mamba2& m = facts.mamba2;
    checker.range("the number of Mamba heads", m.n_heads, 1, kModelWidthMax);
    checker.range("the Mamba head size", m.head_dim, 1, 4096);
    checker.range("the Mamba width", static_cast<std::int64_t>(m.n_heads) * m.head_dim, 1,
                  4 * kModelWidthMax);
    checker.range("the Mamba state size", m.d_state, 1, 4096);
    checker.range("the number of Mamba groups", m.n_ssm_groups, 1, m.n_heads);
    checker.divides("the number of Mamba heads", m.n_heads, "the Mamba groups", m.n_ssm_groups);
    checker.range("the conv kernel", m.conv_kernel, 2, 16);
    if (!(m.dt_min >= 0.0f) || !(m.dt_max >= 0.0f) || (m.dt_max > 0.0f && m.dt_max < m.dt_min)) {
      throw Error(Exit::input, fmt::format("{}: the time step limits are {} and {}, expected 0 <= "
                                           "least <= greatest",
                                           name, m.dt_min, m.dt_max));
    }
  }
  if (count(facts.pattern + facts.draft_pattern, '*') > 0) {
    const Attention& a = facts.attention;
    checker.range("the number of attention heads", a.n_heads, 1, 4096);
    checker.range("the number of key-value heads", a.n_kv_heads, 1, a.n_heads);
    checker.divides("the number of attention heads", a.n_heads, "the key-value heads",
                    a.n_kv_heads);
    checker.range("the attention head size", a.head_dim, 1, 1024);
  }
  checker.same("the number of MLP widths", facts.mlps.size(), count(facts.pattern, '-'));
  checker.same("the number of MoE layers' sizes", facts.moes.size(), count(facts.pattern, 'E'));
  checker.same("the number of draft MLP widths", facts.draft_mlps.size(),
               count(facts.draft_pattern, '-'));
  checker.same("the number of draft MoE layers' sizes", facts.draft_moes.size(),
               count(facts.draft_pattern, 'E'));
  for (const auto* list : {&facts.mlps, &facts.draft_mlps}) {
    for (const Mlp& m : *list) checker.range("the MLP width", m.d_ff, 1, 4 * kModelWidthMax);
  }
  for (const auto* list : {&facts.moes, &facts.draft_moes}) {
    for (const Moe& m : *list) check(checker, m);
  }
}

}  // namespace bolt
