#include "core/engine/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bolt::testing {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double softplus(double x) { return x > 30.0 ? x : std::log1p(std::exp(x)); }
double relu2(double x) { return x > 0.0 ? x * x : 0.0; }

Matrix zeros(std::size_t rows, int cols) {
  return Matrix(rows, std::vector<double>(static_cast<std::size_t>(cols), 0.0));
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
Matrix multiply(const Matrix& x, const Matrix& w) {
  Matrix y(x.size(), std::vector<double>(w.size()));
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t n = 0; n < w.size(); ++n) y[t][n] = dot(x[t], w[n]);
  }
  return y;
}
void add(Matrix& x, const Matrix& y) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

}  // namespace

Matrix Reference::weight(const std::string& name, int n_cols) const {
  const std::vector<double> v = values_(name);
  Matrix w;
  for (auto row = v.begin(); row < v.end(); row += n_cols) w.emplace_back(row, row + n_cols);
  return w;
}

Matrix Reference::apply(const Matrix& x, const std::string& name) const {
  return multiply(x, weight(name, static_cast<int>(x[0].size())));
}

Matrix Reference::norm(const Matrix& x, const std::string& name, int group) const {
  const std::vector<double> w = values_(name);
  Matrix y = x;
  for (std::vector<double>& row : y) {
    const std::size_t n = group > 0 ? static_cast<std::size_t>(group) : row.size();
    for (std::size_t first = 0; first < row.size(); first += n) {
      double ss = 0.0;
      for (std::size_t i = first; i < first + n; ++i) ss += row[i] * row[i];
      const double r = 1.0 / std::sqrt(ss / static_cast<double>(n) + s_.norm_eps);
      for (std::size_t i = first; i < first + n; ++i) row[i] *= r * w[i];
    }
  }
  return y;
}

Matrix Reference::embed(const std::vector<int>& ids) const {
  const Matrix table = weight("backbone.embeddings.weight", s_.d_model);
  Matrix x;
  for (const int id : ids) x.push_back(table[static_cast<std::size_t>(id)]);
  return x;
}

Matrix Reference::hidden(const std::vector<int>& ids) const {
  Matrix x = embed(ids);
  for (std::size_t i = 0; i < s_.pattern.size(); ++i) {
    const std::string prefix = "backbone.layers." + std::to_string(i) + ".";
    add(x, mixer(s_.pattern[i], prefix + "mixer.", norm(x, prefix + "norm.weight")));
  }
  return norm(x, "backbone.norm_f.weight");
}

Matrix Reference::logits(const Matrix& hidden) const { return apply(hidden, "lm_head.weight"); }

Matrix Reference::head(const Matrix& hidden, const std::vector<int>& next) const {
  Matrix both = norm(embed(next), "mtp.layers.0.enorm.weight");
  const Matrix h = norm(hidden, "mtp.layers.0.hnorm.weight");
  for (std::size_t t = 0; t < both.size(); ++t) {
    both[t].insert(both[t].end(), h[t].begin(), h[t].end());
  }
  Matrix x = apply(both, "mtp.layers.0.eh_proj.weight");
  const std::size_t n = s_.draft_pattern.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::string prefix = "mtp.layers." + std::to_string(i) + ".";
    add(x, mixer(s_.draft_pattern[i], prefix + "mixer.", norm(x, prefix + "norm.weight")));
  }
  return norm(x, "mtp.layers." + std::to_string(n - 1) + ".final_layernorm.weight");
}

Matrix Reference::mixer(char kind, const std::string& p, const Matrix& u) const {
  switch (kind) {
    case 'M':
      return mamba(p, u);
    case '*':
      return attention(p, u);
    case '-':
      return feed_forward(p + "up_proj.weight", p + "down_proj.weight", u);
    default:
      return moe(p, u);
  }
}

Matrix Reference::feed_forward(const std::string& up, const std::string& down,
                               const Matrix& u) const {
  Matrix wide = apply(u, up);
  for (auto& row : wide) std::transform(row.begin(), row.end(), row.begin(), relu2);
  return apply(wide, down);
}

