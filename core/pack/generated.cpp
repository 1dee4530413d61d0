// The ranges of generated weights.
#include "core/pack/generated.h"

#include <cmath>

namespace bolt {

Spread generated_spread(std::string_view name, const Weight& weight) {
  const auto is = [&](std::string_view part) { return name.ends_with(part); };
  // Uniform over +-sqrt(3 / K) has variance 1 / K: outputs are as large as inputs.
  const float even = std::sqrt(3.0f / static_cast<float>(weight.n_cols));
  if (is("embedding")) return {-1.7f, 1.7f};
  if (is(".A")) return {-8.0f, -1.0f};        // A_log from 0 to about 2
  if (is(".dt_bias")) return {-5.0f, -2.0f};  // steps of about 0.007 to 0.13
  if (is(".D")) return {0.9f, 1.1f};
  if (is(".conv_w")) return {-0.6f, 0.6f};
  if (is(".conv_b") || is(".router_bias")) return {-0.05f, 0.05f};
  if (is("norm")) return {0.9f, 1.1f};
  if (is("lm_head") || is("vocab_head")) return {-2.5f * even, 2.5f * even};
  // What is added to the residual stays below it, so that deep models do not grow.
  const bool out = is("out_proj") || is("o_proj") || is("down_proj") || is("shared_down") ||
                   is("latent_up") || is("experts_down");
  return out ? Spread{-0.3f * even, 0.3f * even} : Spread{-even, even};
}

}  // namespace bolt
