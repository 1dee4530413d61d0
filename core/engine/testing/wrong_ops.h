// The host's ops with one planted mistake each, for tests that must catch it on a real model.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/base/bits.h"
#include "core/ops/block_draft.h"
#include "core/ops/host.h"
#include "core/ops/kv_cache.h"
#include "core/ops/mamba.h"

namespace bolt::testing {

enum class Mistake {
  none,
  replays_one_less,   // one lagging row is not replayed
  appends_keys,       // keys go behind the rejected ones instead of over them
  forgets_head_keys,  // what the head absorbs is not written
  sums_by_rows,       // a linear rounds otherwise when it has several rows
  keeps_old_state,    // a copy of recurrent state is that before the last call
  leaves_last_page,   // a page that is copied stays as it was
  // Of separate drafters:
  taps_row_before,   // taps are those of the row before
  taps_normed,       // taps are normed
  keeps_block_keys,  // a block's keys stay where rows that were kept have theirs
  targets_mask_row,  // the mask is what the target's embedding has for its id
};

// Slots twice: what each was before the last call lies behind them.
class StaleMambaCache final : public HostMambaCache {
 public:
  StaleMambaCache(const Mamba2& node, int n_slots)
      : HostMambaCache(node, 2 * n_slots), n_real_(n_slots) {}
  void remember(int slot) { HostMambaCache::copy(slot, n_real_ + slot); }
  void copy(int from_slot, int to_slot) override {
    // Out of a sequence's slot, not into it: those come first.
    HostMambaCache::copy(from_slot < to_slot ? n_real_ + from_slot : from_slot, to_slot);
  }

 private:
  const int n_real_;
};

class ForgetfulKvCache final : public HostKvCache {
 public:
  using HostKvCache::HostKvCache;
  bool copy(int, int) override { return true; }
};

class WrongOps : public Ops {
 public:
  WrongOps(Ops& ops, Mistake mistake) : ops_(ops), mistake_(mistake) {}

