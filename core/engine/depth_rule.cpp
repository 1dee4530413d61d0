// The rule's arithmetic: doubles, no library function, so that it decides alike everywhere.
#include "core/engine/depth_rule.h"

#include <algorithm>

namespace bolt {
namespace {

constexpr double kLeastGain = 1.02;
constexpr int kFirstWait = 8, kLongestWait = 256;
constexpr int kCopyRows = 16;  // of the first copy: 15 drafts

}  // namespace

void Probation::judge(double gain) {
  if (gain >= kLeastGain) {
    wait_ = 0;
    return;
  }
  wait_ = wait_ == 0 ? kFirstWait : std::min(kLongestWait, 2 * wait_);
  left_ = wait_;
}

// Head rounds start as one right draft; copies as twice an ordinary round, so that both are tried.
DepthRule::DepthRule(const CostTable& costs)
    : costs_(costs),
      all_(2.0, costs.window(2) + costs.level(false)),
      head_(2.0, costs.window(2) + costs.level(false)),
      copy_(2.0 * costs.window(kCopyRows) / costs.window(1), costs.window(kCopyRows)) {}

bool DepthRule::asks_head(bool draft_vocab) const {
  if (head_probation_.sits_out()) return false;
  float price = 0.0f;
  price_drafts(draft_vocab, {&price, 1});
  return chain_goes_on(1.0f, price);
}

void DepthRule::price_drafts(bool draft_vocab, std::span<float> prices) const {
  const double rate = all_.value(), level = costs_.level(draft_vocab);
  for (int k = 0; k < static_cast<int>(prices.size()); ++k) {
    prices[static_cast<std::size_t>(k)] =
        static_cast<float>(rate * (window(k + 2) - window(k + 1) + level));
  }
}

int DepthRule::n_verified(std::span<const Draft> chain) const {
  const double rate = all_.value();
  float product = 1.0f;
  int k = 0;
  for (const Draft& draft : chain) {
    product *= draft.probability;
    if (!chain_goes_on(product, static_cast<float>(rate * (window(k + 2) - window(k + 1))))) break;
    ++k;
  }
  return k;
}

void DepthRule::learn(bool is_copy, bool draft_vocab, int n_levels, int n_drafts, int n_tokens) {
  const double cost = window(n_drafts + 1) + n_levels * costs_.level(draft_vocab);
  all_.add(n_tokens, cost);
  head_probation_.pass_round();
  copy_probation_.pass_round();
  if (is_copy) {
    copy_.add(n_tokens, cost);
    copy_probation_.judge(copy_.value() * window(1));
  } else if (n_levels > 0) {
    head_.add(n_tokens, cost);
    head_probation_.judge(head_.value() * window(1));
  }
}

}  // namespace bolt
