// Where each op of a rank is the inner one over its part, and what is exchanged after it.
#include "core/engine/rank_ops.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/ops/round.h"

namespace bolt {
namespace {

constexpr int kExpertRowsMax = 2048;  // that a device routes at once

std::vector<const Weight*> shared_weights(const Graph& graph) {
  std::vector<const Weight*> all;
  each_share(graph, [&](const Weight& w, Share) { all.push_back(&w); });
  return all;
}

// f(whole layer, part of it) for every layer of both.
template <class F>
void each_layer(const Graph& whole, const Graph& part, const F& f) {
  for (std::size_t i = 0; i < whole.layers.size(); ++i) f(whole.layers[i], part.layers[i]);
  for (std::size_t i = 0; whole.draft && i < whole.draft->layers.size(); ++i) {
    f(whole.draft->layers[i], part.draft->layers[i]);
  }
}

// The part's weights in the whole's shapes.
Graph whole_shapes(const Graph& whole, const Graph& part) {
  Graph graph = part;
  const auto layers = [](const std::vector<Layer>& from, std::vector<Layer>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (auto* m = std::get_if<Mamba2>(&to[i].mixer)) {
        const auto& all = std::get<Mamba2>(from[i].mixer);
        m->n_heads = all.n_heads, m->n_ssm_groups = all.n_ssm_groups;
      } else if (auto* a = std::get_if<Attention>(&to[i].mixer)) {
        const auto& all = std::get<Attention>(from[i].mixer);
        a->n_heads = all.n_heads, a->n_kv_heads = all.n_kv_heads;
      }
    }
  };
  layers(whole.layers, graph.layers);
  if (whole.draft) layers(whole.draft->layers, graph.draft->layers);
  const std::vector<const Weight*> shapes = shared_weights(whole);
  std::size_t i = 0;
  each_share(graph, [&](Weight& w, Share) { w.n_rows = shapes[i++]->n_rows; });
  return graph;
}

// State of one layer, of which each rank keeps its heads'. Canonical bytes are put together from
// all ranks', which read at the same time.
class RankMambaCache final : public MambaCache {
 public:
  RankMambaCache(std::unique_ptr<MambaCache> own, Exchange& exchange, const Mamba2& whole)
      : own_(std::move(own)), exchange_(exchange), node_(whole) {}
  MambaCache& own() { return *own_; }
  void reset(int slot) override { own_->reset(slot); }
  void copy(int from_slot, int to_slot) override { own_->copy(from_slot, to_slot); }
  void read(int slot, int n_lag, std::vector<float>& state) const override {
    own_->read(slot, n_lag, state);
    std::vector<std::vector<std::byte>> parts;
    exchange_.gather_bytes(std::as_bytes(std::span(state)), parts);
    const int n_ranks = exchange_.n_ranks();
    const auto floats = [&](int rank) {
      return reinterpret_cast<const float*>(parts[static_cast<std::size_t>(rank)].data());
    };
    state.clear();
    const auto append = [&](const float* from, int n) {
      state.insert(state.end(), from, from + n);
    };
    const int x_cols = node_.d_inner() / n_ranks, h_floats = x_cols * node_.d_state;
    for (int r = 0; r < n_ranks; ++r) append(floats(r), h_floats);
    // Conv inputs x | B | C, oldest first; of a group that several ranks have, the first's.
    const int bc_cols = groups_of(node_, {0, n_ranks}).n * node_.d_state;
    for (int k = 0; k < node_.conv_kernel - 1; ++k) {
      const auto row = [&](int r) { return floats(r) + h_floats + k * (x_cols + 2 * bc_cols); };
      for (int r = 0; r < n_ranks; ++r) append(row(r), x_cols);
      for (int part = 0; part < 2; ++part) {
        int next_group = 0;
        for (int r = 0; r < n_ranks; ++r) {
          const ColumnRange groups = groups_of(node_, {r, n_ranks});
          if (groups.first != next_group) continue;
          append(row(r) + x_cols + part * bc_cols, bc_cols);
          next_group += groups.n;
        }
      }
    }
  }