  void begin(const Batch& b, std::span<const int> ids) override { ops_.begin(b, ids); }
  void finish(const Batch& b) override { ops_.finish(b); }
  void replay(std::uint64_t key, const std::function<void()>& f) override { ops_.replay(key, f); }
  void* allocate(std::uint64_t n, const char* why) override { return ops_.allocate(n, why); }
  std::uint64_t free_bytes() const override { return ops_.free_bytes(); }
  std::unique_ptr<MambaCache> mamba_cache(const Mamba2& node, int n_slots) override {
    if (mistake_ != Mistake::keeps_old_state) return ops_.mamba_cache(node, n_slots);
    return std::make_unique<StaleMambaCache>(node, n_slots);
  }
  std::unique_ptr<KvCache> kv_cache(const Attention& node, KvKind kind, int n_pages) override {
    if (mistake_ != Mistake::leaves_last_page) return ops_.kv_cache(node, kind, n_pages);
    return std::make_unique<ForgetfulKvCache>(node, kind, n_pages);
  }
  std::unique_ptr<Operand> operand(int rows, int cols) override { return ops_.operand(rows, cols); }
  void embed(const Weight& table, std::span<const int> ids, Rows<float> x) override {
    ops_.embed(table, ids, x);
  }
  void rms_norm(const Batch& b, Rows<const float> x, const float* w, float eps, int group,
                Rows<float> y) override {
    ops_.rms_norm(b, x, w, eps, group, y);
  }
  void quantize(Rows<const float> x, bool integer, Operand& operand) override {
    ops_.quantize(x, integer, operand);
  }
  void linear(const Batch& b, const Operand& x, const Weight& w, Epilogue epilogue,
              Rows<float> y) override {
    ops_.linear(b, x, w, epilogue, y);
    if (mistake_ == Mistake::sums_by_rows && b.n_rows > 1) {
      y.row(b.n_rows - 1)[0] = std::nextafter(y.row(b.n_rows - 1)[0], 1e9f);
    }
  }
  void mamba(const Batch& b, const Mamba2& node, float eps, MambaCache& cache, Rows<const float> in,
             Rows<float> y) override {
    std::vector<Segment> segments(b.segments.begin(), b.segments.end());
    if (mistake_ == Mistake::replays_one_less) {
      for (Segment& s : segments) s.n_lag = std::max(0, s.n_lag - 1);
    }
    if (mistake_ == Mistake::keeps_old_state) {
      for (const Segment& s : segments) static_cast<StaleMambaCache&>(cache).remember(s.slot);
    }
    ops_.mamba({b.n_rows, segments, b.marked}, node, eps, cache, in, y);
  }
  void attention(const Batch& b, const Attention& node, KvCache& cache, Rows<const float> q,
                 Rows<const float> k, Rows<const float> v, Rows<float> y) override {
    std::vector<Segment> segments(b.segments.begin(), b.segments.end());
    if (mistake_ == Mistake::appends_keys) {
      int& next = next_[&cache];
      for (Segment& s : segments) {
        s.first_position = std::max(s.first_position, next);
        next = s.first_position + s.n_live;
      }
    }
    ops_.attention({b.n_rows, segments, b.marked}, node, cache, q, k, v, y);
  }
  void put_keys(const Batch& b, const Attention& node, KvCache& cache, Rows<const float> k,
                Rows<const float> v) override {
    if (mistake_ != Mistake::forgets_head_keys) ops_.put_keys(b, node, cache, k, v);
  }
  void experts(const Batch& b, const Moe& node, Rows<const float> logits, const Operand& x,
               Rows<float> y) override {
    ops_.experts(b, node, logits, x, y);
  }
  void add(Rows<const float> x, Rows<float> y) override { ops_.add(x, y); }
  void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
              std::span<const std::uint8_t> marked, const int* ids_of,
              std::span<Sampled> out) override {
    ops_.sample(logits, specs, marked, ids_of, out);
  }
  bool has_block_ops() const override { return ops_.has_block_ops(); }
  void round_bf16(Rows<const float> x, Rows<float> y) override {
    ops_.round_bf16(x, y);
    // The residual stream is as wide as the model, what is copied of taps is wider.
    if (x.stride != x.n_cols || x.n_cols == y.stride) return;
    if (mistake_ == Mistake::taps_row_before) {
      for (int r = x.n_rows - 1; r > 0; --r) std::copy_n(y.row(r - 1), y.n_cols, y.row(r));
    } else if (mistake_ == Mistake::taps_normed) {
      for (int r = 0; r < x.n_rows; ++r) {
        float sum = 1e-6f;
        for (int i = 0; i < x.n_cols; ++i) sum += x.row(r)[i] * x.row(r)[i];
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(x.n_cols));
        for (int i = 0; i < x.n_cols; ++i) y.row(r)[i] *= scale;
      }
    }
  }
  void embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                 Rows<float> x) override {
    if (mistake_ == Mistake::targets_mask_row) return ops_.embed(table, ids, x);
    ops_.embed_but(table, id, row, ids, x);
  }
  void rope_heads(const Batch& b, const RopeTable& rope, float eps, Rows<float> q,
                  const float* q_norm, Rows<float> k, const float* k_norm) override {
    ops_.rope_heads(b, rope, eps, q, q_norm, k, k_norm);
  }
  void put_context(const Batch& b, int first_row, const RopeTable& rope, float eps,
                   const float* k_norms, const BlockCache& cache, Rows<const float> kv) override {
    std::vector<Segment> segments(b.segments.begin(), b.segments.end());
    if (mistake_ == Mistake::keeps_block_keys) {
      for (Segment& s : segments) {
        if (s.first_row >= first_row && s.first_position >= block_first_ &&
            s.first_position < block_last_) {
          s.n_live = 0;
        }
      }
    }
    ops_.put_context({b.n_rows, segments, b.marked}, first_row, rope, eps, k_norms, cache, kv);
  }
  void block_attention(const Batch& b, const BlockShape& shape, int layer, const float* sinks,
                       const BlockCache& cache, Rows<const float> q, Rows<const float> kv,
                       Rows<float> y) override {
    ops_.block_attention(b, shape, layer, sinks, cache, q, kv, y);
    if (mistake_ != Mistake::keeps_block_keys) return;
    const Segment& s = b.segments[0];
    block_first_ = s.first_position, block_last_ = s.first_position + s.n_rows;
    for (int r = 0; r < s.n_rows; ++r) {
      if (cache.ring_tiles == 0 &&
          (s.first_position + r) / kPageKeys >= static_cast<int>(s.pages.size())) {
        break;
      }
      const std::int64_t at = cache.place(layer, cache.cell(s, s.first_position + r));
      for (int i = 0; i < cache.n_cols; ++i) {
        cache.keys[at + i] = float_to_bf16(kv.row(r)[i]);
        cache.values[at + i] = float_to_bf16(kv.row(r)[cache.n_cols + i]);
      }
    }
  }
  void gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y, bool integer,
                     Operand& operand) override {
    ops_.gate_quantize(gate, up, y, integer, operand);
  }
  void read(const float* from, std::span<float> to) override { ops_.read(from, to); }
  void write(const void* from, std::uint64_t bytes, void* to) override {
    ops_.write(from, bytes, to);
  }

 protected:
  Ops& ops_;

 private:
  const Mistake mistake_;
  std::map<const KvCache*, int> next_;
  int block_first_ = 0, block_last_ = 0;  // positions of the last block
};

}  // namespace bolt::testing
