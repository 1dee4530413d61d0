// y = W x on the device (arithmetic.md §4): the arguments of its kernels and their launchers.
// linear_rows.cu serves few rows (memory-bound), linear_mma.cu many (tensor cores).
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"
#include "cuda/batch.cuh"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

// One matrix for all rows, or (slots) one expert's matrix for each slot of up to `slot_rows` rows.
struct LinearArgs {
  const std::uint8_t* weights = nullptr;
  const float* gains = nullptr;  // one a matrix, or null
  std::int64_t matrix_bytes = 0;
  int n_groups = 0;  // of K
  int n_cols = 0;    // K
  int n_out = 0;     // N
  int n_rows = 0;
  QuantView x;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  Epilogue epilogue = Epilogue::store;
  std::uint8_t* marked = nullptr;
  // Experts only: how many slots are in use, and per slot its expert; per place the input row, the
  // output row (-1: none) and the call's row to mark.
  const int* n_slots = nullptr;
  const int* slot_expert = nullptr;
  const int* slot_in = nullptr;
  const int* slot_out = nullptr;
  const int* slot_mark = nullptr;
  int max_slots = 0;
  int slot_rows = 0;
};

// Rows a slot of the expert kernels may hold.
inline constexpr int kSlotRowsFew = 8;
inline constexpr int kSlotRowsMany = 32;

void launch_linear(const LinearArgs& args, Format format, cudaStream_t stream);
void launch_linear_rows(const LinearArgs& args, Format format, cudaStream_t stream);
void launch_linear_mma(const LinearArgs& args, Format format, cudaStream_t stream);

#ifdef __CUDACC__
// What every linear kernel does with a finished sum (before the gain).
__device__ __forceinline__ void finish_sum(const LinearArgs& a, float total, float gain,
                                           bool gained, int out_row, int mark_row, int n) {
  float y = gained ? mul_rn(total, gain) : total;
  if (!finite(y)) a.marked[mark_row] = 1;
  float* place = a.y + static_cast<std::int64_t>(out_row) * a.y_stride + n;
  if (a.epilogue == Epilogue::add) {
    y = add_rn(*place, y);
  } else if (a.epilogue == Epilogue::relu2) {
    const float r = y > 0.0f ? y : 0.0f;
    y = mul_rn(r, r);
  }
  *place = y;
}
#endif

}  // namespace bolt::cuda