 private:
  const std::unique_ptr<MambaCache> own_;
  Exchange& exchange_;
  const Mamba2 node_;
};

class RankKvCache final : public KvCache {
 public:
  RankKvCache(std::unique_ptr<KvCache> own, Exchange& exchange, const Attention& whole)
      : own_(std::move(own)), exchange_(exchange), node_(whole) {}
  KvCache& own() { return *own_; }
  std::uint64_t page_bytes() const override { return own_->page_bytes(); }
  bool copy(int from_page, int to_page) override { return own_->copy(from_page, to_page); }
  void read(int page, int n_keys, std::vector<std::byte>& bytes) const override {
    own_->read(page, n_keys, bytes);
    std::vector<std::vector<std::byte>> parts;
    exchange_.gather_bytes(bytes, parts);
    bytes.clear();
    for (int half = 0; half < 2; ++half) {  // keys, then values; of a head that several have, one's
      int next_head = 0;
      for (int r = 0; r < exchange_.n_ranks(); ++r) {
        const ColumnRange heads = kv_heads_of(node_, {r, exchange_.n_ranks()});
        if (heads.first != next_head) continue;
        const auto& part = parts[static_cast<std::size_t>(r)];
        const auto n = static_cast<std::ptrdiff_t>(part.size() / 2);
        bytes.insert(bytes.end(), part.begin() + half * n, part.begin() + (half + 1) * n);
        next_head += heads.n;
      }
    }
  }

 private:
  const std::unique_ptr<KvCache> own_;
  Exchange& exchange_;
  const Attention node_;
};

KvCache& own_cache(KvCache& cache) { return static_cast<RankKvCache&>(cache).own(); }

}  // namespace

RankOps::RankOps(Ops& inner, Exchange& exchange, const Graph& whole, const Graph& part,
                 std::uint64_t expert_bytes)
    : inner_(inner),
      exchange_(exchange),
      graph_(whole_shapes(whole, part)),
      expert_bytes_(expert_bytes) {
  const std::vector<const Weight*> shapes = shared_weights(whole);
  std::size_t i = 0;
  each_share(part, [&](const Weight& w, Share share) {
    const int n_all = shapes[i++]->n_rows;
    if (n_all == 0) return;  // the model has no such weight
    Part p{w, share, {0, w.n_rows}, 0};
    if (share != Share::heads) {
      p.slice = slice_cols(n_all, of().n_ranks);
      p.columns = part_of_columns(n_all, p.slice, of().rank);
      require(p.columns.n == w.n_rows, "a rank has its rows of a weight");
    }
    parts_.emplace(std::pair(w.data, n_all), std::move(p));
  });
  each_layer(whole, part, [&](const Layer& all, const Layer& own) {
    if (const auto* m = std::get_if<Mamba2>(&own.mixer)) {
      Mamba2 node = *m;
      // Groups that ranks share are normed once they are whole.
      if (of().n_ranks > std::get<Mamba2>(all.mixer).n_ssm_groups) node.gate_norm = {};
      mambas_.emplace(m->in_proj.data, std::move(node));
    } else if (const auto* a = std::get_if<Attention>(&own.mixer)) {
      attentions_.emplace(a->q_proj.data, *a);
    }
  });
}

RankOps::~RankOps() = default;

const RankOps::Part* RankOps::part_of(const Weight& w) const {
  const auto found = parts_.find({w.data, w.n_rows});
  return found == parts_.end() ? nullptr : &found->second;
}
const RankOps::Part& RankOps::shared_part(const Weight& w) const {
  const Part* part = part_of(w);
  require(part != nullptr, "ranks share this weight");
  return *part;
}
const Mamba2& RankOps::part_of(const Mamba2& node) const { return mambas_.at(node.in_proj.data); }
const Attention& RankOps::part_of(const Attention& node) const {
  return attentions_.at(node.q_proj.data);
}

// --- calls, and marks: each rank sees those of its own sums

void RankOps::begin(const Batch& batch, std::span<const int> ids) {
  step();
  begun_ = batch;
  sampled_ = false;
  inner_.begin(batch, ids);
}

void RankOps::merge_marks(const Batch& batch) {
  // All of the call's rows, as those are told at once with the first that are sampled; in a round
  // that a device runs by itself, the batch at hand is the whole.
  const std::span<std::uint8_t> all = begun_.marked, own = batch.marked;
  const bool inside = !all.empty() && own.data() >= all.data() &&
                      own.data() + own.size() <= all.data() + all.size();
  const Batch& rows = inside ? begun_ : batch;
  exchange_.merge_marks(inner_.marks(rows), static_cast<int>(rows.marked.size()));
}

