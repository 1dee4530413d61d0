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
      copy_(2.0 * costs.window(kCopyRows) / costs.window(1), costs.window(kCopyRows)) {
  make_convex();
}

void DepthRule::share(int n_sequences) {
  if (n_sequences == n_sequences_) return;
  n_sequences_ = n_sequences;
  scale_ = costs_.window(1) * n_sequences / costs_.window(n_sequences);
  make_convex();
}

void DepthRule::make_convex() {
  // From each corner to the one with the least slope, the farthest of equals.
  for (int from = 1; from < kWindowRowsMax;) {
    const auto slope_to = [&](int to) { return (window(to) - window(from)) / (to - from); };
    int corner = from + 1;
    for (int to = from + 2; to <= kWindowRowsMax; ++to) {
      if (slope_to(to) <= slope_to(corner)) corner = to;
    }
    const double slope = slope_to(corner);
    for (int r = from; r <= corner; ++r) {
      convex_[static_cast<std::size_t>(r)] = window(from) + slope * (r - from);
    }
    from = corner;
  }
  convex_.back() = window(kWindowRowsMax + 1);  // no window is that wide
}

bool DepthRule::asks_head(bool draft_vocab) const {
  if (head_probation_.sits_out()) return false;
  float price = 0.0f;
  price_drafts(draft_vocab, {&price, 1});
  return chain_goes_on(1.0f, price);
}

void DepthRule::price_drafts(bool draft_vocab, std::span<float> prices) const {
  const double level = costs_.level(draft_vocab) / n_sequences_;
  for (std::size_t k = 0; k < prices.size(); ++k) {
    prices[k] = static_cast<float>(rate() * (convex_[k + 2] - convex_[k + 1] + level));
  }
}

void DepthRule::price_rows(std::span<double> prices) const {
  for (std::size_t k = 0; k < prices.size(); ++k) {
    prices[k] = rate() * (window(static_cast<int>(k) + 1) - window(1));
  }
}

int DepthRule::n_verified(std::span<const Draft> chain) const {
  std::array<double, kWindowRowsMax> prices;
  price_rows(prices);
  return n_worth(chain.data(), static_cast<int>(chain.size()), prices.data());
}

void DepthRule::learn(bool is_copy, bool draft_vocab, int n_levels, int n_drafts, int n_tokens) {
  const double own = window(n_drafts + 1) - window(1) + window(1) / n_sequences_;
  const double cost = (own + n_levels * costs_.level(draft_vocab) / n_sequences_) * scale_;
  all_.add(n_tokens, cost);
  head_probation_.pass_round();
  copy_probation_.pass_round();
  if (is_copy) {
    copy_.add(n_tokens, cost);
    copy_probation_.judge(copy_.value() * costs_.window(1));
  } else if (n_levels > 0) {
    head_.add(n_tokens, cost);
    head_probation_.judge(head_.value() * costs_.window(1));
  }
}

}  // namespace bolt
