// The mixers' ops on the device: caches, scratch and launches of mamba.cu, attention.cu,
// experts.cu.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/attention.cuh"
#include "cuda/block_draft.cuh"
#include "cuda/experts.cuh"
#include "cuda/linear.cuh"
#include "cuda/linear_chunk.cuh"
#include "cuda/mamba.cuh"
#include "cuda/operand.h"
#include "cuda/ops.h"
#include "cuda/ranks.cuh"
#include "cuda/rows.cuh"

namespace bolt::cuda {

namespace {

constexpr std::int64_t kPartialBytes = 256 << 20;  // of attention's units; more rows take turns
constexpr int kExpertRows = 2048;                  // rows routed at once

class CudaMambaCache final : public MambaCache {
 public:
  CudaMambaCache(CudaOps& ops, const Mamba2& node, int n_slots)
      : ops_(ops), node_(node), n_slots_(n_slots) {
    // One slot more: where read() replays lagging rows.
    const auto slots = static_cast<std::uint64_t>(n_slots + 1);
    h = static_cast<float*>(ops.allocate(slots * h_bytes(), "recurrent state"));
    raw = static_cast<float*>(ops.allocate(slots * raw_bytes(), "conv inputs"));
    raw_dt = static_cast<float*>(ops.allocate(slots * dt_bytes(), "step sizes"));
  }
  void reset(int slot) override {
    clear(h, h_bytes(), slot);
    clear(raw, raw_bytes(), slot);
    clear(raw_dt, dt_bytes(), slot);
  }
  void copy(int from_slot, int to_slot) override {
    move(h, h_bytes(), from_slot, to_slot);
    move(raw, raw_bytes(), from_slot, to_slot);
    move(raw_dt, dt_bytes(), from_slot, to_slot);
  }
  void read(int slot, int n_lag, std::vector<float>& state) const override {
    auto* self = const_cast<CudaMambaCache*>(this);  // the spare slot is scratch
    self->copy(slot, n_slots_);
    ops_.settle(node_, h, raw, raw_dt, n_slots_, n_lag);
    const std::size_t n_h = h_bytes() / sizeof(float);
    const auto n_conv = static_cast<std::size_t>((node_.conv_kernel - 1) * node_.d_conv());
    state.resize(n_h + n_conv);
    ops_.read(h + static_cast<std::size_t>(n_slots_) * n_h, std::span(state).first(n_h));
    ops_.read(raw + static_cast<std::size_t>(n_slots_) * (raw_bytes() / sizeof(float)),
              std::span(state).last(n_conv));
  }

  float *h = nullptr, *raw = nullptr, *raw_dt = nullptr;

 private:
  std::uint64_t h_bytes() const {
    return static_cast<std::uint64_t>(node_.d_inner()) * static_cast<std::uint64_t>(node_.d_state) *
           4;
  }
  std::uint64_t raw_bytes() const {
    return static_cast<std::uint64_t>(node_.conv_kernel - 1 + kLagRowsMax) *
           static_cast<std::uint64_t>(node_.d_conv()) * 4;
  }
  std::uint64_t dt_bytes() const {
    return static_cast<std::uint64_t>(kLagRowsMax) * static_cast<std::uint64_t>(node_.n_heads) * 4;
  }
  void clear(float* base, std::uint64_t bytes, int slot) {
    check(cudaMemsetAsync(base + static_cast<std::uint64_t>(slot) * bytes / 4, 0, bytes,
                          ops_.stream()),
          "resetting a slot");
  }
  void move(float* base, std::uint64_t bytes, int from, int to) {
    check(cudaMemcpyAsync(base + static_cast<std::uint64_t>(to) * bytes / 4,
                          base + static_cast<std::uint64_t>(from) * bytes / 4, bytes,
                          cudaMemcpyDeviceToDevice, ops_.stream()),
          "copying a slot");
  }

