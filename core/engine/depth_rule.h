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

// A source whose rounds gain less than 2% over ordinary ones sits out 8 rounds, then tries one;
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

// With R the smoothed tokens over cost of all rounds, V[r] the cost of r rows, L of a head level
// and P_k the probability of the first k drafts under the head:
//   draft k+1 is made while P_k^2 >= R (W[k+2] - W[k+1] + L)
//   and of those made, k are verified where P_1^2 + ... + P_k^2 - R (V[k+1] - V[1]) is largest.
// W is the greatest convex function below V, so that a step of V (kernels take rows by the block)
// stops a chain no sooner than the cheap rows behind the step allow. Where V is convex this is the
// rule "verify draft k while P_k^2 >= R (V[k+1] - V[k])".
//
// A separate drafter makes all its drafts in one pass of cost D[k]. With Q_j the smoothed P_j^2 of
// its blocks, the k drafts are asked for where
//   max(0, Q_1 - R (W[2] - W[1])) + ... + max(0, Q_k - R (W[k+1] - W[k])) - R D[k]
// is largest; which of them are verified is decided as for the head.
//
// Of several sources the one with the most smoothed tokens over cost is asked. One that does worse
// than another sits out as if it did not pay, and is tried again now and then.
//
// Rounds that n sequences share: the call holds n rows before any draft, so V and W begin at n rows
// instead of one, a sequence pays an n-th of V[n] and of a level, and R counts in shares of V[n].
class DepthRule {
 public:
  explicit DepthRule(const CostTable& costs);
  // What follows is about rounds that so many sequences share; 1 at first.
  void share(int n_sequences);
  // R: tokens for a nanosecond of added rows.
  double rate() const { return all_.value() * scale_; }

  // Whether the head is to be asked this round at all.
  bool asks_head(bool draft_vocab) const;
  bool asks(BlockKind kind) const;
  // Of the sources that ask, who is to be: none of `blocks` where it is the head.
  std::optional<BlockKind> best(bool head, BlockSet blocks) const;
  // How many drafts a separate drafter is to make, 1 to most.
  int n_made(BlockKind kind, int most) const;
  bool copies() const { return !copy_probation_.sits_out(); }
  // prices[k]: of drafting k+1, for k < prices.size().
  void price_drafts(bool draft_vocab, std::span<float> prices) const;
  // prices[k]: of verifying k drafts, for k < prices.size().
  void price_rows(std::span<double> prices) const;
  // How many of the chain's drafts are worth verifying.
  int n_verified(std::span<const Draft> chain) const;

  // After a round that ran n_levels head levels, verified n_drafts and kept n_tokens.
  void learn(bool is_copy, bool draft_vocab, int n_levels, int n_drafts, int n_tokens);
  // After one that had a separate drafter make so many drafts; and what it made.
  void learn_block(BlockKind kind, int n_made, int n_drafts, int n_tokens);
  void note(BlockKind kind, std::span<const Draft> chain);

 private:
  // Who proposes chains: the head, then separate drafters by kind.
  struct Source {
    SmoothedRate rate;
    Probation probation;
    bool is_used = false;
  };
  static std::size_t index_of(BlockKind kind) { return 1 + static_cast<std::size_t>(kind); }
  void judge(Source& source);
  void pass_round();
  // V, of this sequence's n_rows and one row of each other's.
  double window(int n_rows) const { return costs_.window(n_sequences_ - 1 + n_rows); }
  void make_convex();

  const CostTable costs_;
  int n_sequences_ = 1;
  double scale_ = 1.0;                               // V[1] in an n-th of V[n]
  std::array<double, kWindowRowsMax + 2> convex_{};  // W
  SmoothedRate all_, copy_;
  Probation copy_probation_;
  std::vector<Source> sources_;
  std::array<std::array<double, kDraftsMax>, 2> likely_{};  // Q, by kind
};

}  // namespace bolt
