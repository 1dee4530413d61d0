// Nemotron-H, layer by layer. Orders of operations are those of the arithmetic contract.
#include "core/engine/forward.h"

#include <algorithm>
#include <initializer_list>

#include "core/base/error.h"
#include "core/ops/replay_key.h"

namespace bolt {
namespace {

// Columns start at multiples of 16 floats, so that every row's part is aligned for the kernels.
int aligned(int n_cols) { return (n_cols + 15) & ~15; }

int scratch_cols(const Mamba2& m) { return aligned(m.d_in_proj()) + aligned(m.d_inner()); }
int scratch_cols(const Attention& a) {
  return 2 * aligned(a.n_heads * a.head_dim) + 2 * aligned(a.n_kv_heads * a.head_dim);
}
int scratch_cols(const Mlp& m) { return aligned(m.d_ff); }
int scratch_cols(const Moe& m) {
  return aligned(m.n_experts) + aligned(m.d_shared) + 2 * aligned(m.d_latent) +
         aligned(m.router.n_cols);  // the routed sum is d_model wide
}

// Hands out columns of one scratch row after another.
class Carver {
 public:
  Carver(Rows<float> scratch, int n_rows) : rows_(scratch.rows(0, n_rows)) {}
  Rows<float> take(int n_cols) {
    require(first_ + n_cols <= rows_.n_cols, "scratch columns suffice");
    const Rows<float> part = rows_.columns(first_, n_cols);
    first_ += aligned(n_cols);
    return part;
  }

 private:
  Rows<float> rows_;
  int first_ = 0;
};

// Whether any of these linears takes its rows quantised.
bool any_integer(std::initializer_list<const Weight*> weights) {
  return std::any_of(weights.begin(), weights.end(),
                     [](const Weight* w) { return w->present() && is_integer(w->format); });
}

// Whether the linears that read a layer's normed rows take them quantised.
bool takes_integer(const Mamba2& m) { return any_integer({&m.in_proj}); }
bool takes_integer(const Attention& a) { return any_integer({&a.q_proj, &a.k_proj, &a.v_proj}); }
bool takes_integer(const Mlp& m) { return any_integer({&m.up_proj}); }
bool takes_integer(const Moe& m) {
  return any_integer({&m.shared_up, m.d_latent > 0 ? &m.latent_down : &m.experts_up});
}

// Rows [first, first + n) of a batch, for ops that treat each row alone.
Batch part_of(const Batch& batch, int first, int n) {
  return {
      n, {}, batch.marked.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n))};
}

Part part_of_layer(const Layer& layer) {
  if (std::holds_alternative<Mamba2>(layer.mixer)) return Part::mamba;
  if (std::holds_alternative<Attention>(layer.mixer)) return Part::attention;
  return std::holds_alternative<Mlp>(layer.mixer) ? Part::mlp : Part::experts;
}

Rows<float> allocate_rows(Ops& ops, int n_rows, int n_cols, const char* purpose) {
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(n_rows) * static_cast<std::uint64_t>(n_cols) * sizeof(float);
  return {static_cast<float*>(ops.allocate(bytes, purpose)), n_rows, n_cols};
}

LayerCache make_cache(Ops& ops, const Layer& layer, KvKind kv, int n_slots, int n_pages) {
  LayerCache cache;
  if (const auto* mamba = std::get_if<Mamba2>(&layer.mixer)) {
    cache.mamba = ops.mamba_cache(*mamba, n_slots);
  } else if (const auto* attention = std::get_if<Attention>(&layer.mixer)) {
    cache.kv = ops.kv_cache(*attention, kv, n_pages);
  }
  return cache;
}

// A call's shape: what a device that captured it must find unchanged.
std::uint64_t shape_key(std::uint64_t kind, const Batch& batch) {
  std::uint64_t key = key_with(kind, static_cast<std::uint64_t>(batch.n_rows));
  for (const Segment& s : batch.segments) {
    for (const int part : {s.first_row, s.n_rows}) {
      key = key_with(key, static_cast<std::uint64_t>(part));
    }
  }
  return key;
}

}  // namespace

