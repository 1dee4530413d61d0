// Routing of one row to its experts (§8): sigmoid scores, router groups, top-k, weights.
#include "core/ops/routing.h"

#include <limits>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"

namespace bolt {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

// The index of the largest key, the lowest of equals. Keys hold no NaN.
int best_of(const float* keys, int n) {
  int best = 0;
  for (int i = 1; i < n; ++i) {
    if (keys[i] > keys[best]) best = i;
  }
  return best;
}

// The two largest keys of a router group, added larger first; the one key of a group of one.
float group_score(const float* keys, int n) {
  float first = kOut, second = kOut;
  for (int i = 0; i < n; ++i) {
    if (keys[i] > first) {
      second = first;
      first = keys[i];
    } else if (keys[i] > second) {
      second = keys[i];
    }
  }
  return n == 1 ? first : first + second;
}

// Leaves the keys of the best router groups, the others are out.
void limit_groups(const Moe& moe, float* keys) {
  const int n_groups = moe.n_router_groups, size = moe.n_experts / n_groups;
  float scores[kExpertsMax];
  bool kept[kExpertsMax] = {};
  for (int group = 0; group < n_groups; ++group)
    scores[group] = group_score(keys + group * size, size);
  for (int i = 0; i < moe.top_k_groups; ++i) {
    int best = -1;
    for (int group = 0; group < n_groups; ++group) {
      if (!kept[group] && (best < 0 || scores[group] > scores[best])) best = group;
    }
    kept[best] = true;
  }
  for (int expert = 0; expert < moe.n_experts; ++expert) {
    if (!kept[expert / size]) keys[expert] = kOut;
  }
}

}  // namespace

bool route(const Moe& moe, const float* logits, Choice* choices) {
  require(moe.n_experts <= kExpertsMax && moe.top_k >= 1 && moe.top_k <= moe.n_experts,
          "a router's experts are within bounds");
  const float* bias = moe.router_bias.as_f32();
  float scores[kExpertsMax], keys[kExpertsMax];
  bool finite = true;
  for (int expert = 0; expert < moe.n_experts; ++expert) {
    scores[expert] = exact_sigmoid(logits[expert]);
    const float key = scores[expert] + bias[expert];
    finite &= is_finite(key) && is_finite(logits[expert]);
    keys[expert] = key == key ? key : kOut;
  }
  if (moe.n_router_groups > 1) {
    require(moe.n_experts % moe.n_router_groups == 0 && moe.top_k_groups >= 1 &&
                moe.top_k_groups <= moe.n_router_groups,
            "router groups divide the experts");
    limit_groups(moe, keys);
  }
  float sum = 0.0f;
  bool taken[kExpertsMax] = {};
  for (int i = 0; i < moe.top_k; ++i) {
    int best = best_of(keys, moe.n_experts);
    if (taken[best]) {  // all that is left is out: the lowest id that was not taken
      for (best = 0; taken[best];) ++best;
    }
    choices[i] = {best, scores[best]};
    taken[best] = true;
    keys[best] = kOut;
    sum = sum + scores[best];
  }
  for (int i = 0; i < moe.top_k; ++i) {
    float& weight = choices[i].weight;
    if (moe.norm_top_k) weight = exact_div(weight, sum + 1e-20f);
    weight = weight * moe.scaling_factor;
  }
  return finite;
}

}  // namespace bolt
