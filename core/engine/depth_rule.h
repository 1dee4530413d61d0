// How deep to draft: each draft is worth its price in modelled time, or is not made. Costs are
// modelled (cost_table.h), never the clock, so that counters repeat from run to run.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/cost_table.h"
#include "core/engine/model.h"

namespace bolt {

// Tokens over modelled cost, both smoothed with weight 1/8.
class SmoothedRate {
 public:
  SmoothedRate(double tokens, double cost) : tokens_(tokens), cost_(cost) {}
  void add(double tokens, double cost) {
    tokens_ += (tokens - tokens_) / 8;
    cost_ += (cost - cost_) / 8;
  }
  double value() const { return tokens_ / cost_; }

 private:
  double tokens_, cost_;
};

// What a source's rounds keep and cost. Kept is counted in likelihoods, which go up and down with
// the text and not with luck. A draft's likelihood, given that those before it are right, is its
// probability's square times the trust that such squares have earned: how many of the drafts whose
// predecessors were right were so themselves, for one that should have been.
class SourceRecord {
 public:
  // After a chain was made: how likely a draft is, as a rule, that follows right ones.
  void note(std::span<const Draft> chain);
  // After a round: P_k^2 of the drafts that it verified, and how many of them were kept.
  void add(std::span<const float> likely, int n_kept, double cost);
  double trust() const { return sum_kept_ / sum_due_; }
  double step() const { return sum_next_ / sum_before_; }
  // Expected of a round that verifies drafts of these P_k^2.
  double tokens(std::span<const float> likely) const;
  bool is_used() const { return n_rounds_ > 0; }
  double value() const { return tokens_ / cost_; }  // of one that is used

  static constexpr double kFirstStep = 0.85;  // what is taken for a step at first

 private:
  static constexpr double kDraftsBefore = 16.0;  // of which all is as it should be

  double tokens_ = 0.0, cost_ = 0.0;  // smoothed
  int n_rounds_ = 0;
  // Fading: of drafts whose predecessors were right, those that were so too and should have been;
  // and the likelihoods of drafts and of their predecessors.
  double sum_kept_ = kDraftsBefore, sum_due_ = kDraftsBefore;
  double sum_next_ = kFirstStep * kDraftsBefore, sum_before_ = kDraftsBefore;
};

// A source whose rounds gain less than 2% over ordinary ones sits out 16 rounds, then tries one;
// each failed try doubles the wait, to at most 256.
class Probation {
 public:
  bool sits_out() const { return left_ > 0; }
  void pass_round() {
    if (left_ > 0) --left_;
  }
  // After a round of the source. gain: its smoothed tokens over cost, ordinary rounds being 1.
  void judge(double gain);
  // Whether a wait is over and the try it led to is still to come.
  bool is_due() const { return wait_ > 0 && left_ == 0; }
  void end() { left_ = 0; }

 private:
  int wait_ = 0, left_ = 0;
};

// With R the smoothed tokens over cost of all rounds, V[r] the cost of r rows, L of a head level,
// P_k the probability of the first k drafts under the head, T the trust that its squares have
// earned and S how likely one more draft is as a rule: draft k+1 is made where for some m
//   T^k P_k^2 (T S + (T S)^2 + ... + (T S)^m) >= R (V[k+1+m] - V[k+1] + m L),
// so that a step of V (kernels take rows by the block) does not hide the cheap rows behind it; and
// of the drafts made, k are verified where P_1^2 + ... + P_k^2 - R (V[k+1] - V[1]) / M is largest,
// M the mean of T, ..., T^k.
//
// A separate drafter makes all its drafts in one pass of cost D[k]. With Q_j the smoothed P_j^2 of
// its blocks, the k drafts are asked for where
//   T Q_1 + ... + T^j Q_j - R (V[j+1] - V[1]) - R D[k], for the best j of 0..k,
// is largest; which of them are verified is decided as for the head.
//
// Of several sources the one with the most expected tokens over cost is asked; one that was not
// tried yet is taken to be as likely right as those that were, at its own costs. One that does
// worse than another sits out as if it did not pay, and is tried again now and then.
//
// Rounds that n sequences share: the call holds n rows before any draft, so V begins at n rows
// instead of one, a sequence pays an n-th of V[n] and of a level, and R counts in shares of V[n].
class DepthRule {
 public:
  explicit DepthRule(const CostTable& costs);
  // What follows is about rounds that so many sequences share; 1 at first.
  void share(int n_sequences);
  // R: tokens for a nanosecond of added rows.
  double rate() const { return all_.value() * scale_; }