  CudaOps& ops_;
  const Mamba2 node_;
  const int n_slots_;
};

class CudaKvCache final : public KvCache {
 public:
  CudaKvCache(CudaOps& ops, const Attention& node, int n_pages) : ops_(ops), node_(node) {
    layout.words = (node.head_dim + 3) / 4;
    pages = static_cast<std::uint32_t*>(
        ops.allocate(static_cast<std::uint64_t>(n_pages) * page_bytes(), "keys and values"));
  }
  std::uint64_t page_bytes() const override {
    return static_cast<std::uint64_t>(node_.n_kv_heads) *
           static_cast<std::uint64_t>(layout.bytes());
  }
  void read(int page, int n_keys, std::vector<std::byte>& bytes) const override {
    std::vector<float> copy(page_bytes() / 4);
    ops_.read(reinterpret_cast<const float*>(pages) + static_cast<std::size_t>(page) * copy.size(),
              copy);
    const auto* words = reinterpret_cast<const std::uint32_t*>(copy.data());
    bytes.clear();
    const auto append = [&](const auto& value) {
      const auto* p = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), p, p + sizeof(value));
    };
    for (const bool is_key : {true, false}) {
      for (int head = 0; head < node_.n_kv_heads; ++head) {
        const std::uint32_t* base = words + head * (layout.bytes() / 4);
        for (int key = 0; key < n_keys; ++key) {
          for (int d = 0; d < node_.head_dim; ++d) {
            const auto code = [&](int plane) {
              const std::uint32_t word = is_key ? base[layout.k_word(plane, d / 4, key)]
                                                : base[layout.v_word(plane, key / 4, d)];
              return static_cast<std::int8_t>(word >> (8 * (is_key ? d % 4 : key % 4)));
            };
            append(static_cast<std::int16_t>(256 * code(0) + code(1)));
          }
          const std::uint32_t scale = base[layout.scale_word(is_key ? 0 : 1, key)];
          float value;
          std::memcpy(&value, &scale, 4);
          append(is_key ? static_cast<std::int32_t>(scale >> 23) - 127
                        : static_cast<std::int32_t>(value));
        }
      }
    }
  }

  bool copy(int from_page, int to_page) override {
    if (from_page == to_page) return true;
    const std::uint64_t words = page_bytes() / sizeof(std::uint32_t);
    check(cudaMemcpyAsync(pages + static_cast<std::uint64_t>(to_page) * words,
                          pages + static_cast<std::uint64_t>(from_page) * words, page_bytes(),
                          cudaMemcpyDeviceToDevice, ops_.stream()),
          "copying a page");
    return true;
  }

  PageLayout layout;
  std::uint32_t* pages = nullptr;

 private:
  CudaOps& ops_;
  const Attention node_;
};

MambaArgs mamba_args(const Mamba2& node, float* h, float* raw, float* raw_dt) {
  MambaArgs a;
  a.n_heads = node.n_heads, a.head_dim = node.head_dim, a.d_state = node.d_state;
  a.n_ssm_groups = node.n_ssm_groups, a.conv_kernel = node.conv_kernel;
  a.d_inner = node.d_inner(), a.d_conv = node.d_conv();
  a.dt_min = node.dt_min, a.dt_max = node.dt_max;
  a.clamp = node.dt_max > 0.0f && std::isfinite(node.dt_max);
  a.conv_w = node.conv_w.as_f32(), a.conv_b = node.conv_b.as_f32();
  a.A = node.A.as_f32(), a.D = node.D.as_f32(), a.dt_bias = node.dt_bias.as_f32();
  a.h = h, a.raw = raw, a.raw_dt = raw_dt;
  return a;
}

}  // namespace

std::unique_ptr<MambaCache> CudaOps::mamba_cache(const Mamba2& node, int n_slots) {
  if (node.d_state > 256 || node.conv_kernel < 1) {
    throw Error(Exit::input, "cuda: a Mamba state of " + std::to_string(node.d_state) +
                                 " is larger than the device kernels take (256); use --device cpu");
  }
  return std::make_unique<CudaMambaCache>(*this, node, n_slots);
}

