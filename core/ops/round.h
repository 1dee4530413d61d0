// A round of one sequence as one call: the draft head's levels, how many of their drafts are worth
// verifying, the window of those, its samples. A device decides all of it where the rows are, so
// that the host waits once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/ops/ops.h"

namespace bolt {

// Whether a chain whose drafts so far have the product P of probabilities goes on: P^2 against the
// price of one more draft (core/engine/depth_rule.h). Host and device compare alike.
constexpr bool chain_goes_on(float product, float price) { return product * product >= price; }

// How many of n drafts are worth verifying: the k, the largest of equals, where
// P_1^2 + ... + P_k^2 - prices[k] is largest. prices[0] is 0.
template <class D>  // has a `probability`
constexpr int n_worth(const D* drafts, int n, const double* prices) {
  double product = 1.0, gain = 0.0, best = 0.0;
  int n_best = 0;
  for (int k = 1; k <= n; ++k) {
    product *= static_cast<double>(drafts[k - 1].probability);
    gain += product * product;
    const double worth = gain - prices[k];
    if (worth >= best) best = worth, n_best = k;
  }
  return n_best;
}

// Ids and segments are the caller's; whoever runs the round on the host moves them along.
struct RoundTask {
  int max_levels = 0;  // 0..31; 0: no draft is asked for, and what follows of levels is unused
  // The head's row: id, and segment at the first level's position. The next level's lies one behind
  // it, its id is the draft.
  std::span<int> level_ids;             // [1]
  std::span<Segment> level_segments;    // [1]
  std::span<std::uint8_t> level_marks;  // [1], clear, as the window's
  // What the first level goes on from, and where every level leaves what the next one does.
  Rows<const float> hidden;  // [1, d_model]
  Rows<float> hidden_place;  // [1, d_model]
  // The window. With levels its first id is known, its segment holds one row, and there is room for
  // max_levels + 1; else it is all there.
  std::span<int> window_ids;
  std::span<Segment> window_segments;  // [1]
  std::span<std::uint8_t> window_marks;

  SampleSpec level_sampling, window_sampling;  // of the first level and row; the next: position + 1
  Rows<float> level_logits, window_logits;     // [1, ...], [a window's rows, vocab_size]
  const int* level_columns = nullptr;          // ids of level_logits' columns, as Ops::sample
  // Nothing is drafted after one of these.
  std::span<const int> stop_ids;
  // Level k + 1 follows level k (from 1) while chain_goes_on(P_k, go_on[k]); empty: always.
  std::span<const float> go_on;
  // n_worth's prices, of 0..max_levels drafts; empty: all are verified.
  std::span<const double> row_prices;
  // Drafts in place of the head's, one a level; empty: the head's.
  std::span<const Sampled> given;
  bool levels_only = false;  // for timing: no window

  // The ops of a level that goes on from `hidden`, and of a window: between begin() and sample().
  std::function<void(Rows<const float> hidden)> level_ops;
  std::function<void(int n_rows)> window_ops;
  // As Ops::replay's: equal keys mean equal ops and buffers.
  std::uint64_t level_key = 0, window_key = 0;
};

// Whether a chain that has just drafted `last`, its n-th, drafts another.
constexpr bool drafts_on(const Sampled& last, int n, int max_levels, float product,
                         const int* stop_ids, int n_stop_ids, const float* go_on) {
  if (n >= max_levels) return false;
  for (int i = 0; i < n_stop_ids; ++i) {
    if (stop_ids[i] == last.id) return false;
  }
  return go_on == nullptr || chain_goes_on(product, go_on[n]);
}

struct RoundOutcome {
  std::vector<Sampled> drafts;   // of every level that ran
  int n_verified = 0;            // the window's rows after the first
  std::vector<Sampled> sampled;  // one a row of the window
};

}  // namespace bolt
