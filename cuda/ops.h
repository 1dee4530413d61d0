// CudaOps: the device's twin of every op in core/ops/ops.h, over one stream of one GPU. Kernels are
// in the .cu files named for their op; here is what they share: memory, the call's rows, captured
// graphs.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/ops/ops.h"
#include "core/pack/rank_graph.h"
#include "cuda/batch.cuh"
#include "cuda/check.h"
#include "cuda/parts.h"

namespace bolt::cuda {

inline SegmentView view_of(const Segment& s, int first_page) {
  return {s.first_row, s.n_rows, s.first_position, s.n_live,   s.n_sure,
          s.n_lag,     s.slot,   first_page,       s.first_key};
}

// Tiles of keys that grids cover: a power of two, so that a graph serves until the context doubles.
constexpr int grid_tiles(int last_position) {
  int n = 1;
  while (n < last_position / kPageKeys + 1) n *= 2;
  return n;
}

struct LinearArgs;
struct QuantOut;
struct QuantView;
struct SlotArgs;
struct SlotPairs;

// Calls of up to so many rows are bound by memory and launches: their kernels overlap and fuse.
inline constexpr int kFewRows = 32;

// Device memory that grows; growing drops the contents, and the graphs that hold its address.
class Scratch {
 public:
  template <class T>
  T* as(std::size_t n, const char* purpose, bool& moved) {
    const std::size_t wanted = n * sizeof(T);
    if (wanted > bytes_) {
      memory_.reset();
      memory_ = device_alloc<std::byte>(wanted, purpose);
      bytes_ = wanted;
      moved = true;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  DevicePtr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

class DeviceRounds;

// What is captured: calls of few rows, to be replayed; and whole rounds, which the device then
// decides by itself (rounds.h).
struct CudaGraphs {
  bool calls = true, rounds = true;
};

class CudaOps final : public Ops {
 public:
  // device: its ordinal.
  CudaOps(int device, CudaGraphs graphs);
  CudaOps(int device, bool graphs) : CudaOps(device, CudaGraphs{graphs, graphs}) {}
  ~CudaOps() override;

  // The graph with its weights on the device. Uploads through pinned buffers; throws Error(fault)
  // naming needed and free bytes if they do not fit. pieces: as RankGraph's.
  Graph place(const Graph& host, const Pieces& pieces = {});

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
  void experts_up(const Batch& batch, const Moe& node, Rows<const float> logits, const Operand& x,
                  int first_row, Rows<float> hidden) override;
  void experts_down(const Batch& batch, const Moe& node, const Operand& hidden, int first_row,
                    Rows<float> y) override;
  void add(Rows<const float> x, Rows<float> y) override;
  void norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                     Rows<float> y, bool integer, Operand& operand) override;
  void linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls) override;
  void mamba_quantize(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                      Rows<const float> zxbcdt, Rows<float> y, bool integer,
                      Operand& operand) override;
  void attention_quantize(const Batch& batch, const Attention& node, KvCache& cache,
                          Rows<const float> q, Rows<const float> k, Rows<const float> v,
                          Rows<float> y, bool integer, Operand& operand) override;
  void moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
           Rows<float> x) override;
  void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
              std::span<const std::uint8_t> marked, const int* ids_of,
              std::span<Sampled> out) override;
  void run_round(const RoundTask& task, RoundOutcome& outcome) override;
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
  void run_block(const BlockTask& task, std::span<Sampled> drafts) override;
  int padded_rows(int n_rows) const override;
  void copy(const void* from, std::uint64_t bytes, void* to) override;
  void wait() override { check(cudaStreamSynchronize(stream_), "waiting"); }
  void read(const float* from, std::span<float> to) override;
  void write(const void* from, std::uint64_t bytes, void* to) override;

  std::uint8_t* marks(const Batch& batch) const override;

  cudaStream_t stream() const { return stream_; }
  // Memory of the ranks' exchange, which captured calls hold the address of.
  float* exchange_memory(std::size_t n_floats) {
    return exchange_memory_.as<float>(n_floats, "exchanged rows", moved_);
  }
  // Runs the recurrence of one lagging slot into its stored state; MambaCache::read uses it.
  void settle(const Mamba2& node, float* h, float* raw, float* raw_dt, int slot, int n_lag);

 private:
  friend class DeviceRounds;
  struct Staging {
    PinnedPtr<std::byte> memory;
    std::size_t bytes = 0;
    cudaEvent_t used = nullptr;
  };

  struct Announcement;
  // What a drafter's choice takes from the host and gives back (block_ops.cu).
  struct BlockHost {
    static constexpr int kSequences = 32, kDrafts = 64;
    SampleSpec specs[kSequences];
    Sampled drafts[kDrafts];
  };

  // A call of routed experts over rows [first, first + n): its kernels' arguments.
  struct ExpertCall;

  void norm(const Batch& batch, Rows<const float> x, const float* w, float eps, int group,
            Rows<float> y, const QuantOut& quantised);
  LinearArgs linear_args(const Batch& batch, const Operand& x, const LinearTask& call);
  void run_mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                 Rows<const float> zxbcdt, Rows<float> y, const QuantOut& quantised);
  void run_attention(const Attention& node, KvCache& cache, Rows<const float> q,
                     Rows<const float> k, Rows<const float> v, Rows<float> y,
                     const QuantOut& quantised);
  SlotPairs slot_pairs(const SlotArgs& slots);
  ExpertCall expert_call(const Batch& batch, const Moe& node, const QuantView& x, int first, int n);
  // The device's copy of a draft vocabulary; null for null.
  const int* id_table(const int* ids_of, int n_cols);
  // `ops` as a graph, captured again where a buffer moved under it. from_device: kernels may launch
  // it, too.
  cudaGraphExec_t capture(const std::function<void()>& ops, bool from_device);
  void drop_moved_graphs();
  void upload_batch(std::span<const Segment> segments, std::span<const int> ids, int n_rows);
  void drop_graphs();

  int device_;
  bool graphs_;
  int sm_ = 0;
  cudaStream_t stream_ = nullptr;
  std::vector<DevicePtr<std::byte>> memory_;

  // The call that was begun.
  BatchView view_;
  std::span<std::uint8_t> host_marks_;
  bool marks_read_ = false;
  int n_rows_ = 0, n_segments_ = 0, max_segment_rows_ = 0, max_tiles_ = 1;
  Scratch batch_memory_;
  std::array<Staging, 16> staging_;
  int next_staging_ = 0;

  // Captured calls: seen once, they run; seen twice, they are captured.
  std::map<std::uint64_t, cudaGraphExec_t> captured_;
  std::map<std::uint64_t, int> seen_;

  std::unique_ptr<DeviceRounds> rounds_;  // null: the device does not launch graphs

  bool moved_ = false;                      // a buffer moved since the graphs were captured
  Scratch block_memory_, block_partial_;    // of separate drafters
  Scratch expert_pairs_, exchange_memory_;  // of ranks
  PinnedPtr<BlockHost> block_host_;

  Scratch mamba_conv_, mamba_steps_, attention_codes_, attention_partial_, expert_ints_,
      expert_floats_, expert_codes_, router_leaves_, sample_memory_;
  unsigned* n_routed_ = nullptr;  // rows routed so far by the call at work; 0 between calls
  // Sampling's: rows that there is room for, specs that the device already holds.
  PinnedPtr<std::byte> sample_host_;
  std::size_t sample_host_bytes_ = 0, sample_rows_ = 0, sample_specs_ = 0;
  std::map<std::pair<const int*, int>, DevicePtr<int>> id_tables_;  // of draft vocabularies
};

}  // namespace bolt::cuda