std::unique_ptr<KvCache> CudaOps::kv_cache(const Attention& node, KvKind kind, int n_pages) {
  if (kind != KvKind::i16) {
    throw Error(Exit::usage, "--kv f32 is the CPU's reference; use --kv i16 or --device cpu");
  }
  if (node.head_dim > 256) {
    throw Error(Exit::input, "cuda: head_dim " + std::to_string(node.head_dim) +
                                 " is larger than the device kernels take (256); use --device cpu");
  }
  return std::make_unique<CudaKvCache>(*this, node, n_pages);
}

void CudaOps::mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                    Rows<const float> zxbcdt, Rows<float> y) {
  run_mamba(batch, node, eps, cache, zxbcdt, y, {});
}

void CudaOps::mamba_quantize(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                             Rows<const float> zxbcdt, Rows<float> y, bool integer,
                             Operand& operand) {
  if (node.d_inner() / node.n_ssm_groups % kGroupCols != 0) {
    return Ops::mamba_quantize(batch, node, eps, cache, zxbcdt, y, integer, operand);
  }
  run_mamba(batch, node, eps, cache, zxbcdt, y, as_device(operand).hold(y, integer));
}

void CudaOps::run_mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                        Rows<const float> zxbcdt, Rows<float> y, const QuantOut& quantised) {
  auto& c = static_cast<CudaMambaCache&>(cache);
  MambaArgs a = mamba_args(node, c.h, c.raw, c.raw_dt);
  const auto rows = static_cast<std::size_t>(zxbcdt.n_rows + 32 * n_segments_);
  a.batch = view_;
  a.n_rows = zxbcdt.n_rows;
  a.zxbcdt = zxbcdt.data, a.zxbcdt_stride = zxbcdt.stride;
  a.y = y.data, a.y_stride = y.stride;
  a.conv = mamba_conv_.as<float>(rows * static_cast<std::size_t>(a.d_conv), "conv outputs", moved_);
  a.dt =
      mamba_steps_.as<float>(2 * rows * static_cast<std::size_t>(a.n_heads), "step sizes", moved_);
  a.decay = a.dt + rows * static_cast<std::size_t>(a.n_heads);
  a.lag_base = zxbcdt.n_rows;
  launch_mamba(a, n_segments_, max_segment_rows_, stream_);
  if (!node.gate_norm.present()) {  // ranks share a group: it is normed where it is whole
    launch_gate(zxbcdt.columns(0, a.d_inner), y, y, {}, stream_);
    return;
  }

  NormArgs norm;
  norm.x = y.data, norm.x_stride = y.stride;
  norm.gate = zxbcdt.data, norm.gate_stride = zxbcdt.stride;
  norm.w = node.gate_norm.as_f32();
  norm.y = y.data, norm.y_stride = y.stride;
  norm.n_rows = y.n_rows, norm.n_cols = a.d_inner, norm.group = a.d_inner / a.n_ssm_groups;
  norm.eps = eps;
  norm.marked = marks(batch);
  norm.quantised = quantised;
  launch_norm(norm, stream_);
}

void CudaOps::settle(const Mamba2& node, float* h, float* raw, float* raw_dt, int slot, int n_lag) {
  MambaArgs a = mamba_args(node, h, raw, raw_dt);
  Segment segment;
  segment.slot = slot;
  segment.n_lag = n_lag;
  upload_batch({&segment, 1}, {}, 0);
  a.batch = view_;
  a.conv = mamba_conv_.as<float>(32 * static_cast<std::size_t>(a.d_conv), "conv outputs", moved_);
  a.dt = mamba_steps_.as<float>(64 * static_cast<std::size_t>(a.n_heads), "step sizes", moved_);
  a.decay = a.dt + 32 * static_cast<std::size_t>(a.n_heads);
  launch_mamba(a, 1, 1, stream_);
}

