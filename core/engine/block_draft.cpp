// A drafter's pass in ops; backlogs, rings and what kept prefixes hold of them.
#include "core/engine/block_draft.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/ops/replay_key.h"

namespace bolt {
namespace {

constexpr int kBacklogRows = 64;   // two full windows: a drafter may sit out a while
constexpr int kContextRows = 256;  // of a prompt chunk that are appended at once

bool takes_codes(std::initializer_list<const Weight*> weights) {
  return std::any_of(weights.begin(), weights.end(),
                     [](const Weight* w) { return is_integer(w->format); });
}

// Tiles of a window's ring: any run of so many positions has cells of its own.
int ring_tiles(const BlockDrafter& d) {
  return d.window > 0 ? (d.window - 1 + kPageKeys - 1) / kPageKeys : 0;
}

Rows<float> allocate_rows(Ops& ops, int n_rows, int n_cols, const char* purpose) {
  const auto bytes =
      static_cast<std::uint64_t>(n_rows) * static_cast<std::uint64_t>(n_cols) * sizeof(float);
  return {static_cast<float*>(ops.allocate(bytes, purpose)), n_rows, n_cols};
}

std::uint64_t cell_bytes(const BlockDrafter& d) {
  return 2 * d.layers.size() * static_cast<std::uint64_t>(d.n_kv_cols()) * sizeof(std::uint16_t);
}

Batch part_of(const Batch& batch, int first, int n) {
  return {
      n, {}, batch.marked.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n))};
}

// Frequencies as the checkpoints' own library computes them: by YaRN, dimensions that turn often
// keep theirs, those that turn seldom are slowed down by the factor, with a ramp between.
std::vector<float> frequencies(const BlockDrafter& d) {
  const int half = d.head_dim / 2;
  const Rope& r = d.rope;
  std::vector<float> inv_freq(static_cast<std::size_t>(half));
  const double log_theta = std::log(static_cast<double>(r.theta));
  // The dimension that turns so many times over the original positions.
  const auto dimension_of = [&](double turns) {
    return half * std::log(r.original_positions / (turns * 2.0 * 3.14159265358979323846)) /
           log_theta;
  };
  double low = 0.0, high = 1.0;
  if (r.factor > 1.0f) {
    low = std::max(0.0, std::floor(dimension_of(static_cast<double>(r.beta_fast))));
    high = std::min(d.head_dim - 1.0, std::ceil(dimension_of(static_cast<double>(r.beta_slow))));
    if (low >= high) high = low + 0.001;
  }
  for (int i = 0; i < half; ++i) {
    double f = std::exp(-log_theta * i / half);
    if (r.factor > 1.0f) {
      const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      f = f * (1.0 - ramp) + f / static_cast<double>(r.factor) * ramp;
    }
    inv_freq[static_cast<std::size_t>(i)] = static_cast<float>(f);
  }
  return inv_freq;
}

}  // namespace

std::uint64_t block_bytes_per_position(const BlockDrafter& d) {
  return d.window > 0 ? 0 : cell_bytes(d);
}

std::uint64_t block_bytes_per_sequence(const BlockDrafter& d) {
  return static_cast<std::uint64_t>(ring_tiles(d)) * kPageKeys * cell_bytes(d);
}

