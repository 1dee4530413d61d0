// Windows to segments, sampling, commits, the head's backlog, timing; drafts and prefixes have
// files of their own. The contract is model.h's.
#include "core/engine/ops_model.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/base/sha256.h"

namespace bolt {
namespace {

constexpr int kBacklogRows = 64;  // two full windows: the head may sit out a while
constexpr int kTimedRowsMax = 64;

int geometry_rows(const Graph& graph, int wanted) {
  const Geometry& g = graph.geometry;
  return g.kind == Geometry::Kind::dynamic ? wanted : std::min(wanted, g.n_rows);
}

// Rows of windows in one pass: all sequences share kRoundRowsMax, but a padded one
// takes its R rows whatever it holds.
int round_rows(const ModelSizes& sizes, const Graph& graph) {
  if (graph.geometry.kind == Geometry::Kind::dynamic) return std::max(kRoundRowsMax, sizes.n_slots);
  return std::max(kRoundRowsMax, sizes.n_slots * std::max(kWindowRowsMax, graph.geometry.n_rows));
}

// Where there are several, a chunk has its room beside the others' windows.
int largest_call(const ModelSizes& sizes, const Graph& graph) {
  const int round = round_rows(sizes, graph);
  return sizes.n_slots > 1 ? sizes.chunk_rows + round : std::max(sizes.chunk_rows, round);
}

int pages_of_all(const ModelSizes& sizes) {
  return sizes.n_pages > 0 ? sizes.n_pages : sizes.n_slots * pages_of_sequence(sizes.context);
}

// A scored call's rows: as many as a prompt's, where their logits do not take more than 64 MiB.
int scored_rows(const Graph& graph, int chunk_rows) {
  const auto row_bytes = static_cast<int>(sizeof(float)) * graph.vocab_size;
  return std::min(std::max((64 << 20) / row_bytes, kTimedRowsMax), chunk_rows);
}

std::array<std::unique_ptr<BlockRunner>, 2> make_blocks(Ops& ops, const Graph& graph,
                                                        const ModelSizes& sizes, int n_pages,
                                                        int max_rows, Rows<float> logits) {
  std::array<std::unique_ptr<BlockRunner>, 2> blocks;
  if (!ops.has_block_ops()) return blocks;
  for (const BlockDrafter& drafter : graph.drafters) {
    blocks[static_cast<std::size_t>(drafter.kind)] = std::make_unique<BlockRunner>(
        ops, graph, drafter, sizes.n_slots, 1 + sizes.n_prefixes, n_pages, max_rows, logits);
  }
  return blocks;
}

std::int64_t since_ns(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              start)
      .count();
}

}  // namespace

std::uint64_t kv_bytes_per_position(Ops& ops, const Graph& graph, KvKind kv) {
  std::uint64_t page = 0;
  const auto add = [&](const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
      if (const auto* node = std::get_if<Attention>(&layer.mixer)) {
        page += ops.kv_cache(*node, kv, 1)->page_bytes();
      }
    }
  };
  add(graph.layers);
  if (graph.draft) add(graph.draft->layers);
  std::uint64_t bytes = (page + kPageKeys - 1) / kPageKeys;
  for (const BlockDrafter& drafter : graph.drafters) bytes += block_bytes_per_position(drafter);
  return bytes;
}

std::uint64_t state_bytes(const Graph& graph) {
  std::uint64_t n_floats = 0;
  for (const Layer& layer : graph.layers) {
    if (const auto* m = std::get_if<Mamba2>(&layer.mixer)) {
      const int n_lag = (kWindowRowsMax - 1) * (m->d_conv() + m->n_heads);
      n_floats +=
          static_cast<std::uint64_t>(m->d_inner()) * static_cast<std::uint64_t>(m->d_state) +
          static_cast<std::uint64_t>((m->conv_kernel - 1) * m->d_conv() + n_lag);
    }
  }
  std::uint64_t bytes = n_floats * sizeof(float);
  for (const BlockDrafter& drafter : graph.drafters) bytes += block_bytes_per_sequence(drafter);
  return bytes;
}