void CudaOps::attention(const Batch& batch, const Attention& node, KvCache& cache,
                        Rows<const float> q, Rows<const float> k, Rows<const float> v,
                        Rows<float> y) {
  (void)batch;
  run_attention(node, cache, q, k, v, y, {});
}

void CudaOps::attention_quantize(const Batch& batch, const Attention& node, KvCache& cache,
                                 Rows<const float> q, Rows<const float> k, Rows<const float> v,
                                 Rows<float> y, bool integer, Operand& operand) {
  if (node.head_dim % kGroupCols != 0) {
    return Ops::attention_quantize(batch, node, cache, q, k, v, y, integer, operand);
  }
  run_attention(node, cache, q, k, v, y, as_device(operand).hold(y, integer));
}

void CudaOps::run_attention(const Attention& node, KvCache& cache, Rows<const float> q,
                            Rows<const float> k, Rows<const float> v, Rows<float> y,
                            const QuantOut& quantised) {
  auto& c = static_cast<CudaKvCache&>(cache);
  AttentionArgs a;
  a.quantised = quantised;
  a.n_heads = node.n_heads, a.n_kv_heads = node.n_kv_heads, a.head_dim = node.head_dim,
  a.n_rows = q.n_rows;
  a.c = static_cast<float>(1.44269504088896340735992468100189214L /
                           std::sqrt(static_cast<long double>(node.head_dim)));
  a.layout = c.layout;
  a.batch = view_;
  a.q = q.data, a.k = k.data, a.v = v.data;
  a.q_stride = q.stride, a.k_stride = k.stride, a.v_stride = v.stride;
  a.y = y.data, a.y_stride = y.stride;
  a.pages = c.pages;
  const auto heads = static_cast<std::size_t>(q.n_rows) * static_cast<std::size_t>(node.n_heads);
  const std::size_t code_words = heads * 2 * static_cast<std::size_t>(c.layout.words);
  a.q_codes = attention_codes_.as<std::uint32_t>(code_words + heads, "query codes", moved_);
  a.q_scale = reinterpret_cast<float*>(a.q_codes + code_words);
  launch_put(a, true, stream_);

  a.tiles_a_unit = q.n_rows > kWindowRowsMax || max_tiles_ > 64 ? kSpanTiles : 1;
  a.max_units = (max_tiles_ + a.tiles_a_unit - 1) / a.tiles_a_unit;
  a.max_segment_rows = max_segment_rows_;
  const std::int64_t row_floats =
      static_cast<std::int64_t>(node.n_heads) * a.max_units * (node.head_dim + 2);
  const int at_once =
      static_cast<int>(std::clamp<std::int64_t>(kPartialBytes / 4 / row_floats, 1, q.n_rows));
  a.partial = attention_partial_.as<float>(static_cast<std::size_t>(at_once * row_floats),
                                           "attention units", moved_);
  for (a.row0 = 0; a.row0 < q.n_rows; a.row0 += at_once) {
    launch_attend(a, std::min(at_once, q.n_rows - a.row0), stream_);
  }
}

void CudaOps::put_keys(const Batch& batch, const Attention& node, KvCache& cache,
                       Rows<const float> k, Rows<const float> v) {
  auto& c = static_cast<CudaKvCache&>(cache);
  (void)batch;
  AttentionArgs a;
  a.n_heads = node.n_heads, a.n_kv_heads = node.n_kv_heads, a.head_dim = node.head_dim,
  a.n_rows = k.n_rows;
  a.layout = c.layout;
  a.batch = view_;
  a.k = k.data, a.v = v.data;
  a.k_stride = k.stride, a.v_stride = v.stride;
  a.pages = c.pages;
  launch_put(a, false, stream_);
}

struct CudaOps::ExpertCall {
  RouteSlotsArgs route;
  LinearArgs up, down;
  CombineArgs combine;
};

