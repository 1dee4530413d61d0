// A model that several ranks share: every call goes to each rank's model, and all of them answer
// the same. That they do is looked at, so that a rank whose numbers went astray ends the run
// instead of its reply.
#pragma once

#include <memory>
#include <vector>

#include "core/engine/ops_model.h"
#include "core/engine/ranks.h"

namespace bolt {

class RankedModel final : public Model {
 public:
  // ranks must outlive the model.
  RankedModel(const Ranks& ranks, const ModelSizes& sizes);
  ~RankedModel() override;

  int open_slot() override;
  void close_slot(int slot) override;
  void reset_slot(int slot) override;
  const std::vector<int>& ids(int slot) const override { return first().ids(slot); }
  bool is_broken(int slot) const override { return first().is_broken(slot); }
  void run(std::span<const Window> windows, std::vector<WindowResult>& results) override;
  void commit(int slot, int n_kept) override;
  void draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) override;
  bool round(const RoundAsk& ask, RoundResult& result) override;
  void read_logits(int window, int i, std::span<float> to) override;
  std::string state_digest(int slot) const override;
  bool has_room(std::int64_t n_positions) const override { return first().has_room(n_positions); }
  bool reserve(int slot, std::int64_t n_positions) override;
  bool keeps_prefixes() const override { return first().keeps_prefixes(); }
  void keep_prefix(int slot) override;
  void resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                     BlockSet with_blocks) override;
  bool has_head() const override { return first().has_head(); }
  int block_drafts(BlockKind kind) const override { return first().block_drafts(kind); }
  std::span<const int> draft_vocab() const override { return first().draft_vocab(); }
  int vocab_size() const override { return first().vocab_size(); }
  int max_rows() const override { return first().max_rows(); }
  int max_window_rows() const override { return first().max_window_rows(); }
  int max_chunk_rows() const override { return first().max_chunk_rows(); }
  int max_scored_rows() const override { return first().max_scored_rows(); }
  void set_profile(Profile* profile) override;
  std::int64_t time_window_ns(int n_rows) override;
  std::int64_t time_level_ns(bool draft_vocab) override;
  std::int64_t time_block_ns(BlockKind kind, int n_drafts) override;

 private:
  // What one rank answers.
  struct Rank {
    std::unique_ptr<OpsModel> model;
    std::vector<WindowResult> results;
    std::vector<std::vector<Draft>> drafts;
    RoundResult round;
    bool did = false;
    int slot = 0;
    std::int64_t ns = 0;
    std::string digest;
    Profile profile;
  };
  OpsModel& first() const { return *all_[0].model; }
  template <class F>
  void each(const F& f) const {
    ranks_.each([&](int r) { f(all_[static_cast<std::size_t>(r)]); });
  }
  // Throws Error(fault) unless same(rank) holds for all but the first.
  template <class F>
  void check_same(const F& same) const;
  template <class F>
  std::int64_t slowest(const F& time_ns) const;

  const Ranks& ranks_;
  mutable std::vector<Rank> all_;
};

}  // namespace bolt