OpsModel::OpsModel(Ops& ops, const Graph& graph, const ModelSizes& sizes)
    : ops_(ops),
      graph_(graph),
      sizes_(sizes),
      max_window_rows_(geometry_rows(graph, sizes.window_rows)),
      max_chunk_rows_(geometry_rows(graph, sizes.chunk_rows)),
      max_rows_(largest_call(sizes, graph)),
      scored_rows_(scored_rows(graph, max_chunk_rows_)),
      scratch_page_(pages_of_all(sizes) + sizes.n_prefix_pages),
      slots_(sizes.n_slots, scratch_page_, sizes.n_prefix_pages),
      forward_(ops, graph, sizes.kv, sizes.n_slots + 1 + sizes.n_prefixes, scratch_page_ + 1,
               max_rows_, std::max({kTimedRowsMax, round_rows(sizes, graph), scored_rows_})),
      blocks_(make_blocks(ops, graph, sizes, scratch_page_ + 1, max_rows_, forward_.logits())),
      prefixes_(slots_.pool(), sizes.n_prefixes, sizes.n_prefix_pages),
      copies_pages_(copy_page(scratch_page_, scratch_page_)),
      backlogs_(static_cast<std::size_t>(sizes.n_slots)) {
  if (graph.draft) {
    const int n_rows = sizes.n_slots * kBacklogRows;
    const auto bytes = static_cast<std::uint64_t>(n_rows) *
                       static_cast<std::uint64_t>(graph.d_model) * sizeof(float);
    backlog_memory_ = {static_cast<float*>(ops.allocate(bytes, "draft head backlog")), n_rows,
                       graph.d_model};
    const auto hidden_bytes = static_cast<std::uint64_t>(max_rows_) *
                              static_cast<std::uint64_t>(graph.d_model) * sizeof(float);
    hidden_ = {static_cast<float*>(ops.allocate(hidden_bytes, "hidden rows")), max_rows_,
               graph.d_model};
  }
}

std::span<const int> OpsModel::draft_vocab() const {
  if (!graph_.draft || !graph_.draft->vocab_head.present()) return {};
  return graph_.draft->vocab_ids;
}

int OpsModel::open_slot() {
  const int slot = slots_.open();
  reset_slot(slot);
  return slot;
}

void OpsModel::close_slot(int slot) { slots_.close(slot); }

void OpsModel::reset_slot(int slot) {
  slots_.reset(slot);
  for (LayerCache& cache : forward_.caches()) {
    if (cache.mamba) cache.mamba->reset(slot);
  }
  backlog_of(slot) = Backlog{};
  each_block([&](BlockKind, BlockRunner& block) { block.reset(slot); });
}

bool OpsModel::has_room(std::int64_t n_positions) const {
  return slots_.has_room(pages_of_sequence(n_positions));
}

bool OpsModel::reserve(int slot, std::int64_t n_positions) {
  return slots_.reserve(slot, pages_of_sequence(n_positions));
}

// A fixed geometry runs every window and chunk as R rows; a hybrid one all but single rows.
int OpsModel::padded_rows(const Window& window) const {
  const int n = static_cast<int>(window.ids.size());
  switch (graph_.geometry.kind) {
    case Geometry::Kind::dynamic:
      return n;
    case Geometry::Kind::fixed:
      return std::max(n, graph_.geometry.n_rows);
    case Geometry::Kind::hybrid:
      return n == 1 && !window.sure ? 1 : std::max(n, graph_.geometry.n_rows);
  }
  return n;
}

Rows<float> OpsModel::backlog_rows(int slot, int first, int n) const {
  return backlog_memory_.rows(slot * kBacklogRows + first, n);
}

bool OpsModel::begin_feed(int slot, std::span<const int> ids, bool feed_head) {
  Backlog& backlog = backlog_of(slot);
  if (!feed_head || !graph_.draft || !backlog.complete) return false;
  if (backlog.n > 0 && backlog.n + static_cast<int>(ids.size()) > kBacklogRows) {
    absorb(slot, backlog.n, ids[0]);
    backlog.n = 0;
  }
  return true;
}

void OpsModel::begin_taps(int slot, int n_rows, BlockSet wanted) {
  each_block([&](BlockKind kind, BlockRunner& block) {
    if (!block.begin_feed(place_of(slot), n_rows, wanted[kind])) return;
    if (std::find(taps_.begin(), taps_.end(), &block.taps()) == taps_.end()) {
      taps_.push_back(&block.taps());
    }
  });
}

