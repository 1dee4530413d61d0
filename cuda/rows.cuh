// Launchers of the row-wise kernels: embedding, residual add, norms, quantisation.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"
#include "cuda/batch.cuh"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

// x[r] = table[ids[r]], widened.
void launch_embed(const Weight& table, const int* ids, Rows<float> x, cudaStream_t stream);
// The same of a table in tiles (embed_tiles.cu).
void launch_embed_tiles(const Weight& table, const int* ids, Rows<float> x, cudaStream_t stream);
void launch_add(Rows<const float> x, Rows<float> y, cudaStream_t stream);

// RMSNorm of each contiguous group of columns; with `gate`, of RN(x * silu(gate)) (arithmetic.md
// §6).
struct NormArgs {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* gate = nullptr;
  std::int64_t gate_stride = 0;
  const float* w = nullptr;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  int n_rows = 0, n_cols = 0, group = 0;
  float eps = 0.0f;
  std::uint8_t* marked = nullptr;
  QuantOut quantised;  // y quantised, too, if wanted; then `group` is a multiple of 32, or the row
};
void launch_norm(const NormArgs& args, cudaStream_t stream);

// Quantised rows (§3).
struct QuantArgs {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  int n_rows = 0, n_cols = 0;
  std::int8_t* slots = nullptr;
  std::int8_t* halves = nullptr;
  float* scale = nullptr;
};
void launch_quantize(const QuantArgs& args, cudaStream_t stream);

}  // namespace bolt::cuda
