// HostOps: the CPU's twin of every op. One file an op holds the readable scalar definition; its
// AVX2 and AVX-512 forms lie in core/ops/x86/ and give the same bits.
#pragma once

#include <memory>
#include <vector>

#include "core/base/cpu.h"
#include "core/base/thread_pool.h"
#include "core/ops/ops.h"

namespace bolt {

struct ExpertScratch;  // experts.cpp's buffers, kept from call to call

class HostOps final : public Ops {
 public:
  HostOps(int n_threads, Isa isa);  // isa is a resolved one
  ~HostOps() override;

  Isa isa() const { return isa_; }
  ThreadPool& pool() { return pool_; }

  void begin(const Batch& batch, std::span<const int> ids) override;  // host.cpp
  void replay(std::uint64_t key, const std::function<void()>& ops) override { (void)key, ops(); }
  void finish(const Batch& batch) override { (void)batch; }
  std::uint64_t free_bytes() const override;                                          // memory.cpp
  void* allocate(std::uint64_t bytes, const char* purpose) override;                  // memory.cpp
  void read(const float* from, std::span<float> to) override;                         // memory.cpp
  void write(const void* from, std::uint64_t bytes, void* to) override;               // memory.cpp
  std::unique_ptr<MambaCache> mamba_cache(const Mamba2& node, int n_slots) override;  // mamba.cpp
  std::unique_ptr<KvCache> kv_cache(const Attention& node, KvKind kind,
                                    int n_pages) override;                // kv_cache.cpp
  std::unique_ptr<Operand> operand(int max_rows, int max_cols) override;  // quantize.cpp
  void embed(const Weight& table, std::span<const int> ids, Rows<float> x) override;  // embed.cpp
  void rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps, int group,
                Rows<float> y) override;                                        // rms_norm.cpp
  void quantize(Rows<const float> x, bool integer, Operand& operand) override;  // quantize.cpp
  void linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
              Rows<float> y) override;  // linear.cpp
  void mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
             Rows<const float> zxbcdt, Rows<float> y) override;  // mamba.cpp
  void attention(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> q,
                 Rows<const float> k, Rows<const float> v,
                 Rows<float> y) override;  // attention.cpp
  void put_keys(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> k,
                Rows<const float> v) override;  // attention.cpp
  void experts(const Batch& batch, const Moe& node, Rows<const float> logits, const Operand& x,
               Rows<float> y) override;  // experts.cpp
  void experts_up(const Batch& batch, const Moe& node, Rows<const float> logits, const Operand& x,
                  int first_row, Rows<float> hidden) override;  // experts.cpp
  void experts_down(const Batch& batch, const Moe& node, const Operand& hidden, int first_row,
                    Rows<float> y) override;              // experts.cpp
  void add(Rows<const float> x, Rows<float> y) override;  // add.cpp
  void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
              std::span<const std::uint8_t> marked, const int* ids_of,
              std::span<Sampled> out) override;  // sample.cpp
  // block_draft_host.cpp
  bool has_block_ops() const override { return true; }
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
  void copy(const void* from, std::uint64_t bytes, void* to) override;

 private:
  struct FreePages {
    std::uint64_t bytes;
    void operator()(std::byte* pages) const noexcept;
  };

  // Rows that routed experts work on at once (experts.cpp).
  struct ExpertRows {
    int first = 0, n = 0;
  };
  void choose_experts(const Batch& batch, const Moe& node, Rows<const float> logits,
                      const Operand& x, ExpertRows rows);
  void sum_experts(const Batch& batch, const Moe& node, const Operand& hidden, ExpertRows rows,
                   Rows<float> y);

  Isa isa_;
  ThreadPool pool_;
  std::vector<std::unique_ptr<std::byte, FreePages>> memory_;
  std::vector<float> mamba_scratch_, attention_scratch_;  // grown to the largest call
  std::unique_ptr<ExpertScratch> expert_scratch_;
};

}  // namespace bolt