BlockRunner::BlockRunner(Ops& ops, const Graph& graph, const BlockDrafter& drafter, int n_slots,
                         int n_spare, int n_pages, int max_rows, Rows<float> logits)
    : ops_(ops),
      graph_(graph),
      drafter_(drafter),
      logits_(logits),
      states_(static_cast<std::size_t>(n_slots + n_spare)) {
  const int d = graph.d_model, n_layers = static_cast<int>(drafter.layers.size());
  const int n_features = drafter.n_taps() * d, n_cols = drafter.n_kv_cols();
  const int q_cols = drafter.n_heads * drafter.head_dim;
  const auto rows = [&](int n_rows, int cols, const char* purpose) {
    return allocate_rows(ops, n_rows, cols, purpose);
  };
  taps_.layers = drafter.taps;
  taps_.rows = rows(max_rows, n_features, "tapped rows");
  // One more backlog, of zeros, is timing's.
  backlog_memory_ = rows((n_slots + 1) * kBacklogRows, n_features, "tapped rows kept");
  gathered_ = rows(kRoundRowsMax, n_features, "tapped rows of a pass");
  context_ = rows(kContextRows, d, "a drafter's context");
  kv_ = rows(kContextRows, 2 * n_layers * n_cols, "a drafter's keys");
  x_ = rows(kRoundRowsMax, d, "a drafter's residual stream");
  normed_ = rows(kRoundRowsMax, d, "a drafter's normed rows");
  q_ = rows(kRoundRowsMax, q_cols, "a drafter's queries");
  block_kv_ = rows(kRoundRowsMax, 2 * n_cols, "a block's keys");
  mixed_ = rows(kRoundRowsMax, q_cols, "a drafter's mixed rows");
  gate_ = rows(kRoundRowsMax, drafter.d_ff, "a drafter's gates");
  up_ = rows(kRoundRowsMax, drafter.d_ff, "a drafter's hidden rows");
  operand_ = ops.operand(kContextRows, std::max({n_features, q_cols, drafter.d_ff}));
  if (drafter.markov_rank > 0) {
    markov_ = rows(kRoundRowsMax, drafter.markov_rank, "Markov rows");
    markov_operand_ = ops.operand(kRoundRowsMax, drafter.markov_rank);
  }

  const std::vector<float> inv_freq = frequencies(drafter);
  auto* const table =
      static_cast<float*>(ops.allocate(inv_freq.size() * sizeof(float), "rotary frequencies"));
  ops.write(inv_freq.data(), inv_freq.size() * sizeof(float), table);
  rope_ = {table, 1.0f, drafter.head_dim};
  if (drafter.rope.factor > 1.0f) rope_.magnitude = 0.1f * std::log(drafter.rope.factor) + 1.0f;

  cache_.n_cols = n_cols;
  cache_.n_layers = n_layers;
  cache_.ring_tiles = ring_tiles(drafter);
  cache_.n_cells = std::int64_t{kPageKeys} *
                   (cache_.ring_tiles > 0 ? (n_slots + n_spare) * cache_.ring_tiles : n_pages);
  const std::uint64_t half = static_cast<std::uint64_t>(cache_.n_cells) * cell_bytes(drafter) / 2;
  cache_.keys = static_cast<std::uint16_t*>(ops.allocate(half, "a drafter's context keys"));
  cache_.values = static_cast<std::uint16_t*>(ops.allocate(half, "a drafter's context values"));
}

Rows<float> BlockRunner::backlog(int slot, int first, int n) const {
  // Kept prefixes have none: the timed slot comes last of those that do.
  const int last = backlog_memory_.n_rows / kBacklogRows - 1;
  return backlog_memory_.rows(std::min(slot, last) * kBacklogRows + first, n);
}

// --- feeding

bool BlockRunner::begin_feed(const Place& place, int n_rows, bool wanted) {
  State& state = at(place.slot);
  state.is_fed = wanted;
  state.n_fresh = 0;
  if (wanted && state.n_backlog > 0 && state.n_backlog + n_rows > kBacklogRows) drain(place);
  return wanted;
}

void BlockRunner::feed(const Place& place, int first_row, int n, bool sure) {
  State& state = at(place.slot);
  if (sure && n > kBacklogRows) {
    // A window's keys from before it would never be read.
    const int n_seen = drafter_.window > 0 ? std::min(n, drafter_.window - 1) : n;
    for (int i = n - n_seen; i < n; i += kContextRows) {
      const int n_part = std::min(kContextRows, n - i);
      append(place, place.n_committed + i, taps_.rows.rows(first_row + i, n_part));
    }
    return;
  }
  ops_.round_bf16(taps_.rows.rows(first_row, n), backlog(place.slot, state.n_backlog, n));
  state.n_fresh = n;
}

void BlockRunner::feed_ops(int slot, int n) {
  ops_.round_bf16(taps_.rows.rows(0, n), backlog(slot, 0, n));
}

void BlockRunner::commit(int slot, int n_kept, int n_committed) {
  State& state = at(slot);
  if (state.is_fed) {
    state.n_backlog += std::min(state.n_fresh, n_kept);
  } else {
    state.n_backlog = 0;
    state.first_key = n_committed;  // a gap: what lies before it is of no use any more
  }
  state.n_fresh = 0;
}

bool BlockRunner::can_draft(int slot, int n_committed) const {
  const State& state = at(slot);
  return drafter_.window > 0 ? n_committed > state.first_key : state.first_key == 0;
}

// --- context keys

Segment BlockRunner::context_segment(const Place& place, int first_row, int first_position,
                                     int n) const {
  Segment segment;
  segment.first_row = first_row;
  segment.n_rows = segment.n_live = segment.n_sure = n;
  segment.first_position = first_position;
  segment.slot = place.slot;
  if (cache_.ring_tiles == 0) segment.pages = place.pages;
  return segment;
}