Forward::Forward(Ops& ops, const Graph& graph, KvKind kv, int n_slots, int n_pages, int max_rows,
                 int max_logit_rows)
    : ops_(ops), graph_(graph) {
  int scratch = 0, widest = graph.d_model, hidden_cols = 0, latent_cols = 0;
  const auto visit = [&](const Layer& layer) {
    const int cols = std::visit([](const auto& mixer) { return scratch_cols(mixer); }, layer.mixer);
    scratch = std::max(scratch, cols);
    widest = std::max(widest, cols);
    if (const auto* mlp = std::get_if<Mlp>(&layer.mixer)) {
      hidden_cols = std::max(hidden_cols, mlp->d_ff);
    } else if (const auto* moe = std::get_if<Moe>(&layer.mixer)) {
      hidden_cols = std::max(hidden_cols, moe->d_shared);
      latent_cols = std::max(latent_cols, moe->d_latent);
    }
  };
  for (const Layer& layer : graph.layers) {
    visit(layer);
    caches_.push_back(make_cache(ops, layer, kv, n_slots, n_pages));
  }
  if (graph.draft) {
    widest = std::max(widest, 2 * graph.d_model);
    const auto& layers = graph.draft->layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      visit(layers[i]);
      require(!std::holds_alternative<Mamba2>(layers[i].mixer), "a draft head has no Mamba layer");
      if (std::holds_alternative<Attention>(layers[i].mixer)) {
        last_head_attention_ = static_cast<int>(i);
      }
      head_caches_.push_back(make_cache(ops, layers[i], kv, n_slots, n_pages));
    }
    concat_ = allocate_rows(ops, max_rows, 2 * graph.d_model, "draft head inputs");
    head_hidden_ = allocate_rows(ops, max_logit_rows, graph.d_model, "draft head outputs");
  }
  x_ = allocate_rows(ops, max_rows, graph.d_model, "residual stream");
  normed_ = allocate_rows(ops, max_rows, graph.d_model, "normed rows");
  wide_ = allocate_rows(ops, max_rows, scratch, "layer scratch");
  logits_ = allocate_rows(ops, max_logit_rows, graph.vocab_size, "logits");
  operand_ = ops.operand(max_rows, widest);
  if (hidden_cols > 0) hidden_ = ops.operand(max_rows, hidden_cols);
  if (latent_cols > 0) latent_ = ops.operand(max_rows, latent_cols);
}

void Forward::project(const Batch& batch, const Weight& w, Rows<const float> rows, Rows<float> y) {
  ops_.quantize(rows, any_integer({&w}), *operand_);
  ops_.linear(batch, *operand_, w, Epilogue::store, y);
}

// x = x + mixer(rmsnorm(x)); the normed rows are in normed_ and operand_.
void Forward::layer(const Batch& batch, const Layer& layer, LayerCache& cache, Rows<float> x) {
  const bool integer =
      std::visit([](const auto& mixer) { return takes_integer(mixer); }, layer.mixer);
  ops_.norm_quantize(batch, x, layer.norm.as_f32(), graph_.norm_eps, normed_.rows(0, batch.n_rows),
                     integer, *operand_);
  std::visit([&](const auto& mixer) { mix(batch, mixer, cache, x); }, layer.mixer);
}

void Forward::mix(const Batch& batch, const Mamba2& node, LayerCache& cache, Rows<float> x) {
  Carver scratch(wide_, batch.n_rows);
  const Rows<float> zxbcdt = scratch.take(node.d_in_proj());
  const Rows<float> y = scratch.take(node.d_inner());
  ops_.linear(batch, *operand_, node.in_proj, Epilogue::store, zxbcdt);
  ops_.mamba_quantize(batch, node, graph_.norm_eps, *cache.mamba, zxbcdt, y,
                      any_integer({&node.out_proj}), *operand_);
  ops_.linear(batch, *operand_, node.out_proj, Epilogue::add, x);
}

void Forward::mix(const Batch& batch, const Attention& node, LayerCache& cache, Rows<float> x) {
  Carver scratch(wide_, batch.n_rows);
  const Rows<float> q = scratch.take(node.n_heads * node.head_dim);
  const Rows<float> k = scratch.take(node.n_kv_heads * node.head_dim);
  const Rows<float> v = scratch.take(node.n_kv_heads * node.head_dim);
  const Rows<float> y = scratch.take(node.n_heads * node.head_dim);
  const LinearTask calls[] = {{&node.q_proj, Epilogue::store, q},
                              {&node.k_proj, Epilogue::store, k},
                              {&node.v_proj, Epilogue::store, v}};
  ops_.linears(batch, *operand_, calls);
  ops_.attention_quantize(batch, node, *cache.kv, q, k, v, y, any_integer({&node.o_proj}),
                          *operand_);
  ops_.linear(batch, *operand_, node.o_proj, Epilogue::add, x);
}

