// A separate drafter (DSpark, DFlash) at work: the target's tapped residuals become its context
// keys, and one pass over a block of rows [last token, mask, mask, ...] gives a sequence's drafts.
//
// Rows that the target kept wait in a backlog until the next pass, which appends their keys before
// its blocks read them. Keys of a block itself lie in scratch, so that a rejected draft leaves
// nothing behind.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/engine/forward.h"
#include "core/engine/model.h"
#include "core/ops/block_draft.h"
#include "core/pack/graph.h"

namespace bolt {

// Bytes that a drafter needs for one position of a sequence, and for one sequence at any length: a
// sliding window lies in a ring, all of a context in the pages of the target's keys.
std::uint64_t block_bytes_per_position(const BlockDrafter& drafter);
std::uint64_t block_bytes_per_sequence(const BlockDrafter& drafter);

class BlockRunner {
 public:
  // n_slots of them take part in calls; the spare ones behind hold kept prefixes and timing.
  // max_rows: of a target's call. logits: at least kRoundRowsMax rows.
  BlockRunner(Ops& ops, const Graph& graph, const BlockDrafter& drafter, int n_slots, int n_spare,
              int n_pages, int max_rows, Rows<float> logits);

  int most_drafts() const { return drafter_.block_size - 1; }
  const Taps& taps() const { return taps_; }

  // A slot as the runner sees it: its committed ids, and the pages of the target's keys.
  struct Place {
    int slot = 0, n_committed = 0;
    std::span<const int> pages;
  };

  // Before a call that runs n_rows of the slot: whether they feed the drafter. Makes room for them.
  bool begin_feed(const Place& place, int n_rows, bool wanted);
  // After it: takes rows [first_row, first_row + n) of taps(). sure: all are kept.
  void feed(const Place& place, int first_row, int n, bool sure);
  // feed() of at most a window as ops that are captured with the call; then fed() says that they
  // ran. Only where is_drained().
  void feed_ops(int slot, int n);
  void fed(int slot, int n) { at(slot).n_fresh = n; }
  bool is_drained(int slot) const { return at(slot).n_backlog == 0; }
  // The first n_kept of the rows that were fed, of a sequence that holds n_committed with them.
  void commit(int slot, int n_kept, int n_committed);

  void reset(int slot) { at(slot) = State{}; }
  // Whether drafts can be made for a slot of so many committed ids. Full attention needs every
  // position; a window goes on from what there is.
  bool can_draft(int slot, int n_committed) const;

  struct Ask {
    Place place;
    int next_id = -1;
    SampleSpec sampling;  // of the first draft
  };
  // n_drafts for each, in order, in as few passes as rows allow: out [asks.size() * n_drafts].
  void draft(std::span<const Ask> asks, int n_drafts, std::vector<Sampled>& out);

  // For kept prefixes: writes the keys of the backlog; makes a slot what another is, whose backlog
  // is empty, but for what lies in pages; copies a page. Whether drafts can be made for a sequence
  // that has keys from this position on.
  void drain(const Place& place);
  void copy_slot(int from, int to);
  void copy_page(int from, int to);
  bool goes_on(int first_key) const { return drafter_.window > 0 || first_key == 0; }
  int first_key(int slot) const { return at(slot).first_key; }

  // A pass of one block for timing, at a spare slot whose one page this is.
  void run_scratch(int slot, int page, int n_drafts, const SampleSpec& sampling);

 private:
  // Of a slot: rows of the backlog are the last ones committed.
  struct State {
    int n_backlog = 0, n_fresh = 0;
    bool is_fed = false;  // the last call was
    int first_key = 0;    // positions before it have no keys
  };
  State& at(int slot) { return states_[static_cast<std::size_t>(slot)]; }
  const State& at(int slot) const { return states_[static_cast<std::size_t>(slot)]; }
  Rows<float> backlog(int slot, int first, int n) const;
  Segment context_segment(const Place& place, int first_row, int first_position, int n) const;
  void append(const Place& place, int first_position, Rows<const float> taps);
  void context_ops(const Batch& batch, int first_row, Rows<const float> taps);
  void block_ops(const Batch& batch, std::span<const int> ids, const BlockShape& shape,
                 int n_drafts);
  void run_group(std::span<const Ask> asks, int n_drafts, std::span<Sampled> out);
  Weight kv_part(int matrix) const;

  Ops& ops_;
  const Graph& graph_;
  const BlockDrafter& drafter_;
  const Rows<float> logits_;
  Taps taps_;
  RopeTable rope_;
  BlockCache cache_;
  Rows<float> backlog_memory_;
  Rows<float> gathered_, context_, kv_;                        // of context rows
  Rows<float> x_, normed_, q_, block_kv_, mixed_, gate_, up_;  // of blocks
  Rows<float> markov_;
  std::unique_ptr<Operand> operand_, markov_operand_;
  std::vector<State> states_;
  // Of the pass at hand.
  std::vector<Segment> segments_;
  std::vector<int> ids_;
  std::vector<std::uint8_t> marked_;
  std::vector<SampleSpec> specs_;
  std::vector<Sampled> sampled_;
};

}  // namespace bolt