void BlockRunner::append(const Place& place, int first_position, Rows<const float> taps) {
  const int n = taps.n_rows;
  segments_.assign(1, context_segment(place, 0, first_position, n));
  ids_.assign(static_cast<std::size_t>(n), 0);
  marked_.assign(static_cast<std::size_t>(n), 0);
  const Batch batch{n, segments_, marked_};
  ops_.begin(batch, ids_);
  const auto where = reinterpret_cast<std::uintptr_t>(taps.data);
  ops_.replay(key_with(key_with(5, where), static_cast<std::uint64_t>(n)),
              [&] { context_ops(batch, 0, taps); });
}

void BlockRunner::drain(const Place& place) {
  State& state = at(place.slot);
  if (state.n_backlog == 0) return;
  append(place, place.n_committed - state.n_backlog, backlog(place.slot, 0, state.n_backlog));
  state.n_backlog = 0;
}

// One of kv_proj's matrices as a weight by itself.
Weight BlockRunner::kv_part(int matrix) const {
  Weight w = drafter_.kv_proj;
  w.data = w.matrix(matrix);
  if (w.gains != nullptr) w.gains += matrix;
  w.bytes = w.matrix_bytes();
  w.n_matrices = 1;
  return w;
}

void BlockRunner::context_ops(const Batch& batch, int first_row, Rows<const float> taps) {
  const int n = taps.n_rows;
  const Batch part = part_of(batch, first_row, n);
  const Rows<float> c = context_.rows(0, n), kv = kv_.rows(0, n);
  const Weight& w = drafter_.kv_proj;
  ops_.quantize(taps, takes_codes({&drafter_.fc}), *operand_);
  ops_.linear(part, *operand_, drafter_.fc, Epilogue::store, c);
  ops_.norm_quantize(part, c, drafter_.hidden_norm.as_f32(), drafter_.norm_eps, c,
                     takes_codes({&w}), *operand_);
  if (!has_gain(w.format)) {
    // Whole tiles a matrix: all of them are one.
    Weight all = w;
    all.n_rows *= all.n_matrices;
    all.n_matrices = 1;
    ops_.linear(part, *operand_, all, Epilogue::store, kv);
  } else {
    for (int m = 0; m < w.n_matrices; ++m) {
      ops_.linear(part, *operand_, kv_part(m), Epilogue::store, kv.columns(m * w.n_rows, w.n_rows));
    }
  }
  ops_.put_context(batch, first_row, rope_, drafter_.norm_eps, drafter_.k_norm.as_f32(), cache_,
                   kv);
}

// --- a pass

void BlockRunner::block_ops(const Batch& batch, std::span<const int> ids, const BlockShape& shape,
                            int n_drafts) {
  const int n = shape.n_sequences * shape.block_rows, n_cols = cache_.n_cols;
  const float eps = drafter_.norm_eps;
  // The blocks' own rows and segments, so that ops see no context row.
  const Batch blocks{n, batch.segments.first(static_cast<std::size_t>(shape.n_sequences)),
                     batch.marked.first(static_cast<std::size_t>(n))};
  const Rows<float> x = x_.rows(0, n), u = normed_.rows(0, n), q = q_.rows(0, n),
                    kv = block_kv_.rows(0, n), y = mixed_.rows(0, n), gate = gate_.rows(0, n),
                    up = up_.rows(0, n);
  ops_.embed_but(graph_.embedding, drafter_.mask_id, drafter_.mask_embedding.as_f32(),
                 ids.first(static_cast<std::size_t>(n)), x);
  for (int i = 0; i < cache_.n_layers; ++i) {
    const BlockLayer& layer = drafter_.layers[static_cast<std::size_t>(i)];
    const Weight k_proj = kv_part(2 * i), v_proj = kv_part(2 * i + 1);
    ops_.norm_quantize(blocks, x, layer.input_norm.as_f32(), eps, u,
                       takes_codes({&layer.q_proj, &k_proj}), *operand_);
    const LinearTask qkv[] = {{&layer.q_proj, Epilogue::store, q},
                              {&k_proj, Epilogue::store, kv.columns(0, n_cols)},
                              {&v_proj, Epilogue::store, kv.columns(n_cols, n_cols)}};
    ops_.linears(blocks, *operand_, qkv);
    ops_.rope_heads(blocks, rope_, eps, q, layer.q_norm.as_f32(), kv.columns(0, n_cols),
                    drafter_.k_norm.as_f32() + i * drafter_.head_dim);
    const float* sinks = layer.sinks.present() ? layer.sinks.as_f32() : nullptr;
    ops_.block_attention(blocks, shape, i, sinks, cache_, q, kv, y);
    ops_.quantize(y, takes_codes({&layer.o_proj}), *operand_);
    ops_.linear(blocks, *operand_, layer.o_proj, Epilogue::add, x);
    ops_.norm_quantize(blocks, x, layer.post_norm.as_f32(), eps, u,
                       takes_codes({&layer.gate_proj, &layer.up_proj}), *operand_);
    const LinearTask mlp[] = {{&layer.gate_proj, Epilogue::store, gate},
                              {&layer.up_proj, Epilogue::store, up}};
    ops_.linears(blocks, *operand_, mlp);
    ops_.gate_quantize(gate, up, up, takes_codes({&layer.down_proj}), *operand_);
    ops_.linear(blocks, *operand_, layer.down_proj, Epilogue::add, x);
  }
  // The anchor's row predicts nothing; among others it goes along.
  const int first = shape.n_sequences == 1 ? 1 : 0;
  const int n_heads_rows = shape.n_sequences == 1 ? n_drafts : n;
  const Batch part = part_of(batch, first, n_heads_rows);
  ops_.norm_quantize(part, x.rows(first, n_heads_rows), drafter_.final_norm.as_f32(), eps,
                     u.rows(first, n_heads_rows), takes_codes({&graph_.lm_head}), *operand_);
  ops_.linear(part, *operand_, graph_.lm_head, Epilogue::store, logits_.rows(first, n_heads_rows));
}

