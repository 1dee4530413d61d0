// Windows to segments, sampling, commits, and the head's backlog. The contract is model.h's.
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

// Keys that the head has not absorbed yet are written by whoever goes on, each with its own token.
int OpsModel::n_whole_pages(const KeptPrefix& prefix) const {
  return (static_cast<int>(prefix.ids.size()) - prefix.n_backlog) / kPageKeys;
}

bool OpsModel::copy_page(int from, int to) {
  bool copied = true;
  for (auto* caches : {&forward_.caches(), &forward_.head_caches()}) {
    for (LayerCache& cache : *caches) {
      if (cache.kv) copied = cache.kv->copy(from, to) && copied;
    }
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_page(from, to); });
  return copied;
}

void OpsModel::keep_prefix(int slot) {
  if (!keeps_prefixes() || slots_.is_broken(slot)) return;
  const Backlog& backlog = backlog_of(slot);
  const std::vector<int>& ids = slots_.ids(slot);
  KeptPrefix prefix;
  each_block([&](BlockKind kind, BlockRunner& block) {
    prefix.block_first_key[static_cast<std::size_t>(kind)] = block.first_key(slot);
  });
  if (const int same = prefixes_.find_same(ids); same >= 0) {
    const KeptPrefix& kept = prefixes_.at(same);
    bool adds = backlog.complete && !kept.head_complete;
    for (std::size_t i = 0; i < kBlockKinds.size(); ++i) {
      adds = adds || prefix.block_first_key[i] < kept.block_first_key[i];
    }
    if (!adds) return;
    prefixes_.drop(same);  // this one serves more drafters
  }
  each_block([&](BlockKind, BlockRunner& block) { block.drain(place_of(slot)); });
  prefix.ids = ids;
  const auto n_pages = static_cast<std::size_t>(pages_for(static_cast<std::int64_t>(ids.size())));
  const std::vector<int>& pages = slots_.pages(slot);
  prefix.pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(n_pages));
  prefix.n_lag = slots_.n_lag(slot);
  prefix.head_complete = backlog.complete;
  if (graph_.draft && backlog.complete) {
    prefix.n_backlog = backlog.n;
    prefix.backlog.resize(static_cast<std::size_t>(backlog.n * graph_.d_model));
    if (backlog.n > 0) ops_.read(backlog_rows(slot, 0, 1).row(0), prefix.backlog);
  }
  const int place = prefixes_.keep(std::move(prefix));
  if (place < 0) return;
  for (LayerCache& cache : forward_.caches()) {
    if (cache.mamba) cache.mamba->copy(slot, state_slot(place));
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_slot(slot, state_slot(place)); });
}

void OpsModel::resume_prefix(int slot, std::span<const int> prompt, bool with_head,
                             BlockSet with_blocks) {
  if (!keeps_prefixes()) return;
  const int place = prefixes_.find(prompt, [&](const KeptPrefix& prefix) {
    if (with_head && graph_.draft && !prefix.head_complete) return false;
    for (const BlockKind kind : kBlockKinds) {
      if (!with_blocks[kind] || !block_of(kind)) continue;
      if (!block_of(kind)->goes_on(prefix.block_first_key[static_cast<std::size_t>(kind)])) {
        return false;
      }
    }
    return copies_pages_ || n_whole_pages(prefix) == static_cast<int>(prefix.pages.size());
  });
  if (place < 0) return;
  const KeptPrefix& prefix = prefixes_.at(place);
  const auto n_whole = static_cast<std::size_t>(n_whole_pages(prefix));
  std::vector<int> pages;
  for (std::size_t i = 0; i < prefix.pages.size(); ++i) {
    if (i < n_whole) {
      slots_.pool().share(prefix.pages[i]);
      pages.push_back(prefix.pages[i]);
    } else {
      pages.push_back(slots_.pool().take());
      copy_page(prefix.pages[i], pages.back());
    }
  }
  slots_.adopt(slot, prefix.ids, std::move(pages), prefix.n_lag);
  for (LayerCache& cache : forward_.caches()) {
    if (cache.mamba) cache.mamba->copy(state_slot(place), slot);
  }
  each_block([&](BlockKind, BlockRunner& block) { block.copy_slot(state_slot(place), slot); });
  Backlog& backlog = backlog_of(slot);
  backlog = Backlog{};
  backlog.n = prefix.n_backlog;
  backlog.complete = prefix.head_complete;
  if (backlog.n > 0) {
    ops_.write(prefix.backlog.data(), prefix.backlog.size() * sizeof(float),
               backlog_rows(slot, 0, 1).row(0));
  }
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
    task.window_key = static_cast<std::uint64_t>(slot) + 1;
    task.window_ops = [this, slot, target = std::move(task.window_ops)](int n_rows) {
      target(n_rows);
      forward_.read_hidden({n_rows, {}, std::span(marked_).first(static_cast<std::size_t>(n_rows))},
                           0, backlog_rows(slot, 0, n_rows));
    };
  }
  BlockSet fed_inside;
  each_block([&](BlockKind kind, BlockRunner& block) {
    if (!ask.feed_blocks[kind]) return;
    task.window_key = (task.window_key ^ (static_cast<std::uint64_t>(kind) + 3)) *
                      0x9e3779b97f4a7c15u;  // its taps
    fed_inside[kind] = block.is_drained(slot);
    if (!fed_inside[kind]) return;
    task.window_key += static_cast<std::uint64_t>(slot) + 1;
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
