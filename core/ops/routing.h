// Which experts a row goes to, and with what weights (§8). Running them is experts.cpp.
#pragma once

#include "core/pack/graph.h"

namespace bolt {

inline constexpr int kExpertsMax = 4096;

struct Choice {
  int expert = 0;
  float weight = 0.0f;
};

// Chooses moe.top_k experts from one row of router logits, in the order of the choice:
//   s = sigmoid(logit), by RN(s + bias) descending, id ascending; of the best router groups alone
//   if the model limits them; weights RN(s / RN(sum + 1e-20)) if normed, then RN(w * factor).
// False if a score is not finite: the row is marked, the choice is still the same everywhere.
bool route(const Moe& moe, const float* logits, Choice* choices);

}  // namespace bolt
