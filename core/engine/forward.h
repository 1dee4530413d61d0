// The forward pass, written once over Ops: the layer loop of the target and of the draft head.
// Which rows run, and what becomes of them, is ops_model.cpp's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/engine/profile.h"
#include "core/ops/ops.h"
#include "core/pack/graph.h"

namespace bolt {

// What a layer remembers between calls: one of the two, or nothing.
struct LayerCache {
  std::unique_ptr<MambaCache> mamba;
  std::unique_ptr<KvCache> kv;
};

// Rows of a call that are wanted as logits: [first_row, first_row + n_rows) of the batch.
struct LogitRun {
  int first_row = 0, n_rows = 0;
};

// Residuals of a call's rows after the layers that a drafter taps, rounded to BF16: where they go.
struct Taps {
  std::span<const int> layers;  // ascending
  Rows<float> rows;             // [max_rows, layers.size() * d_model], the lowest layer's first
};

class Forward {
 public:
  // Buffers for calls of max_rows rows and max_logit_rows rows of logits.
  Forward(Ops& ops, const Graph& graph, KvKind kv, int n_slots, int n_pages, int max_rows,
          int max_logit_rows);

  // The target over all rows. Leaves the residual stream in x(), the logits of `runs`, one after
  // the other, in logits(), and what is tapped in `taps`.
  void target(const Batch& batch, std::span<const int> ids, std::span<const LogitRun> runs,
              std::span<const Taps* const> taps);
  // Its ops alone, of a call that is begun.
  void target_ops(const Batch& batch, std::span<const int> ids, std::span<const LogitRun> runs,
                  std::span<const Taps* const> taps);
  // hidden = the target's final norm of rows [first, first + hidden.n_rows) of the last call.
  void read_hidden(const Batch& batch, int first, Rows<float> hidden);

  // The draft head: rows of (token, hidden before it). hidden holds one view a segment.
  // put_head_keys writes keys and values only, for rows whose draft nobody wants.
  void put_head_keys(const Batch& batch, std::span<const int> ids,
                     std::span<const Rows<const float>> hidden);
  // Leaves each row's output in head_hidden() and logits in logits(): the first n_vocab_rows rows
  // over the draft vocabulary, the others over the whole one.
  void head(const Batch& batch, std::span<const int> ids, std::span<const Rows<const float>> hidden,
            int n_vocab_rows);
  // Its ops alone, of a call that is begun.
  void head_ops(const Batch& batch, std::span<const int> ids,
                std::span<const Rows<const float>> hidden, int n_vocab_rows);

  // Times the parts of every call from now on, without replaying captured ones; null: no more.
  void set_profile(Profile* profile) { profile_ = profile; }
  Profile* profile() const { return profile_; }
  template <class F>
  void timed(Part part, const F& f) {
    if (profile_ == nullptr) return f();
    ops_.wait();
    const auto start = std::chrono::steady_clock::now();
    f();
    ops_.wait();
    profile_->add(part, (std::chrono::steady_clock::now() - start).count());
  }

  Rows<float> logits() const { return logits_; }
  Rows<float> head_hidden() const { return head_hidden_; }
  const std::vector<LayerCache>& caches() const { return caches_; }
  std::vector<LayerCache>& caches() { return caches_; }
  std::vector<LayerCache>& head_caches() { return head_caches_; }

 private:
  // ops_.replay, but for a profile.
  template <class F>
  void replay(std::uint64_t key, const F& f) {
    profile_ != nullptr ? f() : ops_.replay(key, f);
  }
  void layer(const Batch& batch, const Layer& layer, LayerCache& cache, Rows<float> x);
  void mix(const Batch& batch, const Mamba2& node, LayerCache& cache, Rows<float> x);
  void mix(const Batch& batch, const Attention& node, LayerCache& cache, Rows<float> x);
  void mix(const Batch& batch, const Mlp& node, LayerCache& cache, Rows<float> x);
  void mix(const Batch& batch, const Moe& node, LayerCache& cache, Rows<float> x);
  // x = eh_proj(concat(rmsnorm(embedding), rmsnorm(hidden)))
  void head_input(const Batch& batch, std::span<const int> ids,
                  std::span<const Rows<const float>> hidden, Rows<float> x);
  void put_head_keys_ops(const Batch& batch, std::span<const int> ids,
                         std::span<const Rows<const float>> hidden);
  void head_layers(const Batch& batch, int n_vocab_rows);  // what follows head_input
  void project(const Batch& batch, const Weight& w, Rows<const float> rows, Rows<float> y);

  Ops& ops_;
  const Graph& graph_;
  Profile* profile_ = nullptr;
  std::vector<LayerCache> caches_;       // of the target's layers
  std::vector<LayerCache> head_caches_;  // of the draft head's
  int last_head_attention_ = -1;         // its last attention layer: rows past it write nothing
  Rows<float> x_, normed_, wide_, concat_, head_hidden_, logits_;
  // Rows that linears read: a layer's normed ones and its mixer's; hidden and latent ones of MLPs.
  std::unique_ptr<Operand> operand_, hidden_, latent_;
};

}  // namespace bolt
