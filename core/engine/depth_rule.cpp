// The rule's arithmetic: doubles, no library function, so that it decides alike everywhere.
#include "core/engine/depth_rule.h"

#include <algorithm>

namespace bolt {
namespace {

constexpr double kLeastGain = 1.02;
constexpr int kFirstWait = 16, kLongestWait = 256;
constexpr int kCopyRows = 16;  // of the first copy: 15 drafts
// What is taken for the square of the probability of a draft that no block was asked for yet, in
// parts of its predecessor's.
constexpr double kNextLikely = 0.75;
// What one round weighs, in what follows the text and in what follows a source's honesty.
constexpr double kSmoothing = 1.0 / 8, kFading = 1.0 / 64;

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

void SourceRecord::note(std::span<const Draft> chain) {
  if (chain.empty()) return;
  double product = 1.0, next = 0.0, before = 0.0;
  for (const Draft& draft : chain) {
    before += product * product;
    product *= static_cast<double>(draft.probability);
    next += product * product;
  }
  sum_next_ += next - (sum_next_ - kFirstStep * kDraftsBefore) * kFading;
  sum_before_ += before - (sum_before_ - kDraftsBefore) * kFading;
}

void SourceRecord::add(std::span<const float> likely, int n_kept, double cost) {
  double due = 0.0, before = 1.0;
  for (std::size_t k = 0; k < likely.size() && static_cast<int>(k) <= n_kept; ++k) {
    const auto here = static_cast<double>(likely[k]);
    if (before > 0.0) due += here / before;
    before = here;
  }
  sum_kept_ += n_kept - (sum_kept_ - kDraftsBefore) * kFading;
  sum_due_ += due - (sum_due_ - kDraftsBefore) * kFading;
  ++n_rounds_;
  const double weight = std::max(kSmoothing, 1.0 / n_rounds_);
  tokens_ += (tokens(likely) - tokens_) * weight;
  cost_ += (cost - cost_) * weight;
}

double SourceRecord::tokens(std::span<const float> likely) const {
  double sum = 1.0, trust_here = 1.0;
  for (const float p : likely) {
    trust_here *= trust();
    sum += std::min(1.0, trust_here * static_cast<double>(p));
  }
  return sum;
}

void Probation::judge(double gain) {
  if (gain >= kLeastGain) {
    wait_ = 0;
    return;
  }
  wait_ = wait_ == 0 ? kFirstWait : std::min(kLongestWait, 2 * wait_);
  left_ = wait_;
}

// Rounds start as ones of one right draft; copies as twice an ordinary round, so that they are
// tried.
DepthRule::DepthRule(const CostTable& costs)
    : costs_(costs),
      all_(2.0, costs.window(2) + first_cost(costs)),
      copy_(2.0 * costs.window(kCopyRows) / costs.window(1), costs.window(kCopyRows)) {
  sources_.resize(1 + kBlockKinds.size());
  for (auto& likely : likely_) {
    double product = 1.0;
    for (double& q : likely) q = product *= kNextLikely;
  }
}

void DepthRule::share(int n_sequences) {
  if (n_sequences == n_sequences_) return;
  n_sequences_ = n_sequences;
  scale_ = costs_.window(1) * n_sequences / costs_.window(n_sequences);
}

int DepthRule::most_drafts(std::optional<BlockKind> block) const {
  return block ? costs_.block_drafts(*block) : kDraftsMax;
}

double DepthRule::drafting(std::optional<BlockKind> block, bool draft_vocab, int n_drafts) const {
  return block ? costs_.block(*block, n_drafts) : n_drafts * costs_.level(draft_vocab);
}

bool DepthRule::asks(std::optional<BlockKind> block, bool draft_vocab) const {
  if (sources_[index_of(block)].probation.sits_out()) return false;
  for (int k = 1; k <= most_drafts(block); ++k) {
    const double made = drafting(block, draft_vocab, k) / n_sequences_;
    if (k >= rate() * (window(k + 1) - window(1) + made)) return true;
  }
  return false;
}

double DepthRule::promise(std::optional<BlockKind> block) const {
  const SourceRecord& record = sources_[index_of(block)].record;
  if (record.is_used()) return record.value();
  double step = SourceRecord::kFirstStep, value = 0.0;
  for (const Source& other : sources_) {
    if (!other.record.is_used() || other.record.value() <= value) continue;
    step = other.record.step();
    value = other.record.value();
  }
  double next = 1.0, tokens = 1.0, best = 0.0;
  for (int k = 1; k <= most_drafts(block); ++k) {
    tokens += next *= step;
    best = std::max(best, tokens / cost(k, drafting(block, false, k)));
  }
  return best / kLeastGain;  // it is better to know
}

std::optional<BlockKind> DepthRule::best(bool head, BlockSet blocks) const {
  std::optional<BlockKind> best;
  bool found = head;
  for (const BlockKind kind : kBlockKinds) {
    if (!blocks[kind]) continue;
    const bool due = sources_[index_of(kind)].probation.is_due();
    const bool best_due = found && sources_[index_of(best)].probation.is_due();
    if (!found || (due && !best_due) || (due == best_due && promise(kind) > promise(best))) {
      best = kind;
      found = true;
    }
  }
  return best;
}

int DepthRule::n_made(BlockKind kind, int most) const {
  most = std::min(most, costs_.block_drafts(kind));
  const double trust = sources_[index_of(kind)].record.trust();
  int n_best = 1;
  double trust_here = 1.0, likely = 0.0, gain = 0.0, best = 0.0;
  for (int k = 1; k <= most; ++k) {
    trust_here *= trust;
    likely += trust_here * likely_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(k) - 1];
    gain = std::max(gain, likely - rate() * (window(k + 1) - window(1)));
    const double worth = gain - rate() * costs_.block(kind, k) / n_sequences_;
    if (k == 1 || worth >= best) best = worth, n_best = k;
  }
  return n_best;
}

void DepthRule::note(std::optional<BlockKind> block, std::span<const Draft> chain) {
  sources_[index_of(block)].record.note(chain);
  if (!block) return;
  auto& likely = likely_[static_cast<std::size_t>(*block)];
  double product = 1.0, before = 1.0;
  for (std::size_t k = 0; k < likely.size(); ++k) {
    if (k < chain.size()) product *= static_cast<double>(chain[k].probability);
    const double seen = k < chain.size() ? product * product : before * kNextLikely;
    likely[k] += (seen - likely[k]) * kSmoothing;
    before = seen;
  }
}

void DepthRule::price_drafts(bool draft_vocab, std::span<float> prices) const {
  const SourceRecord& record = sources_[0].record;
  const double level = costs_.level(draft_vocab) / n_sequences_,
               step = record.trust() * record.step();
  double trust_here = 1.0;  // T^k
  for (int k = 0; k < static_cast<int>(prices.size()); ++k, trust_here *= record.trust()) {
    double likely = 0.0, next = trust_here, least = 0.0;
    for (int m = 1; m == 1 || k + m <= kDraftsMax; ++m) {
      likely += next *= step;
      const double price = (window(k + 1 + m) - window(k + 1) + m * level) / likely;
      if (m == 1 || price < least) least = price;
    }
    // Who is asked makes one at least, whose probability may be a surprise.
    prices[static_cast<std::size_t>(k)] = k == 0 ? 0.0f : static_cast<float>(rate() * least);
  }
}

void DepthRule::price_rows(std::optional<BlockKind> block, std::span<double> prices) const {
  const double trust = sources_[index_of(block)].record.trust();
  double trust_here = 1.0, sum = 0.0;  // T^k, T + ... + T^k
  prices[0] = 0.0;
  for (std::size_t k = 1; k < prices.size(); ++k) {
    sum += trust_here *= trust;
    prices[k] =
        rate() * (window(static_cast<int>(k) + 1) - window(1)) * static_cast<double>(k) / sum;
  }
}

int DepthRule::n_verified(std::optional<BlockKind> block, std::span<const Draft> chain) const {
  std::array<double, kWindowRowsMax> prices;
  price_rows(block, prices);
  return n_worth(chain.data(), static_cast<int>(chain.size()), prices.data());
}

float DepthRule::gain(std::optional<BlockKind> block, int k, float likely) const {
  const double trust = sources_[index_of(block)].record.trust();
  double believed = static_cast<double>(likely);
  for (int i = 0; i < k; ++i) believed *= trust;
  return static_cast<float>(std::min(1.0, believed));
}

void DepthRule::pass_round() {
  for (Source& source : sources_) source.probation.pass_round();
  copy_probation_.pass_round();
}

// A source that another one beats sits out, too; the better one need not wait for its own turn.
void DepthRule::judge(Source& source) {
  double gain = source.record.value() * costs_.window(1);
  for (Source& other : sources_) {
    if (&other == &source || !other.record.is_used()) continue;
    if (other.record.value() <= source.record.value()) continue;
    if (other.record.value() * costs_.window(1) < kLeastGain) continue;
    gain = 0.0;
    other.probation.end();
  }
  source.probation.judge(gain);
}

double DepthRule::cost(int n_drafts, double made) const {
  const double own = window(n_drafts + 1) - window(1) + window(1) / n_sequences_;
  return (own + made / n_sequences_) * scale_;
}

void DepthRule::add(std::optional<BlockKind> block, double made, std::span<const float> likely,
                    int n_kept) {
  Source& source = sources_[index_of(block)];
  const double spent = cost(static_cast<int>(likely.size()), made);
  source.record.add(likely, n_kept, spent);
  all_.add(source.record.tokens(likely), spent);
  pass_round();
  judge(source);
}

void DepthRule::learn(bool is_copy, int n_drafts, int n_kept) {
  const double spent = cost(n_drafts, 0.0);
  all_.add(n_kept + 1, spent);
  pass_round();
  if (!is_copy) return;
  copy_.add(n_kept + 1, spent);
  copy_probation_.judge(copy_.value() * costs_.window(1));
}

void DepthRule::learn_head(bool draft_vocab, int n_levels, std::span<const float> likely,
                           int n_kept) {
  add({}, drafting({}, draft_vocab, n_levels), likely, n_kept);
}

void DepthRule::learn_block(BlockKind kind, int n_made, std::span<const float> likely, int n_kept) {
  add(kind, drafting(kind, false, n_made), likely, n_kept);
}

}  // namespace bolt
