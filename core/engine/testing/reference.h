// Nemotron-H in float64 from a checkpoint's own tensors: the plain recurrence and the plain
// softmax, whole sequences at once. Shares no code with the engine, so that both can be wrong only
// apart.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace bolt::testing {

using Matrix = std::vector<std::vector<double>>;  // [row][column]

struct ReferenceShape {
  std::string pattern;        // M E * -
  std::string draft_pattern;  // empty: no head
  int d_model = 0, vocab_size = 0;
  int n_mamba_heads = 0, mamba_head_dim = 0, d_state = 0, n_ssm_groups = 0, conv_kernel = 4;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int n_experts = 0, top_k = 0, n_router_groups = 1, top_k_groups = 1;
  int d_latent = 0, d_shared = 0;
  bool norm_top_k = true;
  double scaling_factor = 1.0, norm_eps = 1e-5;
  double dt_min = 0.0, dt_max = 0.0;  // dt_max 0: no clamp
};

class Reference {
 public:
  // values(name): a tensor's elements, row-major, under its checkpoint name (backbone.*, mtp.*).
  using Values = std::function<std::vector<double>(const std::string& name)>;
  Reference(ReferenceShape shape, Values values)
      : s_(std::move(shape)), values_(std::move(values)) {}

  // Hidden rows after the final norm, for every position.
  Matrix hidden(const std::vector<int>& ids) const;
  Matrix logits(const Matrix& hidden) const;
  // The head's outputs for pairs (hidden[t], next[t]).
  Matrix head(const Matrix& hidden, const std::vector<int>& next) const;

 private:
  Matrix weight(const std::string& name, int n_cols) const;
  Matrix norm(const Matrix& x, const std::string& name, int group = 0) const;
  Matrix apply(const Matrix& x, const std::string& name) const;
  Matrix embed(const std::vector<int>& ids) const;
  Matrix mixer(char kind, const std::string& prefix, const Matrix& u) const;
  Matrix mamba(const std::string& p, const Matrix& u) const;
  Matrix attention(const std::string& p, const Matrix& u) const;
  Matrix moe(const std::string& p, const Matrix& u) const;
  Matrix feed_forward(const std::string& up, const std::string& down, const Matrix& u) const;

  const ReferenceShape s_;
  const Values values_;
};

}  // namespace bolt::testing