CudaOps::ExpertCall CudaOps::expert_call(const Batch& batch, const Moe& node, const QuantView& x,
                                         int first, int n) {
  const bool integer = is_integer(node.experts_up.format);
  const bool hidden_integer = is_integer(node.experts_down.format);
  const int d_out = node.experts_down.n_rows;
  // Places a slot: as many as the rows of an expert are likely to need; more rows take more slots.
  const int expected = n * node.top_k / node.n_experts;
  const bool chunks = n > kFewRows && expected >= 6;
  const int slot_rows = n == 1                   ? 1
                        : chunks                 ? chunk_slot_rows(expected)
                        : expected >= 2          ? 8
                        : n > 2 && expected >= 1 ? 4
                                                 : 2;
  const int max_slots = slots_bound(n, node.top_k, node.n_experts, slot_rows);
  const auto places = static_cast<std::size_t>(max_slots) * static_cast<std::size_t>(slot_rows);
  const auto pairs = static_cast<std::size_t>(n * node.top_k);
  int* ints = expert_ints_.as<int>(
      16 + static_cast<std::size_t>(max_slots) + 4 * places + 2 * pairs, "expert slots", moved_);
  ExpertCall call;
  call.route.n_done = n_routed_;
  SlotArgs& s = call.route.slots;
  s.n_pairs = static_cast<int>(pairs), s.top_k = node.top_k, s.n_experts = node.n_experts;
  s.slot_rows = slot_rows, s.max_slots = max_slots;
  s.n_slots = ints;
  s.slot_expert = ints + 16;
  s.in_row = s.slot_expert + max_slots;
  s.in_place = s.in_row + places;
  s.out_place = s.in_place + places;
  s.mark_row = s.out_place + places;
  s.pair_place = s.mark_row + places;
  int* choice = s.pair_place + pairs;
  s.choice = choice;
  const auto width = static_cast<std::size_t>(node.d_expert);
  // Hidden rows that a quantised linear reads are left quantised by the linear that makes them.
  const std::size_t hidden_floats = hidden_integer ? 0 : places * width;
  float* floats = expert_floats_.as<float>(
      pairs + hidden_floats + places * static_cast<std::size_t>(d_out), "expert rows", moved_);
  float* hidden = hidden_integer ? nullptr : floats + pairs;
  float* out = floats + pairs + hidden_floats;

  RouteArgs& r = call.route.route;
  r.n_rows = n, r.n_experts = node.n_experts, r.top_k = node.top_k;
  r.n_router_groups = node.n_router_groups, r.top_k_groups = node.top_k_groups;
  r.norm_top_k = node.norm_top_k, r.scaling_factor = node.scaling_factor;
  r.bias = node.router_bias.as_f32();
  r.choice = choice, r.weight = floats;
  r.marked = marks(batch) + first;

  LinearArgs& up = call.up;
  up.weights = reinterpret_cast<const std::uint8_t*>(node.experts_up.data);
  up.gains = node.experts_up.gains;
  up.matrix_bytes = static_cast<std::int64_t>(node.experts_up.matrix_bytes());
  up.n_groups = n_groups(node.experts_up.n_cols), up.n_cols = node.experts_up.n_cols;
  up.n_out = node.experts_up.n_rows, up.n_rows = n;
  up.x = x;
  up.x.x += first * x.x_stride;
  if (integer) {
    up.x.slots += static_cast<std::int64_t>(first) * x.n_groups * 32;
    up.x.halves += static_cast<std::int64_t>(first) * x.n_groups * 32;
    up.x.scale += static_cast<std::int64_t>(first) * x.n_groups;
  }
  up.y = hidden, up.y_stride = node.d_expert;
  up.epilogue = Epilogue::relu2;
  up.marked = marks(batch) + first;
  up.n_slots = s.n_slots, up.slot_expert = s.slot_expert, up.slot_in = s.in_row;
  up.slot_out = s.out_place, up.slot_mark = s.mark_row;
  up.max_slots = max_slots, up.slot_rows = slot_rows;

  LinearArgs& down = call.down;
  down = up;
  down.weights = reinterpret_cast<const std::uint8_t*>(node.experts_down.data);
  down.gains = node.experts_down.gains;
  down.matrix_bytes = static_cast<std::int64_t>(node.experts_down.matrix_bytes());
  down.n_groups = n_groups(node.experts_down.n_cols), down.n_cols = node.experts_down.n_cols;
  down.n_out = d_out;
  down.x = QuantView{};
  down.x.x = hidden, down.x.x_stride = node.d_expert, down.x.n_groups = down.n_groups;
  down.slot_in = s.in_place;
  if (hidden_integer) {
    const std::size_t codes = places * static_cast<std::size_t>(down.n_groups) * 32;
    auto* bytes =
        expert_codes_.as<std::int8_t>(2 * codes + codes / 8, "expert rows' codes", moved_);
    up.quantised = {bytes, bytes + codes, reinterpret_cast<float*>(bytes + 2 * codes),
                    down.n_groups};
    down.x.slots = up.quantised.slots, down.x.halves = up.quantised.halves;
    down.x.scale = up.quantised.scale;
  }
  down.y = out, down.y_stride = d_out;
  down.epilogue = Epilogue::store;

  CombineArgs& c = call.combine;
  c.n_rows = n, c.n_cols = d_out, c.top_k = node.top_k;
  c.pair_place = s.pair_place, c.weight = floats;
  c.out = out;
  return call;
}

