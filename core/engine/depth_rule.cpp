// The rule's arithmetic: doubles, no library function, so that it decides alike everywhere.
#include "core/engine/depth_rule.h"

#include <algorithm>

namespace bolt {
namespace {

constexpr double kLeastGain = 1.02;
constexpr int kFirstWait = 8, kLongestWait = 256;
constexpr int kCopyRows = 16;  // of the first copy: 15 drafts
// What is taken for the square of the probability of a draft that no block was asked for yet, in
// parts of its predecessor's.
constexpr double kNextLikely = 0.75;

// Of a first round: the cheapest source's.
double first_cost(const CostTable& costs) {
  double least = costs.level(false);
  for (const BlockKind kind : kBlockKinds) {
    if (costs.block_drafts(kind) == 0) continue;
    least = least > 0.0 ? std::min(least, costs.block(kind, 1)) : costs.block(kind, 1);
  }
  return least;
}

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
      all_(2.0, costs.window(2) + first_cost(costs)),
      copy_(2.0 * costs.window(kCopyRows) / costs.window(1), costs.window(kCopyRows)) {
  sources_.push_back({{2.0, costs.window(2) + costs.level(false)}, {}, false});
  for (const BlockKind kind : kBlockKinds) {
    const double block = costs.block_drafts(kind) > 0 ? costs.block(kind, 1) : 0.0;
    sources_.push_back({{2.0, costs.window(2) + block}, {}, false});
    double likely = 1.0;
    for (double& q : likely_[static_cast<std::size_t>(kind)]) q = likely *= kNextLikely;
  }
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
  if (sources_[0].probation.sits_out()) return false;
  float price = 0.0f;
  price_drafts(draft_vocab, {&price, 1});
  return chain_goes_on(1.0f, price);
}

// Where not even right drafts would pay, nobody is asked.
bool DepthRule::asks(BlockKind kind) const {
  const int most = costs_.block_drafts(kind);
  if (most == 0 || sources_[index_of(kind)].probation.sits_out()) return false;
  for (int k = 1; k <= most; ++k) {
    const double cost = convex_[static_cast<std::size_t>(k) + 1] - convex_[1] +
                        costs_.block(kind, k) / n_sequences_;
    if (k >= rate() * cost) return true;
  }
  return false;
}

std::optional<BlockKind> DepthRule::best(bool head, BlockSet blocks) const {
  std::optional<BlockKind> best;
  const Source* source = head ? &sources_[0] : nullptr;
  for (const BlockKind kind : kBlockKinds) {
    if (!blocks[kind]) continue;
    const Source& other = sources_[index_of(kind)];
    const bool better = source == nullptr ||
                        (other.probation.is_due() && !source->probation.is_due()) ||
                        (other.probation.is_due() == source->probation.is_due() &&
                         other.rate.value() > source->rate.value());
    if (better) source = &other, best = kind;
  }
  return best;
}

int DepthRule::n_made(BlockKind kind, int most) const {
  most = std::min(most, costs_.block_drafts(kind));
  int n_best = 1;
  double gain = 0.0, best = 0.0;
  for (int k = 1; k <= most; ++k) {
    const auto at = static_cast<std::size_t>(k);
    gain += std::max(0.0, likely_[static_cast<std::size_t>(kind)][at - 1] -
                              rate() * (convex_[at + 1] - convex_[at]));
    const double worth = gain - rate() * costs_.block(kind, k) / n_sequences_;
    if (k == 1 || worth >= best) best = worth, n_best = k;
  }
  return n_best;
}

void DepthRule::note(BlockKind kind, std::span<const Draft> chain) {
  auto& likely = likely_[static_cast<std::size_t>(kind)];
  double product = 1.0, before = 1.0;
  for (std::size_t k = 0; k < likely.size(); ++k) {
    if (k < chain.size()) product *= static_cast<double>(chain[k].probability);
    const double seen = k < chain.size() ? product * product : before * kNextLikely;
    likely[k] += (seen - likely[k]) / 8;
    before = seen;
  }
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

void DepthRule::pass_round() {
  for (Source& source : sources_) source.probation.pass_round();
  copy_probation_.pass_round();
}

// A source that another one beats sits out, too; the better one need not wait for its own turn.
void DepthRule::judge(Source& source) {
  source.is_used = true;
  double gain = source.rate.value() * costs_.window(1);
  for (Source& other : sources_) {
    if (&other == &source || !other.is_used || other.rate.value() <= source.rate.value()) continue;
    if (other.rate.value() * costs_.window(1) < kLeastGain) continue;
    gain = 0.0;
    other.probation.end();
  }
  source.probation.judge(gain);
}

void DepthRule::learn(bool is_copy, bool draft_vocab, int n_levels, int n_drafts, int n_tokens) {
  const double own = window(n_drafts + 1) - window(1) + window(1) / n_sequences_;
  const double cost = (own + n_levels * costs_.level(draft_vocab) / n_sequences_) * scale_;
  all_.add(n_tokens, cost);
  pass_round();
  if (is_copy) {
    copy_.add(n_tokens, cost);
    copy_probation_.judge(copy_.value() * costs_.window(1));
  } else if (n_levels > 0) {
    sources_[0].rate.add(n_tokens, cost);
    judge(sources_[0]);
  }
}

void DepthRule::learn_block(BlockKind kind, int n_made, int n_drafts, int n_tokens) {
  const double own = window(n_drafts + 1) - window(1) + window(1) / n_sequences_;
  const double cost = (own + costs_.block(kind, n_made) / n_sequences_) * scale_;
  all_.add(n_tokens, cost);
  pass_round();
  Source& source = sources_[index_of(kind)];
  source.rate.add(n_tokens, cost);
  judge(source);
}

}  // namespace bolt