void OpsModel::run(std::span<const Window> windows, std::vector<WindowResult>& results) {
  taps_.clear();
  segments_.clear();
  row_ids_.clear();
  runs_.clear();
  placed_.clear();
  int n_logits = 0;
  for (const Window& window : windows) {
    const int n_live = static_cast<int>(window.ids.size());
    backlog_of(window.slot).fed = begin_feed(window.slot, window.ids, window.feed_head);
    begin_taps(window.slot, n_live, window.feed_blocks);

    const int first_row = static_cast<int>(row_ids_.size());
    const int n_rows = padded_rows(window);
    segments_.push_back(slots_.begin(window.slot, window.ids, window.sure, first_row, n_rows));
    row_ids_.insert(row_ids_.end(), window.ids.begin(), window.ids.end());
    row_ids_.resize(static_cast<std::size_t>(first_row + n_rows), 0);

    // Where every live row is wanted, padding goes through the head, too, and neighbours join.
    const int n_sampled = window.n_sampled;
    placed_.push_back({first_row, n_live, n_logits, n_sampled});
    if (n_sampled == 0) continue;
    const bool whole = n_sampled == n_live && n_rows <= kWindowRowsMax;
    const LogitRun run{first_row + n_live - n_sampled, whole ? n_rows : n_sampled};
    if (!runs_.empty() && runs_.back().first_row + runs_.back().n_rows == run.first_row) {
      runs_.back().n_rows += run.n_rows;
    } else {
      runs_.push_back(run);
    }
    n_logits += run.n_rows;
  }
  const int n_rows = static_cast<int>(row_ids_.size());
  require(n_rows >= 1 && n_rows <= max_rows_, "a call has at least one row and at most max_rows");
  marked_.assign(static_cast<std::size_t>(n_rows), 0);
  const Batch batch{n_rows, segments_, marked_};
  forward_.target(batch, row_ids_, runs_, taps_);
  sample_rows(batch, windows, results);
  feed_head(batch, windows);
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Segment& s = segments_[w];
    each_block([&](BlockKind kind, BlockRunner& block) {
      if (!windows[w].feed_blocks[kind]) return;
      forward_.timed(Part::draft_head,
                     [&] { block.feed(place_of(s.slot), s.first_row, s.n_live, windows[w].sure); });
    });
  }
}

void OpsModel::sample_rows(const Batch& batch, std::span<const Window> windows,
                           std::vector<WindowResult>& results) {
  int n_logits = 0;
  for (const LogitRun& run : runs_) n_logits += run.n_rows;
  specs_.assign(static_cast<std::size_t>(n_logits), SampleSpec{});
  sampled_.assign(static_cast<std::size_t>(n_logits), Sampled{});
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Placed& at = placed_[w];
    for (int i = 0; i < at.n_sampled; ++i) {
      SampleSpec& spec = specs_[static_cast<std::size_t>(at.first_logit + i)];
      spec = windows[w].sampling;
      spec.n_vocab = sizes_.n_vocab;
      spec.position = static_cast<std::uint64_t>(segments_[w].first_position + at.n_live -
                                                 at.n_sampled + i + 1);
    }
  }
  for (SampleSpec& spec : specs_) {  // padding rows, too
    spec.n_vocab = sizes_.n_vocab;
    spec.want_probability = false;
  }
  int first = 0;
  for (const LogitRun& run : runs_) {
    const auto at = static_cast<std::size_t>(first), n = static_cast<std::size_t>(run.n_rows);
    const auto marks = batch.marked.subspan(static_cast<std::size_t>(run.first_row), n);
    forward_.timed(Part::sampling, [&] {
      ops_.sample(forward_.logits().rows(first, run.n_rows), std::span(specs_).subspan(at, n),
                  marks, nullptr, std::span(sampled_).subspan(at, n));
    });
    first += run.n_rows;
  }
  ops_.finish(batch);
  results.resize(windows.size());
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Placed& at = placed_[w];
    const auto sampled = sampled_.begin() + at.first_logit;
    results[w].sampled.assign(sampled, sampled + at.n_sampled);
    results[w].first_marked = -1;
    for (int r = 0; r < at.n_live - at.n_sampled; ++r) {
      if (!batch.marked[static_cast<std::size_t>(at.first_row + r)]) continue;
      results[w].first_marked = r;
      break;
    }
  }
}

// Rows that are certain, too many for the backlog, are absorbed at once: all but the last know the
// token that follows them. Hidden rows are read before the head's call overwrites the stream.
void OpsModel::feed_head(const Batch& batch, std::span<const Window> windows) {
  const auto is_long = [&](std::size_t w) {
    return windows[w].sure && segments_[w].n_live > kBacklogRows;
  };
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Segment& s = segments_[w];
    Backlog& backlog = backlog_of(s.slot);
    if (!backlog.fed) continue;
    if (is_long(w)) {
      forward_.read_hidden(batch, s.first_row, hidden_.rows(s.first_row, s.n_live - 1));
      forward_.read_hidden(batch, s.first_row + s.n_live - 1, backlog_rows(s.slot, 0, 1));
      backlog.n_fresh = 1;
    } else {
      forward_.read_hidden(batch, s.first_row, backlog_rows(s.slot, backlog.n, s.n_live));
      backlog.n_fresh = s.n_live;
    }
  }
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const Segment& s = segments_[w];
    if (!backlog_of(s.slot).fed || !is_long(w)) continue;
    put_head_keys(s.slot, s.first_position, windows[w].ids.subspan(1),
                  hidden_.rows(s.first_row, s.n_live - 1));
  }
}