void RankOps::sample(Rows<const float> logits, std::span<const SampleSpec> specs,
                     std::span<const std::uint8_t> marked, const int* ids_of,
                     std::span<Sampled> out) {
  step();
  sampled_ = true;
  inner_.sample(logits, specs, marked, ids_of, out);
}

void RankOps::finish(const Batch& batch) {
  if (!sampled_) exchange_.merge_marks(inner_.marks(batch), static_cast<int>(batch.marked.size()));
  inner_.finish(batch);
}

// The inner ops begin these by themselves; the head's marks are all that they need.
void RankOps::run_round(const RoundTask& task, RoundOutcome& outcome) {
  begun_ = {};
  inner_.run_round(task, outcome);
}
void RankOps::run_block(const BlockTask& task, std::span<Sampled> drafts) {
  begun_ = {};
  inner_.run_block(task, drafts);
}

// --- linears

void RankOps::own_columns(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
                          Rows<float> y) {
  const Part& part = shared_part(w);
  if (part.columns.n == 0) return;
  inner_.linear(batch, x, part.weight, epilogue, y.columns(part.columns.first, part.columns.n));
}

void RankOps::linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
                     Rows<float> y) {
  const Part* part = part_of(w);
  if (part == nullptr) return inner_.linear(batch, x, w, epilogue, y);
  own_columns(batch, x, w, epilogue, y);
  if (part->share == Share::heads) return;
  gather(y.columns(0, w.n_rows), part->slice);
  if (part->share == Share::logits) merge_marks(batch);
}

void RankOps::own_linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls,
                          std::vector<SharedRows>& shared) {
  std::vector<LinearTask> tasks;
  for (const LinearTask& call : calls) {
    const Part* part = part_of(*call.w);
    if (part == nullptr) {
      tasks.push_back(call);
      continue;
    }
    require(part->share != Share::logits, "logits are a linear of their own");
    if (part->columns.n > 0) {
      tasks.push_back({&part->weight, call.epilogue,
                       call.y.columns(part->columns.first, part->columns.n), nullptr});
    }
    if (part->share != Share::heads) {
      shared.push_back({call.y.columns(0, call.w->n_rows), part->slice});
    }
  }
  if (!tasks.empty()) inner_.linears(batch, x, tasks);
}

void RankOps::linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls) {
  std::vector<SharedRows> shared;
  own_linears(batch, x, calls, shared);
  if (!shared.empty()) gather(shared);
  for (const LinearTask& call : calls) {
    if (part_of(*call.w) != nullptr && call.quantised != nullptr) {
      inner_.quantize(call.y.columns(0, call.w->n_rows), true, *call.quantised);
    }
  }
}

// --- mixers

std::unique_ptr<MambaCache> RankOps::mamba_cache(const Mamba2& node, int n_slots) {
  step();
  return std::make_unique<RankMambaCache>(inner_.mamba_cache(part_of(node), n_slots), exchange_,
                                          node);
}
std::unique_ptr<KvCache> RankOps::kv_cache(const Attention& node, KvKind kind, int n_pages) {
  step();
  return std::make_unique<RankKvCache>(inner_.kv_cache(part_of(node), kind, n_pages), exchange_,
                                       node);
}

void RankOps::mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                    Rows<const float> zxbcdt, Rows<float> y) {
  const Mamba2& own = part_of(node);
  inner_.mamba(batch, own, eps, static_cast<RankMambaCache&>(cache).own(),
               zxbcdt.columns(0, own.d_in_proj()),
               y.columns(of().rank * own.d_inner(), own.d_inner()));
  gather(y, own.d_inner());
  if (own.gate_norm.present()) return;
  inner_.rms_norm(batch, y, node.gate_norm.as_f32(), eps, node.d_inner() / node.n_ssm_groups, y);
}

