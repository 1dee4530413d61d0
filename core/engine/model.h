// What the round loop asks of a model: run windows and sample them, keep what was right, let the
// draft head propose. One call a round, whatever runs below: OpsModel here, fakes in the tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/engine/profile.h"
#include "core/ops/ops.h"
#include "core/ops/round.h"

namespace bolt {

inline constexpr int kDraftsMax = kWindowRowsMax - 1;
inline constexpr int kRoundRowsMax = 64;  // of windows, in a pass that several sequences share

// Separate drafters that follow a sequence, by kind.
struct BlockSet {
  std::array<bool, 2> has{};
  bool& operator[](BlockKind kind) { return has[static_cast<std::size_t>(kind)]; }
  bool operator[](BlockKind kind) const { return has[static_cast<std::size_t>(kind)]; }
};
inline constexpr std::array<BlockKind, 2> kBlockKinds{BlockKind::dspark, BlockKind::dflash};

// Rows of one sequence for the next call, at the positions after its committed ones.
struct Window {
  int slot = 0;
  std::span<const int> ids;  // the rows' tokens
  bool sure = false;         // a prompt chunk: every row is kept. Else the first row alone is sure.
  int n_sampled = 0;         // the last n_sampled rows are sampled: all of a decoding window, the
                             // last or none of a prompt chunk
  SampleSpec sampling;       // positions are filled in by the model
  bool feed_head = false;    // keep the hidden rows that the draft head will absorb
  BlockSet feed_blocks;      // and what these drafters tap
};

struct WindowResult {
  std::vector<Sampled> sampled;  // one a sampled row, in order; id -1: a numeric error
  int first_marked = -1;         // first row with a numeric error among those not sampled
};

using Draft = Sampled;  // its probability is the head's

// A chain of the draft head's levels for one sequence whose rows are committed, or a separate
// drafter's block.
struct DraftAsk {
  std::optional<BlockKind> block;  // who drafts; none: the head
  int slot = 0;
  int next_id = -1;               // the known token after the committed ones
  int max_levels = 0;             // 1..31; of a block: how many drafts
  bool draft_vocab = false;       // read only the head rows of the draft vocabulary
  SampleSpec sampling;            // the target's; positions are filled in by the model
  bool weighs = true;             // of a block: the drafts' probabilities are wanted
  std::span<const int> stop_ids;  // nothing is drafted after one of these
  // Level k+1 follows level k (from 1) while chain_goes_on(P_k, go_on[k]); empty: always.
  std::span<const float> go_on;
  // Drafts in place of the head's, whose levels run all the same; empty: the head's.
  std::span<const Draft> given;
};

// A whole round of one sequence whose rows are committed: levels of the head, if any are asked for,
// then the window.
struct RoundAsk {
  DraftAsk draft;  // max_levels may be 0: then `drafts` are verified, all of them
  std::span<const int> drafts;
  bool feed_head = false;  // as Window's; with levels it is
  BlockSet feed_blocks;    // as Window's
  // What verifying 0..max_levels drafts costs, as n_worth() takes it; empty: all are verified.
  std::span<const double> row_prices;
};

struct RoundResult {
  std::vector<Draft> chain;  // of every level that ran
  int n_verified = 0;        // the window's rows after the first
  WindowResult window;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual int open_slot() = 0;
  virtual void close_slot(int slot) = 0;
  virtual void reset_slot(int slot) = 0;
  virtual const std::vector<int>& ids(int slot) const = 0;  // committed
  // A call failed between run and commit; the slot must be reset before it is used.
  virtual bool is_broken(int slot) const = 0;

  // Runs all windows in one pass and samples. results[i] belongs to windows[i].
  virtual void run(std::span<const Window> windows, std::vector<WindowResult>& results) = 0;
  // Keeps the first n_kept rows of the slot's window (all of a sure one) and drops the rest.
  virtual void commit(int slot, int n_kept) = 0;
  // Lets head or drafter absorb the kept rows, then drafts. Empty where it cannot: there is none,
  // or rows that it needs were run without feeding it.
  virtual void draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) = 0;
  // draft(), then run() of the window of those drafts that are worth it, as one call. The window is
  // the only one, all of its rows are sampled. False, and nothing done, where the head is asked and
  // cannot draft, a separate drafter is asked, or the model's windows are padded: then those two
  // are to be called.
  virtual bool round(const RoundAsk& ask, RoundResult& result) {
    (void)ask, (void)result;
    return false;
  }
  // Logits [vocab_size] of the i-th sampled row of window w of the last run, until the next call.
  virtual void read_logits(int window, int i, std::span<float> to) = 0;
  virtual std::string state_digest(int slot) const = 0;

  // Whether keys and values of a sequence of n_positions have room beside those of the others, and
  // setting it aside for this one. A model that keeps no keys has room for all.
  virtual bool has_room(std::int64_t n_positions) const { return (void)n_positions, true; }
  virtual bool reserve(int slot, std::int64_t n_positions) {
    return (void)slot, (void)n_positions, true;
  }

  // Prefixes of sequences, kept for prompts that begin alike (prefix_cache.h). A model that keeps
  // none does nothing here.
  virtual bool keeps_prefixes() const { return false; }
  // Keeps all of the slot's committed ids as one prefix.
  virtual void keep_prefix(int slot) { (void)slot; }
  // Makes a slot that was reset hold the longest kept prefix of the prompt, shorter than it.
  // with_head: only one whose rows the draft head can go on from; with_blocks: and these drafters.
  virtual void resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                             BlockSet with_blocks) {
    (void)slot, (void)prompt, (void)with_head, (void)with_blocks;
  }

  virtual bool has_head() const = 0;
  // Most drafts of a separate drafter's block; 0 if there is none of the kind.
  virtual int block_drafts(BlockKind kind) const { return (void)kind, 0; }
  virtual std::span<const int> draft_vocab() const = 0;  // ascending; empty if none
  virtual int vocab_size() const = 0;
  // Most rows of one call, and most of one window or chunk (a fixed geometry's R).
  virtual int max_rows() const = 0;
  virtual int max_window_rows() const = 0;
  virtual int max_chunk_rows() const = 0;
  // Most rows of a sure window that may all be sampled: their logits are kept until the next call.
  virtual int max_scored_rows() const { return max_window_rows(); }

  // Times the parts of every call from now on (profile.h); null: no more. No bit changes.
  virtual void set_profile(Profile* profile) { (void)profile; }

  // Wall time of a call of n_rows rows that keep nothing, and of one head level; for cost_table.h.
  virtual std::int64_t time_window_ns(int n_rows) = 0;
  virtual std::int64_t time_level_ns(bool draft_vocab) = 0;
  // And of a separate drafter's pass that makes so many drafts.
  virtual std::int64_t time_block_ns(BlockKind kind, int n_drafts) {
    return (void)kind, (void)n_drafts, 0;
  }
};

}  // namespace bolt
