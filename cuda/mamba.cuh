// Mamba-2 on the device: what its kernels read and write, and their launcher.
#pragma once

#include <cuda_runtime.h>

#include "core/pack/graph.h"
#include "cuda/batch.cuh"

namespace bolt::cuda {

inline constexpr int kLagRowsMax = 31;

struct MambaArgs {
  int n_heads = 0, head_dim = 0, d_state = 0, n_ssm_groups = 0, conv_kernel = 0;
  int d_inner = 0, d_conv = 0, n_rows = 0;
  float dt_min = 0.0f, dt_max = 0.0f;
  bool clamp = false;
  const float *conv_w = nullptr, *conv_b = nullptr, *A = nullptr, *D = nullptr, *dt_bias = nullptr;
  BatchView batch;
  const float* zxbcdt = nullptr;
  std::int64_t zxbcdt_stride = 0;
  float* y = nullptr;  // readout, before the gate
  std::int64_t y_stride = 0;
  // The cache: per slot h [n_heads, head_dim, d_state], raw conv inputs [conv_kernel - 1 + 31,
  // d_conv] and raw step sizes [31, n_heads] of the lagging rows.
  float *h = nullptr, *raw = nullptr, *raw_dt = nullptr;
  // Scratch of a call: row r at r, lagging row j of segment s at lag_base + 32 s + j.
  float *conv = nullptr, *dt = nullptr, *decay = nullptr;
  int lag_base = 0;
};

// Convolution and recurrence of any call; the gated norm is the caller's.
void launch_mamba(const MambaArgs& args, int n_segments, int max_segment_rows, cudaStream_t stream);

}  // namespace bolt::cuda
