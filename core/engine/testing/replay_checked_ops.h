// The host's ops, and what a device that captures calls relies on: that every replay of a key runs
// the ops of its first, on the same buffers.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "core/engine/testing/wrong_ops.h"

namespace bolt::testing {

class ReplayCheckedOps final : public WrongOps {
 public:
  // mask: of keys, to plant keys that are equal where they must not be.
  explicit ReplayCheckedOps(Ops& ops, std::uint64_t mask = ~std::uint64_t{0})
      : WrongOps(ops, Mistake::none), mask_(mask) {}

  int n_replays() const { return n_replays_; }  // of keys that were there before
  int n_others() const { return n_others_; }    // of these, how many ran something else

  void replay(std::uint64_t key, const std::function<void()>& f) override {
    std::vector<Note> notes;
    notes_ = &notes;
    WrongOps::replay(key, f);
    notes_ = nullptr;
    const auto [first, is_new] = first_.try_emplace(key & mask_, notes);
    if (is_new) return;
    ++n_replays_;
    n_others_ += first->second != notes;
  }

  void embed(const Weight& table, std::span<const int> ids, Rows<float> x) override {
    note(1, table.data, x.data, x.n_rows);
    WrongOps::embed(table, ids, x);
  }
  void rms_norm(const Batch& b, Rows<const float> x, const float* w, float eps, int group,
                Rows<float> y) override {
    note(2, x.data, y.data, x.n_rows, w);
    WrongOps::rms_norm(b, x, w, eps, group, y);
  }
  void quantize(Rows<const float> x, bool integer, Operand& operand) override {
    note(3, x.data, &operand, x.n_rows);
    WrongOps::quantize(x, integer, operand);
  }
  void linear(const Batch& b, const Operand& x, const Weight& w, Epilogue epilogue,
              Rows<float> y) override {
    note(4, &x, y.data, y.n_rows, w.data);
    WrongOps::linear(b, x, w, epilogue, y);
  }
  void mamba(const Batch& b, const Mamba2& node, float eps, MambaCache& cache, Rows<const float> in,
             Rows<float> y) override {
    note(5, in.data, y.data, y.n_rows, &cache);
    WrongOps::mamba(b, node, eps, cache, in, y);
  }
  void attention(const Batch& b, const Attention& node, KvCache& cache, Rows<const float> q,
                 Rows<const float> k, Rows<const float> v, Rows<float> y) override {
    note(6, q.data, y.data, y.n_rows, &cache);
    WrongOps::attention(b, node, cache, q, k, v, y);
  }
  void put_keys(const Batch& b, const Attention& node, KvCache& cache, Rows<const float> k,
                Rows<const float> v) override {
    note(7, k.data, v.data, k.n_rows, &cache);
    WrongOps::put_keys(b, node, cache, k, v);
  }
  void experts(const Batch& b, const Moe& node, Rows<const float> logits, const Operand& x,
               Rows<float> y) override {
    note(8, logits.data, y.data, y.n_rows, &x);
    WrongOps::experts(b, node, logits, x, y);
  }
  void add(Rows<const float> x, Rows<float> y) override {
    note(9, x.data, y.data, y.n_rows);
    WrongOps::add(x, y);
  }
  void round_bf16(Rows<const float> x, Rows<float> y) override {
    note(10, x.data, y.data, y.n_rows);
    WrongOps::round_bf16(x, y);
  }
  void embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                 Rows<float> x) override {
    note(11, row, x.data, x.n_rows);
    WrongOps::embed_but(table, id, row, ids, x);
  }
  void rope_heads(const Batch& b, const RopeTable& rope, float eps, Rows<float> q,
                  const float* q_norm, Rows<float> k, const float* k_norm) override {
    note(12, q.data, k.data, q.n_rows, k_norm);
    WrongOps::rope_heads(b, rope, eps, q, q_norm, k, k_norm);
  }
  void put_context(const Batch& b, int first_row, const RopeTable& rope, float eps,
                   const float* k_norms, const BlockCache& cache, Rows<const float> kv) override {
    note(13, kv.data, cache.keys, kv.n_rows, nullptr, first_row);
    WrongOps::put_context(b, first_row, rope, eps, k_norms, cache, kv);
  }
  void block_attention(const Batch& b, const BlockShape& shape, int layer, const float* sinks,
                       const BlockCache& cache, Rows<const float> q, Rows<const float> kv,
                       Rows<float> y) override {
    note(14, q.data, kv.data, q.n_rows, cache.keys, layer, shape.block_rows);
    WrongOps::block_attention(b, shape, layer, sinks, cache, q, kv, y);
  }
  void gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y, bool integer,
                     Operand& operand) override {
    note(15, gate.data, y.data, y.n_rows, &operand);
    WrongOps::gate_quantize(gate, up, y, integer, operand);
  }

 private:
  using Note = std::array<std::uint64_t, 7>;

  void note(int op, const void* a, const void* b, int n_rows, const void* c = nullptr, int more = 0,
            int still_more = 0) {
    if (notes_ == nullptr) return;
    const auto where = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
    notes_->push_back({static_cast<std::uint64_t>(op), where(a), where(b), where(c),
                       static_cast<std::uint64_t>(n_rows), static_cast<std::uint64_t>(more),
                       static_cast<std::uint64_t>(still_more)});
  }

  const std::uint64_t mask_;
  std::map<std::uint64_t, std::vector<Note>> first_;
  std::vector<Note>* notes_ = nullptr;
  int n_replays_ = 0, n_others_ = 0;
};

}  // namespace bolt::testing
