// Kernels of separate drafters (core/ops/block_draft.h): arguments and launchers.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/block_draft.h"
#include "cuda/batch.cuh"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

void launch_round_bf16(Rows<const float> x, Rows<float> y, cudaStream_t stream);
// x[r] = row where ids[r] is `id`.
void launch_replace(const int* ids, int id, const float* row, Rows<float> x, cudaStream_t stream);

struct RopeArgs {
  BatchView batch;
  RopeTable rope;
  float eps = 0.0f;
  std::uint8_t* marked = nullptr;  // of the first row
  int first_row = 0, n_rows = 0;   // of the batch
};
// Heads of q, then of k, in place.
void launch_rope_heads(const RopeArgs& args, Rows<float> q, const float* q_norm, Rows<float> k,
                       const float* k_norm, cudaStream_t stream);
void launch_put_context(const RopeArgs& args, const float* k_norms, const BlockCache& cache,
                        Rows<const float> kv, cudaStream_t stream);

// Keys are taken in units of tiles, the block's own last; a unit's sum is relative to its largest
// score: partial [n_rows][n_heads][n_units + 1][2 + head_dim], largest, sum of weights, sums.
struct BlockAttentionArgs {
  BatchView batch;
  BlockShape shape;
  const float* sinks = nullptr;
  const std::uint16_t *keys = nullptr, *values = nullptr;  // of the layer
  int n_cols = 0, ring_tiles = 0;
  const float *q = nullptr, *kv = nullptr;
  std::int64_t q_stride = 0, kv_stride = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  int n_rows = 0;
  int n_units = 0, tiles_a_unit = 1;
  float* partial = nullptr;
  std::uint8_t* marked = nullptr;

  std::size_t partial_floats() const {
    return static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(shape.n_heads) *
           static_cast<std::size_t>(n_units + 1) * static_cast<std::size_t>(shape.head_dim + 2);
  }
};
void launch_block_attention(const BlockAttentionArgs& args, cudaStream_t stream);

void launch_gate(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                 const QuantOut& quantised, cudaStream_t stream);

// The choice of a block's tokens, left to right. All arrays are by sequence; drafts [n_sequences]
// [n_drafts], on the device and in pinned memory.
struct BlockSteps {
  int n_sequences = 0, block_rows = 0, n_drafts = 0;
  const int* ids = nullptr;              // of the call's rows
  const std::uint8_t* marked = nullptr;  // likewise
  int* previous = nullptr;
  std::uint8_t* marks = nullptr;  // of the step at work; clear before each
  SampleSpec* specs = nullptr;
  const Sampled* chosen = nullptr;
  Sampled *drafts = nullptr, *drafts_out = nullptr;
};
// Before draft `step` + 1 is chosen: takes what was chosen for draft `step`, or the anchor.
void launch_block_step(const BlockSteps& steps, int step, cudaStream_t stream);

}  // namespace bolt::cuda