void CudaOps::experts(const Batch& batch, const Moe& node, Rows<const float> logits,
                      const Operand& x, Rows<float> y) {
  for (int first = 0; first < y.n_rows; first += kExpertRows) {
    const int n = std::min(kExpertRows, y.n_rows - first);
    ExpertCall call = expert_call(batch, node, as_device(x).view(), first, n);
    call.route.route.logits = logits.row(first);
    call.route.route.logits_stride = logits.stride;
    launch_route(call.route.route, stream_);
    launch_slots(call.route.slots, stream_);
    launch_linear(call.up, node.experts_up.format, stream_);
    launch_linear(call.down, node.experts_down.format, stream_);
    call.combine.y = y.row(first), call.combine.y_stride = y.stride;
    launch_combine(call.combine, stream_);
  }
}

// Rows of a (row, choice) pair are exchanged, so that they lie by pair; places of slots are each
// device's own.
void CudaOps::experts_up(const Batch& batch, const Moe& node, Rows<const float> logits,
                         const Operand& x, int first_row, Rows<float> hidden) {
  const int n = hidden.n_rows / node.top_k;
  ExpertCall call = expert_call(batch, node, as_device(x).view(), first_row, n);
  call.route.route.logits = logits.row(first_row);
  call.route.route.logits_stride = logits.stride;
  launch_route(call.route.route, stream_);
  launch_slots(call.route.slots, stream_);
  const SlotPairs pairs = slot_pairs(call.route.slots);
  launch_slot_pairs(call.route.slots, pairs, stream_);
  if (hidden.n_cols == 0) return;
  LinearArgs& up = call.up;
  up.y = hidden.data, up.y_stride = hidden.stride;
  up.quantised = {};
  up.slot_out = pairs.out;
  launch_linear(up, node.experts_up.format, stream_);
}

void CudaOps::experts_down(const Batch& batch, const Moe& node, const Operand& hidden,
                           int first_row, Rows<float> y) {
  if (y.n_cols == 0) return;
  // The same places as the call of experts_up before it.
  ExpertCall call = expert_call(batch, node, QuantView{}, first_row, y.n_rows);
  call.down.x = as_device(hidden).view();
  call.down.slot_in = slot_pairs(call.route.slots).in;
  launch_linear(call.down, node.experts_down.format, stream_);
  call.combine.y = y.data, call.combine.y_stride = y.stride;
  launch_combine(call.combine, stream_);
}

SlotPairs CudaOps::slot_pairs(const SlotArgs& slots) {
  const auto places =
      static_cast<std::size_t>(slots.max_slots) * static_cast<std::size_t>(slots.slot_rows);
  int* ints = expert_pairs_.as<int>(2 * places, "expert slots", moved_);
  return {ints, ints + places};
}