void Forward::mix(const Batch& batch, const Mlp& node, LayerCache&, Rows<float> x) {
  Carver scratch(wide_, batch.n_rows);
  const Rows<float> wide = scratch.take(node.d_ff);
  const bool integer = any_integer({&node.down_proj});
  const LinearTask up{&node.up_proj, Epilogue::relu2, wide, integer ? hidden_.get() : nullptr};
  ops_.linears(batch, *operand_, {&up, 1});
  if (!integer) ops_.quantize(wide, false, *hidden_);
  ops_.linear(batch, *hidden_, node.down_proj, Epilogue::add, x);
}

void Forward::mix(const Batch& batch, const Moe& node, LayerCache&, Rows<float> x) {
  Carver scratch(wide_, batch.n_rows);
  MoeScratch rows;
  rows.choice = scratch.take(node.n_experts);
  rows.routed = scratch.take(graph_.d_model);
  if (node.d_shared > 0) rows.shared = scratch.take(node.d_shared);
  if (node.d_latent > 0) {
    rows.latent = scratch.take(node.d_latent);
    rows.latent_out = scratch.take(node.d_latent);
  }
  rows.shared_operand = hidden_.get();
  rows.latent_operand = latent_.get();
  ops_.moe(batch, node, *operand_, rows, x);
}

void Forward::target(const Batch& batch, std::span<const int> ids, std::span<const LogitRun> runs,
                     std::span<const Taps* const> taps) {
  std::uint64_t key = shape_key(1, batch);
  for (const LogitRun& run : runs) {
    key = key_with(key, static_cast<std::uint64_t>(run.first_row * 4096 + run.n_rows));
  }
  for (const Taps* tapped : taps) {
    key = key_with(key, reinterpret_cast<std::uintptr_t>(tapped->rows.data));
  }
  ops_.begin(batch, ids);
  replay(key, [&] { target_ops(batch, ids, runs, taps); });
}

void Forward::target_ops(const Batch& batch, std::span<const int> ids,
                         std::span<const LogitRun> runs, std::span<const Taps* const> taps) {
  const Rows<float> x = x_.rows(0, batch.n_rows);
  timed(Part::embedding, [&] { ops_.embed(graph_.embedding, ids, x); });
  for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
    timed(part_of_layer(graph_.layers[i]), [&] { layer(batch, graph_.layers[i], caches_[i], x); });
    for (const Taps* tapped : taps) {
      const auto tap = std::find(tapped->layers.begin(), tapped->layers.end(), static_cast<int>(i));
      if (tap == tapped->layers.end()) continue;
      const auto first = static_cast<int>(tap - tapped->layers.begin()) * graph_.d_model;
      timed(Part::draft_head, [&] {
        ops_.round_bf16(x, tapped->rows.rows(0, batch.n_rows).columns(first, graph_.d_model));
      });
    }
  }
  if (runs.empty()) return;
  timed(Part::head, [&] {
    int first_logit = 0;
    for (const LogitRun& run : runs) {
      const Batch part = part_of(batch, run.first_row, run.n_rows);
      const Rows<float> u = normed_.rows(run.first_row, run.n_rows);
      ops_.norm_quantize(part, x.rows(run.first_row, run.n_rows), graph_.final_norm.as_f32(),
                         graph_.norm_eps, u, any_integer({&graph_.lm_head}), *operand_);
      ops_.linear(part, *operand_, graph_.lm_head, Epilogue::store,
                  logits_.rows(first_logit, run.n_rows));
      first_logit += run.n_rows;
    }
  });
}

void Forward::read_hidden(const Batch& batch, int first, Rows<float> hidden) {
  ops_.rms_norm(part_of(batch, first, hidden.n_rows), x_.rows(first, hidden.n_rows),
                graph_.final_norm.as_f32(), graph_.norm_eps, graph_.d_model, hidden);
}