Matrix Reference::mamba(const std::string& p, const Matrix& u) const {
  const int inner = s_.n_mamba_heads * s_.mamba_head_dim, gs = s_.n_ssm_groups * s_.d_state;
  const int conv = inner + 2 * gs;
  const Matrix in = apply(u, p + "in_proj.weight");
  const Matrix taps = weight(p + "conv1d.weight", s_.conv_kernel);
  const std::vector<double> bias = values_(p + "conv1d.bias"), a_log = values_(p + "A_log"),
                            skip = values_(p + "D"), dt_bias = values_(p + "dt_bias");
  std::vector<double> state(static_cast<std::size_t>(inner * s_.d_state), 0.0);
  Matrix y = zeros(u.size(), inner);
  for (int t = 0; t < static_cast<int>(u.size()); ++t) {
    std::vector<double> v(static_cast<std::size_t>(conv));
    for (int c = 0; c < conv; ++c) {
      double sum = bias[static_cast<std::size_t>(c)];
      for (int k = 0; k < s_.conv_kernel; ++k) {
        const int from = t - s_.conv_kernel + 1 + k;
        if (from >= 0) sum += taps[c][k] * in[from][inner + c];
      }
      v[static_cast<std::size_t>(c)] = silu(sum);
    }
    for (int h = 0; h < s_.n_mamba_heads; ++h) {
      double dt = softplus(in[t][inner + conv + h] + dt_bias[h]);
      if (s_.dt_max > 0.0) dt = std::clamp(dt, s_.dt_min, s_.dt_max);
      const double decay = std::exp(-dt * std::exp(a_log[h]));
      const int g = h / (s_.n_mamba_heads / s_.n_ssm_groups);
      for (int d = 0; d < s_.mamba_head_dim; ++d) {
        const int i = h * s_.mamba_head_dim + d;
        double out = skip[h] * v[i];
        for (int n = 0; n < s_.d_state; ++n) {
          double& cell = state[static_cast<std::size_t>(i * s_.d_state + n)];
          cell = cell * decay + dt * v[i] * v[inner + g * s_.d_state + n];
          out += cell * v[inner + gs + g * s_.d_state + n];
        }
        y[t][i] = out * silu(in[t][i]);
      }
    }
  }
  return apply(norm(y, p + "norm.weight", inner / s_.n_ssm_groups), p + "out_proj.weight");
}

Matrix Reference::attention(const std::string& p, const Matrix& u) const {
  const Matrix q = apply(u, p + "q_proj.weight"), k = apply(u, p + "k_proj.weight"),
               v = apply(u, p + "v_proj.weight");
  Matrix y = zeros(u.size(), s_.n_heads * s_.head_dim);
  for (int t = 0; t < static_cast<int>(u.size()); ++t) {
    for (int h = 0; h < s_.n_heads; ++h) {
      const int kv = h / (s_.n_heads / s_.n_kv_heads) * s_.head_dim, at = h * s_.head_dim;
      std::vector<double> score(static_cast<std::size_t>(t + 1), 0.0);
      for (int j = 0; j <= t; ++j) {
        for (int d = 0; d < s_.head_dim; ++d) score[j] += q[t][at + d] * k[j][kv + d];
        score[j] /= std::sqrt(s_.head_dim);
      }
      const double most = *std::max_element(score.begin(), score.end());
      double total = 0.0;
      for (double& s : score) total += s = std::exp(s - most);
      for (int j = 0; j <= t; ++j) {
        for (int d = 0; d < s_.head_dim; ++d) y[t][at + d] += score[j] / total * v[j][kv + d];
      }
    }
  }
  return apply(y, p + "o_proj.weight");
}

Matrix Reference::moe(const std::string& p, const Matrix& u) const {
  const Matrix choice_logits = apply(u, p + "gate.weight");
  const std::vector<double> bias = values_(p + "gate.e_score_correction_bias");
  const Matrix inputs = s_.d_latent > 0 ? apply(u, p + "fc1_latent_proj.weight") : u;
  Matrix routed = zeros(u.size(), static_cast<int>(inputs[0].size()));
  for (std::size_t t = 0; t < u.size(); ++t) {
    std::vector<double> s, c;
    for (int e = 0; e < s_.n_experts; ++e) {
      s.push_back(sigmoid(choice_logits[t][e]));
      c.push_back(s.back() + bias[e]);
    }
    const int group_size = s_.n_experts / s_.n_router_groups;
    std::vector<std::pair<double, int>> groups;
    for (int g = 0; g < s_.n_router_groups; ++g) {
      std::vector<double> of(c.begin() + g * group_size, c.begin() + (g + 1) * group_size);
      std::sort(of.rbegin(), of.rend());
      groups.push_back({-(of[0] + (group_size > 1 ? of[1] : 0.0)), g});
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, int>> allowed;
    for (int i = 0; i < s_.top_k_groups; ++i) {
      for (int e = 0; e < group_size; ++e) {
        const int id = groups[i].second * group_size + e;
        allowed.push_back({-c[id], id});
      }
    }
    std::sort(allowed.begin(), allowed.end());
    allowed.resize(static_cast<std::size_t>(s_.top_k));
    double total = 0.0;
    for (const auto& [unused, e] : allowed) total += s[e];
    for (const auto& [unused, e] : allowed) {
      const double weight = (s_.norm_top_k ? s[e] / (total + 1e-20) : s[e]) * s_.scaling_factor;
      const std::string expert = p + "experts." + std::to_string(e) + ".";
      const Matrix out =
          feed_forward(expert + "up_proj.weight", expert + "down_proj.weight", {inputs[t]});
      for (std::size_t i = 0; i < out[0].size(); ++i) routed[t][i] += weight * out[0][i];
    }
  }
  if (s_.d_latent > 0) routed = apply(routed, p + "fc2_latent_proj.weight");
  if (s_.d_shared > 0) {
    add(routed, feed_forward(p + "shared_experts.up_proj.weight",
                             p + "shared_experts.down_proj.weight", u));
  }
  return routed;
}

}  // namespace bolt::testing