void BlockRunner::draft(std::span<const Ask> asks, int n_drafts, std::vector<Sampled>& out) {
  require(n_drafts >= 1 && n_drafts <= most_drafts(), "a block has so many drafts");
  const auto n = static_cast<std::size_t>(n_drafts);
  out.assign(asks.size() * n, Sampled{});
  const int block_rows = drafter_.is_causal() ? n_drafts + 1 : drafter_.block_size;
  const auto n_group = static_cast<std::size_t>(kRoundRowsMax / block_rows);
  for (std::size_t first = 0; first < asks.size(); first += n_group) {
    const std::size_t count = std::min(n_group, asks.size() - first);
    run_group(asks.subspan(first, count), n_drafts, std::span(out).subspan(first * n, count * n));
  }
}

void BlockRunner::run_group(std::span<const Ask> asks, int n_drafts, std::span<Sampled> out) {
  BlockShape shape;
  shape.n_sequences = static_cast<int>(asks.size());
  shape.block_rows = drafter_.is_causal() ? n_drafts + 1 : drafter_.block_size;
  shape.n_heads = drafter_.n_heads;
  shape.n_kv_heads = drafter_.n_kv_heads;
  shape.head_dim = drafter_.head_dim;
  shape.window = drafter_.window;
  shape.is_causal = drafter_.is_causal();
  const int n_block_rows = shape.n_sequences * shape.block_rows;

  // Backlogs that do not fit beside the blocks are appended by themselves.
  int n_rows = n_block_rows;
  std::vector<int> n_context(asks.size(), 0);
  for (std::size_t s = 0; s < asks.size(); ++s) {
    const int n = at(asks[s].place.slot).n_backlog;
    if (n == 0) continue;
    const int padded = std::min(ops_.padded_rows(n), kBacklogRows);
    if (shape.n_sequences > 1 && n_rows + padded > kRoundRowsMax) {
      drain(asks[s].place);
    } else {
      n_context[s] = padded;
      n_rows += padded;
    }
  }

  segments_.clear();
  ids_.assign(static_cast<std::size_t>(n_rows), 0);
  marked_.assign(static_cast<std::size_t>(n_rows), 0);
  specs_.clear();
  std::uint64_t key = key_with(6, static_cast<std::uint64_t>(drafter_.kind));
  for (const int part : {shape.n_sequences, n_drafts}) {
    key = key_with(key, static_cast<std::uint64_t>(part));
  }
  for (int s = 0; s < shape.n_sequences; ++s) {
    const Ask& ask = asks[static_cast<std::size_t>(s)];
    const int first_row = s * shape.block_rows;
    segments_.push_back(
        context_segment(ask.place, first_row, ask.place.n_committed, shape.block_rows));
    segments_.back().first_key = at(ask.place.slot).first_key;
    const auto ids = std::span(ids_).subspan(static_cast<std::size_t>(first_row),
                                             static_cast<std::size_t>(shape.block_rows));
    std::fill(ids.begin(), ids.end(), drafter_.mask_id);
    ids[0] = ask.next_id;
    specs_.push_back(ask.sampling);
  }
  int n_gathered = 0;
  for (std::size_t s = 0; s < asks.size(); ++s) {
    if (n_context[s] == 0) continue;
    const Place& place = asks[s].place;
    State& state = at(place.slot);
    segments_.push_back(context_segment(place, n_block_rows + n_gathered,
                                        place.n_committed - state.n_backlog, n_context[s]));
    segments_.back().n_live = state.n_backlog;
    n_gathered += n_context[s];
    for (const int part : {place.slot, n_context[s]}) {
      key = key_with(key, static_cast<std::uint64_t>(part));
    }
    state.n_backlog = 0;
  }

  BlockTask task;
  task.batch = {n_rows, segments_, marked_};
  task.ids = ids_;
  task.key = key;
  task.ops = [&] {
    if (shape.n_sequences == 1 && n_gathered > 0) {
      context_ops(task.batch, n_block_rows, backlog(asks[0].place.slot, 0, n_gathered));
    } else if (n_gathered > 0) {
      int done = 0;
      for (std::size_t s = 0; s < asks.size(); ++s) {
        if (n_context[s] == 0) continue;
        ops_.round_bf16(backlog(asks[s].place.slot, 0, n_context[s]),
                        gathered_.rows(done, n_context[s]));
        done += n_context[s];
      }
      context_ops(task.batch, n_block_rows, gathered_.rows(0, n_gathered));
    }
    block_ops(task.batch, ids_, shape, n_drafts);
  };
  task.n_sequences = shape.n_sequences;
  task.block_rows = shape.block_rows;
  task.n_drafts = n_drafts;
  task.logits = logits_.rows(0, n_block_rows);
  task.sampling = specs_;
  if (drafter_.markov_rank > 0) {
    task.markov_w1 = &drafter_.markov_w1;
    task.markov_w2 = &drafter_.markov_w2;
    task.markov_rows = markov_.rows(0, shape.n_sequences);
    task.markov_operand = markov_operand_.get();
  }
  ops_.run_block(task, out);
}

