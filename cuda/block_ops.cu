// The ops of separate drafters on the device; a drafter's pass and the choice of its tokens are one
// captured graph and one wait.
#include <algorithm>

#include "core/ops/replay_key.h"
#include "cuda/block_draft.cuh"
#include "cuda/linear.cuh"
#include "cuda/operand.h"
#include "cuda/ops.h"
#include "cuda/rows.cuh"
#include "cuda/sample.cuh"

namespace bolt::cuda {
namespace {

constexpr int kUnitsMax = 64;

// Rows of a call that `batch` is a part of: its marks say where it begins.
RopeArgs rope_args(const BatchView& view, const RopeTable& rope, float eps, std::uint8_t* marked,
                   int first_row, int n_rows) {
  require(rope.head_dim <= 256 && rope.head_dim % 2 == 0, "a head's size is even, at most 256");
  RopeArgs a;
  a.batch = view, a.rope = rope, a.eps = eps, a.marked = marked;
  a.first_row = first_row, a.n_rows = n_rows;
  return a;
}

}  // namespace

void CudaOps::round_bf16(Rows<const float> x, Rows<float> y) { launch_round_bf16(x, y, stream_); }

void CudaOps::embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                        Rows<float> x) {
  embed(table, ids, x);
  launch_replace(view_.ids, id, row, x, stream_);
}

void CudaOps::rope_heads(const Batch& batch, const RopeTable& rope, float eps, Rows<float> q,
                         const float* q_norm, Rows<float> k, const float* k_norm) {
  const RopeArgs a = rope_args(view_, rope, eps, marks(batch), 0, q.n_rows);
  launch_rope_heads(a, q, q_norm, k, k_norm, stream_);
}

void CudaOps::put_context(const Batch& batch, int first_row, const RopeTable& rope, float eps,
                          const float* k_norms, const BlockCache& cache, Rows<const float> kv) {
  require(kv.n_cols == 2 * cache.n_layers * cache.n_cols, "a context row holds every layer's");
  const RopeArgs a = rope_args(view_, rope, eps, marks(batch) + first_row, first_row, kv.n_rows);
  launch_put_context(a, k_norms, cache, kv, stream_);
}

void CudaOps::block_attention(const Batch& batch, const BlockShape& shape, int layer,
                              const float* sinks, const BlockCache& cache, Rows<const float> q,
                              Rows<const float> kv, Rows<float> y) {
  require(shape.head_dim <= 256 && shape.block_rows <= kPageKeys, "a block is at most a tile");
  BlockAttentionArgs a;
  a.batch = view_, a.shape = shape, a.sinks = sinks;
  a.keys = cache.keys + cache.place(layer, 0), a.values = cache.values + cache.place(layer, 0);
  a.n_cols = cache.n_cols, a.ring_tiles = cache.ring_tiles;
  a.q = q.data, a.q_stride = q.stride, a.kv = kv.data, a.kv_stride = kv.stride;
  a.y = y.data, a.y_stride = y.stride, a.n_rows = q.n_rows;
  // A window of keys lies in so many tiles at most; grids cover what the call announced.
  const int n_tiles =
      shape.window > 0 ? std::min(max_tiles_, (shape.window - 2) / kPageKeys + 2) : max_tiles_;
  a.tiles_a_unit = (n_tiles + kUnitsMax - 1) / kUnitsMax;
  a.n_units = (n_tiles + a.tiles_a_unit - 1) / a.tiles_a_unit;
  a.partial = block_partial_.as<float>(a.partial_floats(), "a drafter's attention", moved_);
  a.marked = marks(batch);
  launch_block_attention(a, stream_);
}

void CudaOps::gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                            bool integer, Operand& operand) {
  launch_gate(gate, up, y, as_device(operand).hold(y, integer), stream_);
}

// Few numbers of rows, so that few graphs serve.
int CudaOps::padded_rows(int n_rows) const {
  if (n_rows > 8) return (n_rows + 7) / 8 * 8;
  return n_rows > 4 ? 8 : n_rows > 2 ? 4 : n_rows;
}

void CudaOps::copy(const void* from, std::uint64_t bytes, void* to) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying");
}

