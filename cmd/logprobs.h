// Log-probabilities of an emitted token and of its likeliest rivals, from the model's own logits
// (no temperature, no filter), by the contract's exp and log: equal logits give equal bits.
#pragma once

#include <span>
#include <vector>

namespace bolt {

struct TokenLogprob {
  int id = 0;
  float logprob = 0.0f;
};

struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // likeliest first, the lower id of equals
};

// logits of one position; ids at or past n_vocab have no share. n_top >= 0 alternatives.
Logprobs logprobs_of(int id, std::span<const float> logits, int n_vocab, int n_top);

}  // namespace bolt