  // Whether the head, or a separate drafter, is to be asked this round at all: not where even
  // drafts that are all right would not pay.
  bool asks_head(bool draft_vocab) const { return asks({}, draft_vocab); }
  bool asks(BlockKind kind) const { return asks(kind, false); }
  // Of the sources that ask, who is to be: none of `blocks` where it is the head.
  std::optional<BlockKind> best(bool head, BlockSet blocks) const;
  // How many drafts a separate drafter is to make, 1 to most.
  int n_made(BlockKind kind, int most) const;
  bool copies() const { return !copy_probation_.sits_out(); }
  // prices[k]: of drafting k+1, for k < prices.size().
  void price_drafts(bool draft_vocab, std::span<float> prices) const;
  // prices[k]: of verifying k drafts of the head or of a separate drafter, for k < prices.size().
  void price_rows(std::optional<BlockKind> block, std::span<double> prices) const;
  // How many of the chain's drafts are worth verifying.
  int n_verified(std::optional<BlockKind> block, std::span<const Draft> chain) const;
  // What the k-th draft (from 1) is expected to bring whose P_k^2 is this.
  float gain(std::optional<BlockKind> block, int k, float likely) const;

  // After a round that was ordinary or copied n_drafts, and kept n_kept of them.
  void learn(bool is_copy, int n_drafts, int n_kept);
  // After one that ran n_levels head levels; P_k^2 of the drafts that were verified.
  void learn_head(bool draft_vocab, int n_levels, std::span<const float> likely, int n_kept);
  // After one that had a separate drafter make so many drafts; and what it made.
  void learn_block(BlockKind kind, int n_made, std::span<const float> likely, int n_kept);
  void note(std::optional<BlockKind> block, std::span<const Draft> chain);

 private:
  // Who proposes chains: the head, then separate drafters by kind.
  struct Source {
    SourceRecord record;
    Probation probation;
  };
  static std::size_t index_of(std::optional<BlockKind> block) {
    return block ? 1 + static_cast<std::size_t>(*block) : 0;
  }
  // What a source promises: tokens over cost, of its rounds or of such as those of others.
  double promise(std::optional<BlockKind> block) const;
  bool asks(std::optional<BlockKind> block, bool draft_vocab) const;
  int most_drafts(std::optional<BlockKind> block) const;
  // What so many drafts cost to make, and a round that verifies so many that were made at a cost.
  double drafting(std::optional<BlockKind> block, bool draft_vocab, int n_drafts) const;
  double cost(int n_drafts, double made) const;
  void add(std::optional<BlockKind> block, double made, std::span<const float> likely, int n_kept);
  void judge(Source& source);
  void pass_round();
  // V, of this sequence's n_rows and one row of each other's.
  double window(int n_rows) const { return costs_.window(n_sequences_ - 1 + n_rows); }

  const CostTable costs_;
  int n_sequences_ = 1;
  double scale_ = 1.0;  // V[1] in an n-th of V[n]
  SmoothedRate all_, copy_;
  Probation copy_probation_;
  std::vector<Source> sources_;
  std::array<std::array<double, kDraftsMax>, 2> likely_{};  // Q, by kind
};

}  // namespace bolt
