// y = W x on the device (arithmetic.md §4): the arguments of its kernels and their launchers.
// linear_rows.cu serves few rows (memory-bound), linear_mma.cu many (tensor cores),
// linear_blocks.cu fp8 and GGUF's blocks.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"
#include "cuda/batch.cuh"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

// How a kernel stands to those beside it in the stream. A linear lets the next kernel start when
// its own inputs are there. A follower, which reads nothing of the kernel before it, finds its
// inputs there, too, and runs beside it; it waits only at its end, so that whoever waits for it has
// waited for all.
enum class Order { ordinary, follower };

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
  float* y = nullptr;  // null: only the quantised rows are wanted
  std::int64_t y_stride = 0;
  Epilogue epilogue = Epilogue::store;
  const float* plus = nullptr;  // of Epilogue::add: y = RN(y + RN(sum + plus))
  std::int64_t plus_stride = 0;
  std::uint8_t* marked = nullptr;
  QuantOut quantised;  // where the outputs go quantised, if anywhere; n_out a multiple of 32
  Order order = Order::ordinary;
  // Experts only: how many slots are in use, and per slot its expert; per place the input row, the
  // output row (-1: none) and the call's row to mark.
  const int* n_slots = nullptr;  // null: max_slots
  const int* slot_expert = nullptr;
  const int* slot_in = nullptr;
  const int* slot_out = nullptr;
  const int* slot_mark = nullptr;
  int max_slots = 0;
  int slot_rows = 0;
  bool slots_ready = false;  // slots were there before the kernel before this one began its sums
};

// Most rows a slot of the expert kernels for few rows holds.
inline constexpr int kSlotRowsFew = 8;

void launch_linear(const LinearArgs& args, Format format, cudaStream_t stream);
void launch_linear_rows(const LinearArgs& args, Format format, cudaStream_t stream);
void launch_linear_mma(const LinearArgs& args, Format format, cudaStream_t stream);

#ifdef __CUDACC__
BOLT_DEV void enter(Order order) {
  if (order == Order::follower) let_next_kernel_start();
}
// Before the rows are read; weights may be read earlier.
BOLT_DEV void wait_for_rows(Order order) {
  if (order == Order::follower) {
    __threadfence();  // the rows were there before this kernel started, but L1 may be older
    return;
  }
  wait_for_earlier_kernels();
  let_next_kernel_start();
}
// Before slots are read: they say which weights to ask for.
template <bool Slots>
BOLT_DEV void wait_for_slots(const LinearArgs& a) {
  if (!Slots) return;
  if (a.slots_ready) {
    __threadfence();
  } else {
    wait_for_rows(a.order);
  }
}
BOLT_DEV void leave(Order order) {
  if (order == Order::follower) wait_for_earlier_kernels();
}

// What a linear kernel does with its finished sums (before the gain): a warp, for the 32 outputs of
// a tile of one row, which are a group of the next linear's rows; out_row, mark_row are the warp's.
BOLT_DEV void finish_tile(const LinearArgs& a, float total, float gain, bool gained, int out_row,
                          int mark_row, int tile, int lane) {
  const int n = tile * kTileRows + lane;
  const bool in = n < a.n_out;
  float y = gained ? mul_rn(total, gain) : total;
  if (in && !finite(y)) a.marked[mark_row] = 1;
  float* place = a.y + static_cast<std::int64_t>(out_row) * a.y_stride + n;
  if (a.epilogue == Epilogue::add) {
    if (in) {
      if (a.plus != nullptr) y = add_rn(y, a.plus[out_row * a.plus_stride + n]);
      y = add_rn(*place, y);
    }
  } else if (a.epilogue == Epilogue::relu2) {
    const float r = y > 0.0f ? y : 0.0f;
    y = mul_rn(r, r);
  }
  if (in && a.y != nullptr) *place = y;
  if (a.quantised.slots != nullptr) a.quantised.put(in ? y : 0.0f, out_row, tile, lane);
}
#endif

}  // namespace bolt::cuda