void RankOps::attention(const Batch& batch, const Attention& node, KvCache& cache,
                        Rows<const float> q, Rows<const float> k, Rows<const float> v,
                        Rows<float> y) {
  const Attention& own = part_of(node);
  const int q_cols = own.n_heads * own.head_dim, kv_cols = own.n_kv_heads * own.head_dim;
  inner_.attention(batch, own, own_cache(cache), q.columns(0, q_cols), k.columns(0, kv_cols),
                   v.columns(0, kv_cols), y.columns(of().rank * q_cols, q_cols));
  gather(y, q_cols);
}

void RankOps::put_keys(const Batch& batch, const Attention& node, KvCache& cache,
                       Rows<const float> k, Rows<const float> v) {
  const Attention& own = part_of(node);
  const int kv_cols = own.n_kv_heads * own.head_dim;
  inner_.put_keys(batch, own, own_cache(cache), k.columns(0, kv_cols), v.columns(0, kv_cols));
}

// Room for experts' rows: large enough for all layers, so that no later call needs more.
void RankOps::make_hidden(int top_k, int width) {
  if (hidden_.n_rows >= top_k && hidden_.n_cols >= width) return;
  std::uint64_t widest = 1, pairs_of_row = 1;
  each_layer(graph_, graph_, [&](const Layer& layer, const Layer&) {
    const auto* moe = std::get_if<Moe>(&layer.mixer);
    if (moe == nullptr) return;
    widest = std::max(widest, static_cast<std::uint64_t>(moe->d_expert));
    pairs_of_row = std::max(pairs_of_row, static_cast<std::uint64_t>(moe->top_k));
  });
  const std::uint64_t row_bytes = pairs_of_row * widest * sizeof(float);
  const auto most = static_cast<std::uint64_t>(std::clamp(max_rows_, 1, kExpertRowsMax));
  const std::uint64_t n_rows = std::clamp<std::uint64_t>(expert_bytes_ / row_bytes, 1, most);
  const auto n_pairs = static_cast<int>(n_rows * pairs_of_row);
  hidden_ = {static_cast<float*>(inner_.allocate(n_rows * row_bytes, "experts' rows")), n_pairs,
             static_cast<int>(widest)};
  hidden_operand_ = inner_.operand(n_pairs, static_cast<int>(widest));
}

void RankOps::own_expert_columns(const Batch& batch, const Moe& node, Rows<const float> logits,
                                 const Operand& x, Rows<float> y, std::vector<SharedRows>& shared) {
  const Part &up = shared_part(node.experts_up), &down = shared_part(node.experts_down);
  Moe own = node;
  own.experts_up = up.weight, own.experts_down = down.weight;
  const int width = node.d_expert;
  make_hidden(node.top_k, width);
  const int at_once = hidden_.n_rows / node.top_k;
  const bool integer = is_integer(node.experts_down.format);
  for (int first = 0; first < y.n_rows; first += at_once) {
    const int n = std::min(at_once, y.n_rows - first);
    const Rows<float> hidden{hidden_.data, n * node.top_k, width};
    inner_.experts_up(batch, own, logits, x, first, hidden.columns(up.columns.first, up.columns.n));
    shared.push_back({hidden, up.slice});
    gather(shared);
    shared.clear();
    inner_.quantize(hidden, integer, *hidden_operand_);
    inner_.experts_down(batch, own, *hidden_operand_, first,
                        y.rows(first, n).columns(down.columns.first, down.columns.n));
  }
}

void RankOps::experts(const Batch& batch, const Moe& node, Rows<const float> logits,
                      const Operand& x, Rows<float> y) {
  std::vector<SharedRows> shared;
  own_expert_columns(batch, node, logits, x, y, shared);
  gather(y.columns(0, node.experts_down.n_rows), shared_part(node.experts_down).slice);
}

