// Calls of a model fanned out to its ranks; answers compared.
#include "core/engine/ranked_model.h"

#include <algorithm>

#include "core/base/error.h"

namespace bolt {
namespace {

bool same_ids(const std::vector<Sampled>& a, const std::vector<Sampled>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Sampled& x, const Sampled& y) { return x.id == y.id; });
}
bool same(const WindowResult& a, const WindowResult& b) {
  return a.first_marked == b.first_marked && same_ids(a.sampled, b.sampled);
}

}  // namespace

RankedModel::RankedModel(const Ranks& ranks, const ModelSizes& sizes)
    : ranks_(ranks), all_(static_cast<std::size_t>(ranks.n_ranks())) {
  ranks_.each([&](int r) {
    RankOps& ops = ranks_.ops(r);
    all_[static_cast<std::size_t>(r)].model = std::make_unique<OpsModel>(ops, ops.graph(), sizes);
  });
}

RankedModel::~RankedModel() = default;

template <class F>
void RankedModel::check_same(const F& same) const {
  for (std::size_t r = 1; r < all_.size(); ++r) {
    if (same(all_[r])) continue;
    throw Error(Exit::fault, "ranks 0 and " + std::to_string(r) +
                                 " chose different tokens from the same rows: one of their "
                                 "devices, or the link between them, is faulty");
  }
}

int RankedModel::open_slot() {
  each([](Rank& rank) { rank.slot = rank.model->open_slot(); });
  check_same([&](const Rank& rank) { return rank.slot == all_[0].slot; });
  return all_[0].slot;
}
void RankedModel::close_slot(int slot) {
  for (Rank& rank : all_) rank.model->close_slot(slot);
}
void RankedModel::reset_slot(int slot) {
  each([&](Rank& rank) { rank.model->reset_slot(slot); });
}

void RankedModel::run(std::span<const Window> windows, std::vector<WindowResult>& results) {
  each([&](Rank& rank) { rank.model->run(windows, rank.results); });
  results = all_[0].results;
  check_same([&](const Rank& rank) {
    return std::equal(results.begin(), results.end(), rank.results.begin(), rank.results.end(),
                      bolt::same);
  });
}

// No op runs: the caller's thread serves.
void RankedModel::commit(int slot, int n_kept) {
  for (Rank& rank : all_) rank.model->commit(slot, n_kept);
}
bool RankedModel::reserve(int slot, std::int64_t n_positions) {
  bool fits = true;
  for (Rank& rank : all_) fits = rank.model->reserve(slot, n_positions) && fits;
  return fits;
}

void RankedModel::draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) {
  each([&](Rank& rank) { rank.model->draft(asks, rank.drafts); });
  drafts = all_[0].drafts;
  check_same([&](const Rank& rank) {
    return std::equal(drafts.begin(), drafts.end(), rank.drafts.begin(), rank.drafts.end(),
                      same_ids);
  });
}

bool RankedModel::round(const RoundAsk& ask, RoundResult& result) {
  each([&](Rank& rank) { rank.did = rank.model->round(ask, rank.round); });
  check_same([&](const Rank& rank) {
    return rank.did == all_[0].did &&
           (!rank.did || (rank.round.n_verified == all_[0].round.n_verified &&
                          same_ids(rank.round.chain, all_[0].round.chain) &&
                          bolt::same(rank.round.window, all_[0].round.window)));
  });
  if (all_[0].did) result = all_[0].round;
  return all_[0].did;
}

void RankedModel::read_logits(int window, int i, std::span<float> to) {
  ranks_.each([&](int r) {
    if (r == 0) first().read_logits(window, i, to);
  });
}

std::string RankedModel::state_digest(int slot) const {
  each([&](Rank& rank) { rank.digest = rank.model->state_digest(slot); });
  return all_[0].digest;
}

void RankedModel::keep_prefix(int slot) {
  each([&](Rank& rank) { rank.model->keep_prefix(slot); });
}
void RankedModel::resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                                BlockSet with_blocks) {
  each([&](Rank& rank) { rank.model->resume_prefix(slot, prompt, with_head, with_blocks); });
}

// A profile changes which calls are made, so that all ranks have one.
void RankedModel::set_profile(Profile* profile) {
  for (Rank& rank : all_) {
    Profile* own = &rank == all_.data() ? profile : &rank.profile;
    rank.model->set_profile(profile != nullptr ? own : nullptr);
  }
}

template <class F>
std::int64_t RankedModel::slowest(const F& time_ns) const {
  each([&](Rank& rank) { rank.ns = time_ns(*rank.model); });
  std::int64_t most = 0;
  for (const Rank& rank : all_) most = std::max(most, rank.ns);
  return most;
}
std::int64_t RankedModel::time_window_ns(int n_rows) {
  return slowest([&](OpsModel& model) { return model.time_window_ns(n_rows); });
}
std::int64_t RankedModel::time_level_ns(bool draft_vocab) {
  return slowest([&](OpsModel& model) { return model.time_level_ns(draft_vocab); });
}
std::int64_t RankedModel::time_block_ns(BlockKind kind, int n_drafts) {
  return slowest([&](OpsModel& model) { return model.time_block_ns(kind, n_drafts); });
}

}  // namespace bolt
