// The model over an Ops: windows become segments, the draft head absorbs what was kept and runs its
// chain. Host and device share it; what layers compute is forward.cpp.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/block_draft.h"
#include "core/engine/forward.h"
#include "core/engine/model.h"
#include "core/engine/prefix_cache.h"
#include "core/engine/slots.h"
#include "core/ops/round.h"

namespace bolt {

struct ModelSizes {
  KvKind kv = KvKind::i16;
  int n_slots = 1;
  std::int64_t context = 0;  // positions of one sequence
  int chunk_rows = 512;      // rows of a prompt chunk
  int window_rows = kWindowRowsMax;
  int n_vocab = 0;  // ids at or past it are never sampled
  // Pages of all sequences; 0: as many as every slot's context takes.
  int n_pages = 0;
  // Prefixes that are kept, and pages that they hold besides those of open sequences.
  int n_prefixes = 0, n_prefix_pages = 0;
};

// Pages of a sequence of so many positions; padding and drafts may reach past the last one kept.
inline int pages_of_sequence(std::int64_t n_positions) { return pages_for(n_positions) + 1; }
// Bytes of keys and values for one position of one sequence, drafters included.
std::uint64_t kv_bytes_per_position(Ops& ops, const Graph& graph, KvKind kv);
// Bytes of recurrent state of one sequence, rows that lag and drafters' windows included.
std::uint64_t state_bytes(const Graph& graph);

class OpsModel final : public Model {
 public:
  // ops and graph must outlive the model.
  OpsModel(Ops& ops, const Graph& graph, const ModelSizes& sizes);

