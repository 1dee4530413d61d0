// One rank's ops: what forward.cpp asks of an Ops, done by the rank's own Ops over the rows of the
// weights that it holds, with the columns that others have summed fetched by an Exchange. Whoever
// runs layers over it sees whole shapes and whole rows; every rank runs the same layers, so that
// all that is not shared (residual stream, norms, router, sampling) is computed by each alike.
//
// Linears are cut by rows of W: an output is one rank's, summed over all of K in the contract's
// order. Attention heads and Mamba heads with their caches are one rank's. An expert's rows are cut
// as well, so that a pass of few rows reads as many bytes on every rank whichever experts it picks,
// and the combination in choice order is each column's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ops/block_draft.h"
#include "core/ops/exchange.h"
#include "core/ops/ops.h"
#include "core/pack/rank_graph.h"

namespace bolt {

class RankOps final : public Ops {
 public:
  // inner and exchange must outlive it. whole: the package's graph, for its shapes. part: the
  // rank's, with weights where the inner ops read them. expert_bytes: what rows between the two
  // halves of routed experts may take; more take turns.
  RankOps(Ops& inner, Exchange& exchange, const Graph& whole, const Graph& part,
          std::uint64_t expert_bytes);
  ~RankOps() override;

  // The whole shapes, with the rank's weights: what is run over these ops.
  const Graph& graph() const { return graph_; }
  // Grows while the rank gets on: asked by whoever waits for it.
  std::uint64_t n_steps() const { return n_steps_.load(std::memory_order_relaxed); }

  void begin(const Batch& batch, std::span<const int> ids) override;
  void finish(const Batch& batch) override;
  void replay(std::uint64_t key, const std::function<void()>& ops) override;
  void* allocate(std::uint64_t bytes, const char* purpose) override;
  std::uint64_t free_bytes() const override;
  std::unique_ptr<MambaCache> mamba_cache(const Mamba2& node, int n_slots) override;
  std::unique_ptr<KvCache> kv_cache(const Attention& node, KvKind kind, int n_pages) override;
  std::unique_ptr<Operand> operand(int max_rows, int max_cols) override;
  void embed(const Weight& table, std::span<const int> ids, Rows<float> x) override;
  void rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps, int group,
                Rows<float> y) override;
  void quantize(Rows<const float> x, bool integer, Operand& operand) override;
  void linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
              Rows<float> y) override;
  void mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
             Rows<const float> zxbcdt, Rows<float> y) override;
  void attention(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> q,
                 Rows<const float> k, Rows<const float> v, Rows<float> y) override;
  void put_keys(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> k,
                Rows<const float> v) override;
  void experts(const Batch& batch, const Moe& node, Rows<const float> logits, const Operand& x,
               Rows<float> y) override;
  void add(Rows<const float> x, Rows<float> y) override;
  void norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                     Rows<float> y, bool integer, Operand& operand) override;
  void linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls) override;
  void moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
           Rows<float> x) override;
  void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
              std::span<const std::uint8_t> marked, const int* ids_of,
              std::span<Sampled> out) override;
  void run_round(const RoundTask& task, RoundOutcome& outcome) override;
  bool has_block_ops() const override;
  void round_bf16(Rows<const float> x, Rows<float> y) override;
  void embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                 Rows<float> x) override;
  void rope_heads(const Batch& batch, const RopeTable& rope, float eps, Rows<float> q,
                  const float* q_norm, Rows<float> k, const float* k_norm) override;
  void put_context(const Batch& batch, int first_row, const RopeTable& rope, float eps,
                   const float* k_norms, const BlockCache& cache, Rows<const float> kv) override;
  void block_attention(const Batch& batch, const BlockShape& shape, int layer, const float* sinks,
                       const BlockCache& cache, Rows<const float> q, Rows<const float> kv,
                       Rows<float> y) override;
  void gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y, bool integer,
                     Operand& operand) override;
  void run_block(const BlockTask& task, std::span<Sampled> drafts) override;
  int padded_rows(int n_rows) const override;
  std::uint8_t* marks(const Batch& batch) const override;
  void wait() override;
  void read(const float* from, std::span<float> to) override;
  void write(const void* from, std::uint64_t bytes, void* to) override;
  void copy(const void* from, std::uint64_t bytes, void* to) override;

 private:
  // A weight that ranks share.
  struct Part {
    Weight weight;  // the rank's rows
    Share share = Share::columns;
    ColumnRange columns;  // where its outputs lie among all; from 0 on for those of heads
    int slice = 0;        // columns of a rank
  };
  // Null for a weight that everyone has.
  const Part* part_of(const Weight& w) const;
  const Part& shared_part(const Weight& w) const;
  const Mamba2& part_of(const Mamba2& node) const;
  const Attention& part_of(const Attention& node) const;
  // The rank's columns of y = W x; those of y that are others' stay.
  void own_columns(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
                   Rows<float> y);
  void gather(std::span<const SharedRows> shared) {
    step();
    exchange_.all_gather(shared);
  }
  void gather(Rows<float> y, int slice) {
    const SharedRows shared{y, slice};
    gather({&shared, 1});
  }
  // The rank's columns of every call; what others have of the rest is added to `shared`.
  void own_linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls,
                   std::vector<SharedRows>& shared);
  void make_hidden(int top_k, int width);
  // Experts' sums of the rank's columns, left in those columns of y. What waits in `shared` to be
  // exchanged goes along with the first of their rows.
  void own_expert_columns(const Batch& batch, const Moe& node, Rows<const float> logits,
                          const Operand& x, Rows<float> y, std::vector<SharedRows>& shared);
  void merge_marks(const Batch& batch);
  RankOf of() const { return {exchange_.rank(), exchange_.n_ranks()}; }

  Ops& inner_;
  Exchange& exchange_;
  Graph graph_;
  // By where the rank's weight lies, and how many rows all ranks have of it: nodes and weights are
  // copied about, their data is not.
  std::map<std::pair<const std::byte*, int>, Part> parts_;
  std::unordered_map<const std::byte*, Mamba2> mambas_;         // by in_proj
  std::unordered_map<const std::byte*, Attention> attentions_;  // by q_proj
  void step() { n_steps_.fetch_add(1, std::memory_order_relaxed); }

  const std::uint64_t expert_bytes_;
  std::atomic<std::uint64_t> n_steps_{0};
  Batch begun_;           // by begin(), with the marks of the call at work
  bool sampled_ = false;  // since then: its marks are merged
  int max_rows_ = 0;      // of any call
  // Between the two halves of experts: made by the first call, large enough for all.
  Rows<float> hidden_;
  std::unique_ptr<Operand> hidden_operand_;
};

}  // namespace bolt