void OpsModel::commit(int slot, int n_kept) {
  Backlog& backlog = backlog_of(slot);
  if (!backlog.fed) {
    backlog.complete = false;
  } else {
    backlog.n += std::min(backlog.n_fresh, n_kept);
  }
  backlog.n_fresh = 0;
  slots_.commit(slot, n_kept);
  each_block(
      [&](BlockKind, BlockRunner& block) { block.commit(slot, n_kept, slots_.n_committed(slot)); });
}

void OpsModel::read_logits(int window, int i, std::span<float> to) {
  const Placed& at = placed_[static_cast<std::size_t>(window)];
  require(i >= 0 && i < at.n_sampled, "logits of a sampled row");
  ops_.read(forward_.logits().row(at.first_logit + i), to);
}

std::string OpsModel::state_digest(int slot) const {
  require(!slots_.is_broken(slot), "a digest is of committed state");
  const int n_committed = slots_.n_committed(slot);
  Sha256 hash;
  std::vector<float> state;
  std::vector<std::byte> keys;
  for (const LayerCache& cache : forward_.caches()) {
    if (cache.mamba) {
      cache.mamba->read(slot, slots_.n_lag(slot), state);
      hash.update(state.data(), state.size() * sizeof(float));
    }
    if (!cache.kv) continue;
    for (int tile = 0; tile < pages_for(n_committed); ++tile) {
      const int n_keys = std::min(kPageKeys, n_committed - tile * kPageKeys);
      cache.kv->read(slots_.pages(slot)[static_cast<std::size_t>(tile)], n_keys, keys);
      hash.update(std::span<const std::byte>(keys));
    }
  }
  return hash.hex();
}

// The scratch slot's rows at positions 0.. of its one page. The ids are the same on every machine.
Segment OpsModel::scratch_segment(int n_rows) {
  Segment segment;
  segment.n_rows = segment.n_live = n_rows;
  segment.n_sure = std::max(1, n_rows - kDraftsMax);
  segment.slot = sizes_.n_slots;
  segment.pages = {&scratch_page_, 1};
  row_ids_.clear();
  for (int i = 0; i < n_rows; ++i) row_ids_.push_back((i * 7919 + 13) % sizes_.n_vocab);
  marked_.assign(static_cast<std::size_t>(n_rows), 0);
  return segment;
}

std::int64_t OpsModel::time_window_ns(int n_rows) {
  const int padded = graph_.geometry.kind == Geometry::Kind::dynamic ||
                             (graph_.geometry.kind == Geometry::Kind::hybrid && n_rows == 1)
                         ? n_rows
                         : std::max(n_rows, graph_.geometry.n_rows);
  require(padded <= kTimedRowsMax, "a timed window fits the buffers");
  const auto start = std::chrono::steady_clock::now();
  const Segment segment = scratch_segment(padded);
  taps_.clear();
  if (padded <= kWindowRowsMax) {
    RoundTask task;
    add_window(task, SampleSpec{}, segment);
    ops_.run_round(task, outcome_);
    return since_ns(start);
  }
  const Batch batch{padded, {&segment, 1}, marked_};
  const LogitRun run{0, padded};
  forward_.target(batch, row_ids_, {&run, 1}, {});
  SampleSpec spec;
  spec.n_vocab = sizes_.n_vocab;
  spec.want_probability = false;
  specs_.assign(static_cast<std::size_t>(padded), spec);
  sampled_.assign(static_cast<std::size_t>(padded), Sampled{});
  ops_.sample(forward_.logits().rows(0, padded), specs_, marked_, nullptr, sampled_);
  return since_ns(start);
}

// A level as a round runs it: one of several that follow each other.
std::int64_t OpsModel::time_level_ns(bool draft_vocab_only) {
  if (!graph_.draft) return 0;
  constexpr int kLevels = 8;
  DraftAsk ask;
  ask.next_id = 13 % sizes_.n_vocab;
  ask.max_levels = kLevels;
  ask.draft_vocab = draft_vocab_only;
  const std::vector<Draft> given(kLevels, Draft{ask.next_id, 1.0f});  // no marked row ends it
  ask.given = given;
  RoundTask task = levels_task(ask, scratch_segment(1), hidden_.rows(0, 1));
  task.levels_only = true;
  const auto start = std::chrono::steady_clock::now();
  ops_.run_round(task, outcome_);
  return since_ns(start) / kLevels;
}

std::int64_t OpsModel::time_block_ns(BlockKind kind, int n_drafts) {
  if (!block_of(kind)) return 0;
  SampleSpec spec;
  spec.n_vocab = sizes_.n_vocab;
  const auto start = std::chrono::steady_clock::now();
  block_of(kind)->run_scratch(sizes_.n_slots, scratch_page_, n_drafts, spec);
  return since_ns(start);
}

}  // namespace bolt