void Forward::head_input(const Batch& batch, std::span<const int> ids,
                         std::span<const Rows<const float>> hidden, Rows<float> x) {
  const DraftHead& head = *graph_.draft;
  const int d = graph_.d_model;
  const Rows<float> both = concat_.rows(0, batch.n_rows);
  ops_.embed(graph_.embedding, ids, x);
  ops_.rms_norm(batch, x, head.enorm.as_f32(), graph_.norm_eps, d, both.columns(0, d));
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const Segment& s = batch.segments[i];
    ops_.rms_norm(part_of(batch, s.first_row, s.n_rows), hidden[i], head.hnorm.as_f32(),
                  graph_.norm_eps, d, both.rows(s.first_row, s.n_rows).columns(d, d));
  }
  project(batch, head.eh_proj, both, x);
}

void Forward::put_head_keys(const Batch& batch, std::span<const int> ids,
                            std::span<const Rows<const float>> hidden) {
  if (last_head_attention_ < 0) return;
  std::uint64_t key = shape_key(3, batch);
  for (const Rows<const float>& rows : hidden) {
    key = key_with(key, reinterpret_cast<std::uintptr_t>(rows.data));
  }
  ops_.begin(batch, ids);
  replay(key, [&] { timed(Part::draft_head, [&] { put_head_keys_ops(batch, ids, hidden); }); });
}

void Forward::put_head_keys_ops(const Batch& batch, std::span<const int> ids,
                                std::span<const Rows<const float>> hidden) {
  const DraftHead& head = *graph_.draft;
  const Rows<float> x = x_.rows(0, batch.n_rows);
  head_input(batch, ids, hidden, x);
  const auto last = static_cast<std::size_t>(last_head_attention_);
  for (std::size_t i = 0; i < last; ++i) layer(batch, head.layers[i], head_caches_[i], x);

  const auto& node = std::get<Attention>(head.layers[last].mixer);
  const Rows<float> u = normed_.rows(0, batch.n_rows);
  Carver scratch(wide_, batch.n_rows);
  const Rows<float> k = scratch.take(node.n_kv_heads * node.head_dim);
  const Rows<float> v = scratch.take(node.n_kv_heads * node.head_dim);
  ops_.norm_quantize(batch, x, head.layers[last].norm.as_f32(), graph_.norm_eps, u,
                     any_integer({&node.k_proj, &node.v_proj}), *operand_);
  const LinearTask calls[] = {{&node.k_proj, Epilogue::store, k},
                              {&node.v_proj, Epilogue::store, v}};
  ops_.linears(batch, *operand_, calls);
  ops_.put_keys(batch, node, *head_caches_[last].kv, k, v);
}

void Forward::head(const Batch& batch, std::span<const int> ids,
                   std::span<const Rows<const float>> hidden, int n_vocab_rows) {
  ops_.begin(batch, ids);
  // Outside of what is captured: where hidden rows lie differs from call to call.
  timed(Part::draft_head, [&] { head_input(batch, ids, hidden, x_.rows(0, batch.n_rows)); });
  const auto key = key_with(shape_key(2, batch), static_cast<std::uint64_t>(n_vocab_rows));
  replay(key, [&] { timed(Part::draft_head, [&] { head_layers(batch, n_vocab_rows); }); });
}

void Forward::head_ops(const Batch& batch, std::span<const int> ids,
                       std::span<const Rows<const float>> hidden, int n_vocab_rows) {
  head_input(batch, ids, hidden, x_.rows(0, batch.n_rows));
  head_layers(batch, n_vocab_rows);
}

void Forward::head_layers(const Batch& batch, int n_vocab_rows) {
  const DraftHead& head = *graph_.draft;
  const Rows<float> x = x_.rows(0, batch.n_rows);
  for (std::size_t i = 0; i < head.layers.size(); ++i) {
    layer(batch, head.layers[i], head_caches_[i], x);
  }
  const Rows<float> o = head_hidden_.rows(0, batch.n_rows);
  ops_.rms_norm(batch, x, head.final_norm.as_f32(), graph_.norm_eps, graph_.d_model, o);
  if (n_vocab_rows > 0) {
    const int n_ids = head.vocab_head.n_rows;
    project(part_of(batch, 0, n_vocab_rows), head.vocab_head, o.rows(0, n_vocab_rows),
            logits_.rows(0, n_vocab_rows).columns(0, n_ids));
  }
  const int n_rest = batch.n_rows - n_vocab_rows;
  if (n_rest > 0) {
    project(part_of(batch, n_vocab_rows, n_rest), graph_.lm_head, o.rows(n_vocab_rows, n_rest),
            logits_.rows(n_vocab_rows, n_rest));
  }
}

}  // namespace bolt