// The sums that end the layer are each column's own, so that they are exchanged once, at its end.
void RankOps::moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
                  Rows<float> x) {
  const bool has_latent = node.d_latent > 0, has_shared = node.d_shared > 0;
  std::vector<LinearTask> beside{{&node.router, Epilogue::store, scratch.choice}};
  if (has_shared) beside.push_back({&node.shared_up, Epilogue::relu2, scratch.shared});
  if (has_latent) beside.push_back({&node.latent_down, Epilogue::store, scratch.latent});
  std::vector<SharedRows> shared;
  own_linears(batch, u, beside, shared);
  if (has_latent) {
    gather(shared);
    Operand& rows = *scratch.latent_operand;
    inner_.quantize(scratch.latent, is_integer(node.experts_up.format), rows);
    experts(batch, node, scratch.choice, rows, scratch.latent_out);
    inner_.quantize(scratch.latent_out, is_integer(node.latent_up.format), rows);
    own_columns(batch, rows, node.latent_up, Epilogue::store, scratch.routed);
  } else {
    own_expert_columns(batch, node, scratch.choice, u, scratch.routed, shared);
  }
  if (has_shared) {
    inner_.quantize(scratch.shared, is_integer(node.shared_down.format), *scratch.shared_operand);
    own_columns(batch, *scratch.shared_operand, node.shared_down, Epilogue::add, scratch.routed);
  }
  const int slice = slice_cols(x.n_cols, of().n_ranks);
  const ColumnRange own = bolt::part_of_columns(x.n_cols, slice, of().rank);
  if (own.n > 0) {
    inner_.add(scratch.routed.columns(own.first, own.n), x.columns(own.first, own.n));
  }
  gather(x, slice);
}

// --- what every rank does whole

void RankOps::replay(std::uint64_t key, const std::function<void()>& ops) {
  inner_.replay(key, ops);
}
void* RankOps::allocate(std::uint64_t bytes, const char* purpose) {
  step();
  return inner_.allocate(bytes, purpose);
}
std::uint64_t RankOps::free_bytes() const { return inner_.free_bytes(); }
std::unique_ptr<Operand> RankOps::operand(int max_rows, int max_cols) {
  max_rows_ = std::max(max_rows_, max_rows);
  return inner_.operand(max_rows, max_cols);
}
void RankOps::embed(const Weight& table, std::span<const int> ids, Rows<float> x) {
  inner_.embed(table, ids, x);
}
void RankOps::rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps,
                       int group, Rows<float> y) {
  inner_.rms_norm(batch, x, w, eps, group, y);
}
void RankOps::quantize(Rows<const float> x, bool integer, Operand& operand) {
  inner_.quantize(x, integer, operand);
}
void RankOps::add(Rows<const float> x, Rows<float> y) { inner_.add(x, y); }
void RankOps::norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                            Rows<float> y, bool integer, Operand& operand) {
  inner_.norm_quantize(batch, x, w, eps, y, integer, operand);
}
bool RankOps::has_block_ops() const { return inner_.has_block_ops(); }
void RankOps::round_bf16(Rows<const float> x, Rows<float> y) { inner_.round_bf16(x, y); }
void RankOps::embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                        Rows<float> x) {
  inner_.embed_but(table, id, row, ids, x);
}
void RankOps::rope_heads(const Batch& batch, const RopeTable& rope, float eps, Rows<float> q,
                         const float* q_norm, Rows<float> k, const float* k_norm) {
  inner_.rope_heads(batch, rope, eps, q, q_norm, k, k_norm);
}
void RankOps::put_context(const Batch& batch, int first_row, const RopeTable& rope, float eps,
                          const float* k_norms, const BlockCache& cache, Rows<const float> kv) {
  inner_.put_context(batch, first_row, rope, eps, k_norms, cache, kv);
}
void RankOps::block_attention(const Batch& batch, const BlockShape& shape, int layer,
                              const float* sinks, const BlockCache& cache, Rows<const float> q,
                              Rows<const float> kv, Rows<float> y) {
  inner_.block_attention(batch, shape, layer, sinks, cache, q, kv, y);
}
void RankOps::gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                            bool integer, Operand& operand) {
  inner_.gate_quantize(gate, up, y, integer, operand);
}
int RankOps::padded_rows(int n_rows) const { return inner_.padded_rows(n_rows); }
std::uint8_t* RankOps::marks(const Batch& batch) const { return inner_.marks(batch); }
void RankOps::wait() { inner_.wait(); }
void RankOps::read(const float* from, std::span<float> to) {
  step();
  inner_.read(from, to);
}
void RankOps::write(const void* from, std::uint64_t bytes, void* to) {
  step();
  inner_.write(from, bytes, to);
}
void RankOps::copy(const void* from, std::uint64_t bytes, void* to) {
  inner_.copy(from, bytes, to);
}

}  // namespace bolt
