// Drafts: what the head has not absorbed, its chains, separate drafters' blocks, and a whole round
// of one sequence as one call.
#include <algorithm>

#include "core/base/error.h"
#include "core/engine/ops_model.h"
#include "core/ops/replay_key.h"

namespace bolt {

void OpsModel::put_head_keys(int slot, int first_position, std::span<const int> next_ids,
                             Rows<const float> hidden) {
  const int n = static_cast<int>(next_ids.size());
  if (n == 0) return;
  const Segment segment = head_segment(slot, 0, first_position, n);
  head_marked_.assign(static_cast<std::size_t>(n), 0);
  const Rows<const float> views[] = {hidden};
  forward_.put_head_keys({n, {&segment, 1}, head_marked_}, next_ids, views);
}

// Keys of the first n backlog rows; next_id follows the last of all.
void OpsModel::absorb(int slot, int n, int next_id) {
  Backlog& backlog = backlog_of(slot);
  const std::vector<int>& ids = slots_.ids(slot);
  const int first_position = static_cast<int>(ids.size()) - backlog.n;
  std::vector<int> next_ids(ids.begin() + first_position + 1, ids.end());
  next_ids.push_back(next_id);
  next_ids.resize(static_cast<std::size_t>(n));
  put_head_keys(slot, first_position, next_ids, backlog_rows(slot, 0, n));
}

Segment OpsModel::head_segment(int slot, int first_row, int first_position, int n_rows) {
  Segment segment;
  segment.first_row = first_row;
  segment.n_rows = segment.n_live = segment.n_sure = n_rows;
  segment.first_position = first_position;
  segment.slot = slot;
  segment.pages = slots_.grow(slot, first_position + n_rows);
  return segment;
}

void OpsModel::draft(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) {
  drafts.resize(asks.size());
  for (std::vector<Draft>& chain : drafts) chain.clear();
  each_block([&](BlockKind kind, BlockRunner&) { draft_blocks(kind, asks, drafts); });
  draft_head(asks, drafts);
}

// Blocks of all that ask, as many drafts each as the longest wants.
void OpsModel::draft_blocks(BlockKind kind, std::span<const DraftAsk> asks,
                            std::vector<std::vector<Draft>>& drafts) {
  BlockRunner& block = *block_of(kind);
  block_asks_.clear();
  block_places_.clear();
  int n_drafts = 0;
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const DraftAsk& ask = asks[i];
    if (ask.block != kind) continue;
    require(!slots_.is_broken(ask.slot), "drafts follow a commit");
    if (!block.can_draft(ask.slot, slots_.n_committed(ask.slot))) continue;
    BlockRunner::Ask one;
    one.place = place_of(ask.slot);
    one.next_id = ask.next_id;
    one.sampling = ask.sampling;
    one.sampling.n_vocab = sizes_.n_vocab;
    one.sampling.want_probability = ask.weighs;
    // The known token is at position n_committed, draft 1 behind it.
    one.sampling.position = static_cast<std::uint64_t>(one.place.n_committed) + 1;
    block_asks_.push_back(i);
    block_places_.push_back(one);
    n_drafts = std::max(n_drafts, std::min(ask.max_levels, block.most_drafts()));
  }
  if (block_asks_.empty()) return;
  forward_.timed(Part::draft_head, [&] { block.draft(block_places_, n_drafts, block_sampled_); });
  for (std::size_t b = 0; b < block_asks_.size(); ++b) {
    const DraftAsk& ask = asks[block_asks_[b]];
    std::vector<Draft>& chain = drafts[block_asks_[b]];
    const std::size_t first = b * static_cast<std::size_t>(n_drafts);
    for (int k = 0; k < std::min(ask.max_levels, n_drafts); ++k) {
      const auto at = static_cast<std::size_t>(k);
      const Draft draft = ask.given.empty() ? block_sampled_[first + at] : ask.given[at];
      if (draft.id < 0) break;
      chain.push_back(draft);
      if (!drafts_on(draft, k + 1, ask.max_levels, 1.0f, ask.stop_ids.data(),
                     static_cast<int>(ask.stop_ids.size()), nullptr)) {
        break;
      }
    }
  }
}