  int open_slot() override;
  void close_slot(int slot) override;
  void reset_slot(int slot) override;
  const std::vector<int>& ids(int slot) const override { return slots_.ids(slot); }
  bool is_broken(int slot) const override { return slots_.is_broken(slot); }
  void run(std::span<const Window> windows, std::vector<WindowResult>& results) override;
  void commit(int slot, int n_kept) override;
  void draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) override;
  bool round(const RoundAsk& ask, RoundResult& result) override;
  void read_logits(int window, int i, std::span<float> to) override;
  std::string state_digest(int slot) const override;
  bool has_room(std::int64_t n_positions) const override;
  bool reserve(int slot, std::int64_t n_positions) override;
  bool keeps_prefixes() const override { return prefixes_.n_places() > 0; }
  void keep_prefix(int slot) override;
  void resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                     BlockSet with_blocks) override;

  bool has_head() const override { return graph_.draft.has_value(); }
  int block_drafts(BlockKind kind) const override {
    const auto& block = block_of(kind);
    return block ? block->most_drafts() : 0;
  }
  std::span<const int> draft_vocab() const override;
  int vocab_size() const override { return graph_.vocab_size; }
  int max_rows() const override { return max_rows_; }
  int max_window_rows() const override { return max_window_rows_; }
  int max_chunk_rows() const override { return max_chunk_rows_; }
  int max_scored_rows() const override { return scored_rows_; }
  void set_profile(Profile* profile) override { forward_.set_profile(profile); }
  std::int64_t time_window_ns(int n_rows) override;
  std::int64_t time_level_ns(bool draft_vocab) override;
  std::int64_t time_block_ns(BlockKind kind, int n_drafts) override;

 private:
  // Hidden rows that the target kept and the head has not absorbed: the last n of the slot's ids.
  struct Backlog {
    int n = 0;
    int n_fresh = 0;       // of the window just run, not committed yet
    bool complete = true;  // no kept row was run without feed_head
    bool fed = false;      // the last run had feed_head
  };
  // Where a window of the last call lies.
  struct Placed {
    int first_row = 0, n_live = 0;
    int first_logit = 0;  // row of logits() of the first sampled row
    int n_sampled = 0;
  };

  // A chain of the head in progress.
  struct Chain {
    std::size_t ask = 0;
    int token = 0;
    float product = 1.0f;  // of the drafts' probabilities
    Rows<const float> hidden;
  };

  const std::unique_ptr<BlockRunner>& block_of(BlockKind kind) const {
    return blocks_[static_cast<std::size_t>(kind)];
  }
  // f(kind, runner) for every separate drafter.
  template <class F>
  void each_block(const F& f) {
    for (const BlockKind kind : kBlockKinds) {
      if (block_of(kind)) f(kind, *block_of(kind));
    }
  }
  BlockRunner::Place place_of(int slot) const {
    return {slot, slots_.n_committed(slot), slots_.pages(slot)};
  }
  // Says which drafters the slot's next n_rows rows feed, and taps what they need.
  void begin_taps(int slot, int n_rows, BlockSet wanted);
  void draft_head(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts);
  void draft_blocks(BlockKind kind, std::span<const DraftAsk> asks,
                    std::vector<std::vector<Draft>>& drafts);

  Backlog& backlog_of(int slot) { return backlogs_[static_cast<std::size_t>(slot)]; }
  Rows<float> backlog_rows(int slot, int first, int n) const;
  int padded_rows(const Window& window) const;
  void sample_rows(const Batch& batch, std::span<const Window> windows,
                   std::vector<WindowResult>& results);
  void feed_head(const Batch& batch, std::span<const Window> windows);
  void absorb(int slot, int n, int next_id);
  // Whether the window's hidden rows go to the backlog; makes room for them.
  bool begin_feed(int slot, std::span<const int> ids, bool feed_head);
  // A window's part of a round's task.
  void add_window(RoundTask& task, const SampleSpec& sampling, const Segment& segment);
  void put_head_keys(int slot, int first_position, std::span<const int> next_ids,
                     Rows<const float> hidden);
  Segment head_segment(int slot, int first_row, int first_position, int n_rows);
  void run_level(std::span<const DraftAsk> asks, int level);
  // The head's part of a round's task: levels from this row on, of this token and hidden row.
  RoundTask levels_task(const DraftAsk& ask, const Segment& segment, Rows<const float> hidden);
  Segment scratch_segment(int n_rows);
  // Of a kept prefix, leading pages that nobody writes any more: they are shared, the rest copied.
  int n_whole_pages(const KeptPrefix& prefix) const;
  bool copy_page(int from, int to);
  // Where a kept prefix's state lies in the recurrent caches: past the slots and the scratch slot.
  int state_slot(int place) const { return sizes_.n_slots + 1 + place; }

  Ops& ops_;
  const Graph& graph_;
  const ModelSizes sizes_;
  const int max_window_rows_, max_chunk_rows_, max_rows_, scored_rows_;
  int scratch_page_;  // and the slot past the last one: for timing
  Slots slots_;
  Forward forward_;
  std::array<std::unique_ptr<BlockRunner>, 2> blocks_;  // by kind
  PrefixCache prefixes_;
  bool copies_pages_ = false;
  Rows<float> backlog_memory_;  // [n_slots * kBacklogRows, d_model]
  Rows<float> hidden_;          // [max_rows, d_model], of chunks longer than the backlog
  std::vector<Backlog> backlogs_;

  // Of the last call; kept so that decoding allocates nothing.
  std::vector<Segment> segments_;
  std::vector<int> row_ids_;
  std::vector<std::uint8_t> marked_;
  std::vector<const Taps*> taps_;
  std::vector<LogitRun> runs_;
  std::vector<Placed> placed_;
  std::vector<SampleSpec> specs_;
  std::vector<Sampled> sampled_;
  // Of the head's last call.
  std::vector<Chain> chains_;
  std::vector<Segment> head_segments_;
  std::vector<int> head_ids_;
  std::vector<Rows<const float>> head_views_;
  std::vector<std::uint8_t> head_marked_;
  std::vector<SampleSpec> head_specs_;
  std::vector<Sampled> head_sampled_;
  RoundOutcome outcome_;
  // Of a separate drafter's last call.
  std::vector<std::size_t> block_asks_;
  std::vector<BlockRunner::Ask> block_places_;
  std::vector<Sampled> block_sampled_;
};

}  // namespace bolt