void BlockRunner::run_scratch(int slot, int page, int n_drafts, const SampleSpec& sampling) {
  constexpr int kKept = 4;  // rows that a usual round leaves to append
  State& state = at(slot);
  state = State{};
  state.n_backlog = kKept;
  Ask ask;
  ask.place = {slot, kKept, {&page, 1}};
  ask.next_id = 0;
  ask.sampling = sampling;
  sampled_.assign(static_cast<std::size_t>(n_drafts), Sampled{});
  run_group({&ask, 1}, n_drafts, sampled_);
}

// --- kept prefixes

void BlockRunner::copy_slot(int from_slot, int to_slot) {
  require(is_drained(from_slot), "a copied slot has no backlog");
  at(to_slot) = State{};
  at(to_slot).first_key = at(from_slot).first_key;
  if (cache_.ring_tiles == 0) return;
  const std::int64_t n_cells = std::int64_t{cache_.ring_tiles} * kPageKeys;
  const auto bytes = static_cast<std::uint64_t>(n_cells * cache_.n_cols) * sizeof(std::uint16_t);
  for (int layer = 0; layer < cache_.n_layers; ++layer) {
    const std::int64_t from = cache_.place(layer, from_slot * n_cells),
                       to = cache_.place(layer, to_slot * n_cells);
    ops_.copy(cache_.keys + from, bytes, cache_.keys + to);
    ops_.copy(cache_.values + from, bytes, cache_.values + to);
  }
}

void BlockRunner::copy_page(int from, int to) {
  if (cache_.ring_tiles > 0) return;
  const auto bytes = static_cast<std::uint64_t>(kPageKeys) *
                     static_cast<std::uint64_t>(cache_.n_cols) * sizeof(std::uint16_t);
  for (int layer = 0; layer < cache_.n_layers; ++layer) {
    const std::int64_t a = cache_.place(layer, std::int64_t{from} * kPageKeys),
                       b = cache_.place(layer, std::int64_t{to} * kPageKeys);
    ops_.copy(cache_.keys + a, bytes, cache_.keys + b);
    ops_.copy(cache_.values + a, bytes, cache_.values + b);
  }
}

}  // namespace bolt