void OpsModel::draft_head(std::span<const DraftAsk> asks, std::vector<std::vector<Draft>>& drafts) {
  chains_.clear();
  for (std::size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].block) continue;
    Backlog& backlog = backlog_of(asks[i].slot);
    require(!slots_.is_broken(asks[i].slot), "drafts follow a commit");
    if (!graph_.draft || !backlog.complete || backlog.n == 0) continue;
    require(asks[i].max_levels >= 1, "a chain has a level");
    absorb(asks[i].slot, backlog.n - 1, asks[i].next_id);
    chains_.push_back({i, asks[i].next_id, 1.0f, backlog_rows(asks[i].slot, backlog.n - 1, 1)});
    backlog.n = 0;
  }
  // Rows over the draft vocabulary come first.
  std::stable_partition(chains_.begin(), chains_.end(),
                        [&](const Chain& c) { return asks[c.ask].draft_vocab; });

  for (int level = 0; !chains_.empty(); ++level) {
    run_level(asks, level);
    std::size_t n_left = 0;
    for (std::size_t row = 0; row < chains_.size(); ++row) {
      Chain chain = chains_[row];
      const DraftAsk& ask = asks[chain.ask];
      const Draft draft =
          ask.given.empty() ? head_sampled_[row] : ask.given[static_cast<std::size_t>(level)];
      if (draft.id < 0) continue;
      drafts[chain.ask].push_back(draft);
      chain.product *= draft.probability;
      if (!drafts_on(draft, level + 1, ask.max_levels, chain.product, ask.stop_ids.data(),
                     static_cast<int>(ask.stop_ids.size()),
                     ask.go_on.empty() ? nullptr : ask.go_on.data())) {
        continue;
      }
      chain.token = draft.id;
      chain.hidden = forward_.head_hidden().rows(static_cast<int>(row), 1);
      chains_[n_left++] = chain;
    }
    chains_.resize(n_left);
  }
}

// One level of every chain still going: a row each, at the position of its last hidden row.
void OpsModel::run_level(std::span<const DraftAsk> asks, int level) {
  const int n = static_cast<int>(chains_.size());
  head_segments_.clear();
  head_ids_.clear();
  head_views_.clear();
  head_specs_.clear();
  int n_vocab_rows = 0;
  for (int row = 0; row < n; ++row) {
    const Chain& chain = chains_[static_cast<std::size_t>(row)];
    const DraftAsk& ask = asks[chain.ask];
    const int position = slots_.n_committed(ask.slot) - 1 + level;
    head_segments_.push_back(head_segment(ask.slot, row, position, 1));
    head_ids_.push_back(chain.token);
    head_views_.push_back(chain.hidden);
    SampleSpec spec = ask.sampling;
    spec.n_vocab = sizes_.n_vocab;
    spec.position = static_cast<std::uint64_t>(position) + 2;  // the row's token is at position + 1
    head_specs_.push_back(spec);
    if (ask.draft_vocab) ++n_vocab_rows;
  }
  head_marked_.assign(static_cast<std::size_t>(n), 0);
  head_sampled_.assign(static_cast<std::size_t>(n), Sampled{});
  forward_.head({n, head_segments_, head_marked_}, head_ids_, head_views_, n_vocab_rows);

  const auto sample = [&](int first, int count, int n_cols, const int* ids_of) {
    if (count == 0) return;
    const auto at = static_cast<std::size_t>(first), rows = static_cast<std::size_t>(count);
    forward_.timed(Part::draft_head, [&] {
      ops_.sample(forward_.logits().rows(first, count).columns(0, n_cols),
                  std::span(head_specs_).subspan(at, rows),
                  std::span(head_marked_).subspan(at, rows), ids_of,
                  std::span(head_sampled_).subspan(at, rows));
    });
  };
  sample(0, n_vocab_rows, static_cast<int>(draft_vocab().size()), draft_vocab().data());
  sample(n_vocab_rows, n - n_vocab_rows, graph_.vocab_size, nullptr);
}

RoundTask OpsModel::levels_task(const DraftAsk& ask, const Segment& segment,
                                Rows<const float> hidden) {
  head_segments_.assign(1, segment);
  head_ids_.assign(1, ask.next_id);
  head_marked_.assign(1, 0);
  RoundTask task;
  task.max_levels = ask.max_levels;
  task.level_ids = head_ids_;
  task.level_segments = head_segments_;
  task.level_marks = head_marked_;
  task.hidden = hidden;
  task.hidden_place = forward_.head_hidden().rows(0, 1);
  task.level_sampling = ask.sampling;
  task.level_sampling.n_vocab = sizes_.n_vocab;
  // The row's token is at the position after it.
  task.level_sampling.position = static_cast<std::uint64_t>(segment.first_position) + 2;
  const bool in_vocab = ask.draft_vocab;
  const int n_cols = in_vocab ? static_cast<int>(draft_vocab().size()) : graph_.vocab_size;
  task.level_logits = forward_.logits().rows(0, 1).columns(0, n_cols);
  task.level_columns = in_vocab ? draft_vocab().data() : nullptr;
  task.stop_ids = ask.stop_ids;
  task.go_on = ask.go_on;
  task.given = ask.given;
  task.level_key = in_vocab ? 1 : 0;
  task.level_ops = [this, in_vocab](Rows<const float> from) {
    forward_.head_ops({1, head_segments_, head_marked_}, head_ids_, {&from, 1}, in_vocab ? 1 : 0);
  };
  return task;
}