void CudaOps::run_block(const BlockTask& task, std::span<Sampled> drafts) {
  constexpr int kSequencesMax = BlockHost::kSequences, kDraftsMax = BlockHost::kDrafts;
  const int n = task.n_sequences;
  if (n > kSequencesMax || n * task.n_drafts > kDraftsMax) return Ops::run_block(task, drafts);
  begin(task.batch, task.ids);

  SampleNeeds needs;
  for (const SampleSpec& spec : task.sampling) {
    needs |= needs_of(reduced(spec), task.logits.n_cols);
  }
  SampleArgs sampling;
  sampling.logits = task.logits.row(1);
  sampling.stride = task.logits.stride * task.block_rows;
  sampling.n_rows = n, sampling.n_cols = task.logits.n_cols;
  sampling.block_columns = sample_block_columns(n, sampling.n_cols);
  sampling.n_blocks = sample_blocks(n, sampling.n_cols);
  sampling.choose_later = needs.later;

  BlockSteps steps;
  steps.n_sequences = n, steps.block_rows = task.block_rows, steps.n_drafts = task.n_drafts;
  steps.ids = view_.ids, steps.marked = view_.marked;
  Sampled* chosen = nullptr;
  const auto lay_out = [&](std::byte* base) {
    Parts parts(base);
    steps.previous = parts.take<int>(kSequencesMax);
    steps.marks = parts.take<std::uint8_t>(kSequencesMax);
    steps.specs = parts.take<SampleSpec>(kSequencesMax);
    steps.chosen = chosen = parts.take<Sampled>(kSequencesMax);
    steps.drafts = parts.take<Sampled>(kDraftsMax);
    const std::size_t before = parts.bytes();
    return before + lay_out_sampling(base == nullptr ? nullptr : base + before, kSequencesMax, n,
                                     sampling.n_cols, needs, sampling.scratch);
  };
  bool moved = false;
  const std::size_t bytes = lay_out(nullptr);
  auto* const memory = block_memory_.as<std::byte>(bytes, "a drafter's choice", moved);
  if (moved) {
    check(cudaMemsetAsync(memory, 0, bytes, stream_), "a drafter's choice");
    drop_graphs();
  }
  lay_out(memory);
  sampling.specs = steps.specs, sampling.marked = steps.marks, sampling.out = chosen;
  if (block_host_ == nullptr) block_host_ = pinned_alloc<BlockHost>(1, "a drafter's choice");
  BlockHost& host = block_host_[0];
  steps.drafts_out = host.drafts;
  for (int s = 0; s < n; ++s) {
    host.specs[s] = reduced(task.sampling[static_cast<std::size_t>(s)]);
  }
  check(cudaMemcpyAsync(steps.specs, host.specs, static_cast<std::size_t>(n) * sizeof(SampleSpec),
                        cudaMemcpyHostToDevice, stream_),
        "a drafter's choice");

  replay(key_with(task.key, needs.bits()), [&] {
    task.ops();
    launch_block_step(steps, 0, stream_);
    for (int r = 0; r < task.n_drafts; ++r) {
      SampleArgs a = sampling;
      a.logits += r * task.logits.stride;
      if (task.markov_w1 != nullptr) {
        launch_embed(*task.markov_w1, steps.previous, task.markov_rows, stream_);
        quantize(task.markov_rows, is_integer(task.markov_w2->format), *task.markov_operand);
        const Rows<float> rows{const_cast<float*>(a.logits), n, a.n_cols, a.stride};
        LinearArgs bias = linear_args({n, {}, host_marks_.first(static_cast<std::size_t>(n))},
                                      *task.markov_operand, {task.markov_w2, Epilogue::add, rows});
        bias.marked = steps.marks;
        launch_linear(bias, task.markov_w2->format, stream_);
      }
      launch_sample(a, stream_);
      launch_block_step(steps, r + 1, stream_);
    }
  });
  check(cudaStreamSynchronize(stream_), "running a drafter");
  std::copy_n(host.drafts, drafts.size(), drafts.begin());
  marks_read_ = true;
}

}  // namespace bolt::cuda