// Few rows: the shared expert's and the latent projection's linears run beside routing and the
// routed experts, and the sums are folded into what ends the layer.
void CudaOps::moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
                  Rows<float> x) {
  const int n = x.n_rows;
  if (n > kFewRows || node.router.gains != nullptr) return Ops::moe(batch, node, u, scratch, x);
  const bool has_latent = node.d_latent > 0, has_shared = node.d_shared > 0;
  const QuantView& rows = as_device(u).view();

  RouterArgs router;
  router.weights = reinterpret_cast<const std::uint8_t*>(node.router.data);
  router.format = node.router.format;
  router.n_experts = node.n_experts, router.n_cols = node.router.n_cols, router.n_rows = n;
  router.x = rows.x, router.x_stride = rows.x_stride;
  const int n_leaves = 4 * ((rows.n_groups + kSegmentGroups - 1) / kSegmentGroups);
  router.leaves = router_leaves_.as<float>(
      static_cast<std::size_t>(kFewRows * n_leaves * n_tiles(node.n_experts) * kTileRows),
      "router sums", moved_);
  const QuantView* expert_rows = has_latent ? &as_device(*scratch.latent_operand).view() : &rows;
  QuantOut latent_out;
  if (has_latent) {
    latent_out =
        as_device(*scratch.latent_operand).hold(scratch.latent, is_integer(node.experts_up.format));
  }
  ExpertCall call = expert_call(batch, node, *expert_rows, 0, n);
  call.route.route.leaves = router.leaves, call.route.route.n_leaves = n_leaves;
  launch_router(router, stream_);
  if (has_latent) {
    LinearArgs down = linear_args(batch, u, {&node.latent_down, Epilogue::store, scratch.latent});
    down.quantised = latent_out;
    down.order = Order::follower;
    launch_linear(down, node.latent_down.format, stream_);
  }
  launch_route_slots(call.route, stream_);

  if (has_shared) {
    auto& shared = as_device(*scratch.shared_operand);
    LinearArgs up = linear_args(batch, u, {&node.shared_up, Epilogue::relu2, scratch.shared});
    up.quantised = shared.hold(scratch.shared, is_integer(node.shared_down.format));
    if (up.quantised.slots != nullptr) up.y = nullptr;
    up.order = Order::follower;
    launch_linear(up, node.shared_up.format, stream_);
  }
  call.down.slots_ready = true;                               // before `up` let anybody start
  if (n == 1) call.up.n_slots = call.down.n_slots = nullptr;  // one a choice
  launch_linear(call.up, node.experts_up.format, stream_);
  if (has_shared) {
    LinearArgs down = linear_args(batch, *scratch.shared_operand,
                                  {&node.shared_down, Epilogue::store, scratch.routed});
    down.order = Order::follower;
    launch_linear(down, node.shared_down.format, stream_);
  }
  launch_linear(call.down, node.experts_down.format, stream_);

  CombineArgs& combine = call.combine;
  const float* plus = has_shared ? scratch.routed.data : nullptr;
  if (!has_latent) {
    combine.y = x.data, combine.y_stride = x.stride;
    combine.residual = true;
    combine.plus = plus, combine.plus_stride = scratch.routed.stride;
    launch_combine(combine, stream_);
    return;
  }
  auto& latent = as_device(*scratch.latent_operand);
  combine.y = scratch.latent_out.data, combine.y_stride = scratch.latent_out.stride;
  combine.quantised = latent.hold(scratch.latent_out, is_integer(node.latent_up.format));
  launch_combine(combine, stream_);
  LinearArgs up = linear_args(batch, *scratch.latent_operand, {&node.latent_up, Epilogue::add, x});
  up.plus = plus, up.plus_stride = scratch.routed.stride;
  launch_linear(up, node.latent_up.format, stream_);
}

}  // namespace bolt::cuda