void OpsModel::add_window(RoundTask& task, const SampleSpec& sampling, const Segment& segment) {
  segments_.assign(1, segment);
  marked_.assign(row_ids_.size(), 0);
  task.window_ids = row_ids_;
  task.window_segments = segments_;
  task.window_marks = marked_;
  task.window_sampling = sampling;
  task.window_sampling.n_vocab = sizes_.n_vocab;
  task.window_sampling.want_probability = false;
  task.window_sampling.position = static_cast<std::uint64_t>(segment.first_position) + 1;
  task.window_logits = forward_.logits().rows(0, static_cast<int>(row_ids_.size()));
  task.window_ops = [this](int n_rows) {
    const auto rows = static_cast<std::size_t>(n_rows);
    Segment s = segments_[0];
    s.n_rows = s.n_live = n_rows;
    const LogitRun run{0, n_rows};
    forward_.target_ops({n_rows, {&s, 1}, std::span(marked_).first(rows)},
                        std::span(row_ids_).first(rows), {&run, 1}, taps_);
  };
}

bool OpsModel::round(const RoundAsk& ask, RoundResult& result) {
  const int slot = ask.draft.slot, max_levels = ask.draft.max_levels;
  Backlog& backlog = backlog_of(slot);
  require(!slots_.is_broken(slot), "a round follows a commit");
  const int n_most = 1 + (max_levels > 0 ? max_levels : static_cast<int>(ask.drafts.size()));
  require(n_most <= max_window_rows_, "a round fits a window");
  if (graph_.geometry.kind != Geometry::Kind::dynamic || forward_.profile() != nullptr)
    return false;
  if (max_levels > 0 && ask.draft.block) return false;
  if (max_levels > 0 && (!graph_.draft || !backlog.complete || backlog.n == 0)) return false;

  row_ids_.assign(1, ask.draft.next_id);
  row_ids_.insert(row_ids_.end(), ask.drafts.begin(), ask.drafts.end());
  RoundTask task;
  if (max_levels > 0) {
    absorb(slot, backlog.n - 1, ask.draft.next_id);
    const Segment level = head_segment(slot, 0, slots_.n_committed(slot) - 1, 1);
    task = levels_task(ask.draft, level, backlog_rows(slot, backlog.n - 1, 1));
    task.level_sampling.want_probability = !ask.draft.go_on.empty();  // else no rule asks
    task.row_prices = ask.row_prices;
    row_ids_.resize(static_cast<std::size_t>(n_most), ask.draft.next_id);
    backlog.n = 0;
  }
  const bool feeds = begin_feed(slot, row_ids_, ask.feed_head || max_levels > 0);
  taps_.clear();
  begin_taps(slot, n_most, ask.feed_blocks);
  add_window(task, ask.draft.sampling, slots_.begin(slot, row_ids_, false, 0, n_most));
  if (max_levels > 0) head_segments_[0].pages = segments_[0].pages;  // levels reach as far
  // Where rows for the head always go to the same place, they are part of the call.
  const bool feeds_inside = feeds && backlog.n == 0;
  if (feeds_inside) {
    task.window_key = key_with(key_with(task.window_key, 1), static_cast<std::uint64_t>(slot));
    task.window_ops = [this, slot, target = std::move(task.window_ops)](int n_rows) {
      target(n_rows);
      forward_.read_hidden({n_rows, {}, std::span(marked_).first(static_cast<std::size_t>(n_rows))},
                           0, backlog_rows(slot, 0, n_rows));
    };
  }
  BlockSet fed_inside;
  each_block([&](BlockKind kind, BlockRunner& block) {
    if (!ask.feed_blocks[kind]) return;
    task.window_key = key_with(task.window_key, 2 + static_cast<std::uint64_t>(kind));  // its taps
    fed_inside[kind] = block.is_drained(slot);
    if (!fed_inside[kind]) return;
    task.window_key = key_with(task.window_key, 16 + static_cast<std::uint64_t>(slot));
    task.window_ops = [&block, slot, target = std::move(task.window_ops)](int n_rows) {
      target(n_rows);
      block.feed_ops(slot, n_rows);
    };
  });
  ops_.run_round(task, outcome_);

  const int n_rows = outcome_.n_verified + 1;
  for (int i = 0; max_levels > 0 && i < outcome_.n_verified; ++i) {
    row_ids_[static_cast<std::size_t>(i) + 1] = outcome_.drafts[static_cast<std::size_t>(i)].id;
  }
  const auto rows = static_cast<std::size_t>(n_rows);
  slots_.settle(slot, std::span(row_ids_).first(rows));
  if (feeds && !feeds_inside) {
    forward_.read_hidden({n_rows, {}, std::span(marked_).first(rows)}, 0,
                         backlog_rows(slot, backlog.n, n_rows));
  }
  each_block([&](BlockKind kind, BlockRunner& block) {
    if (!ask.feed_blocks[kind]) return;
    if (fed_inside[kind]) {
      block.fed(slot, n_rows);
    } else {
      block.feed(place_of(slot), 0, n_rows, false);
    }
  });
  backlog.n_fresh = feeds ? n_rows : 0;
  backlog.fed = feeds;
  placed_.assign(1, {0, n_rows, 0, n_rows});
  result.chain = outcome_.drafts;
  result.n_verified = outcome_.n_verified;
  result.window.sampled = outcome_.sampled;
  result.window.first_marked = -1;
  return true;
}

}  // namespace bolt
