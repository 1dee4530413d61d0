// Routed experts on the device (arithmetic.md §8): routing, the slots that gather rows by expert,
// and the weighted sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/pack/graph.h"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

// The router's linear for few rows, cut by segments so that it fills more than its few tiles would:
// leaves f32 [n_rows][4 n_segments][32 n_tiles], for launch_route to add.
struct RouterArgs {
  const std::uint8_t* weights = nullptr;  // float tiles
  Format format = Format::f32;
  int n_experts = 0, n_cols = 0, n_rows = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  float* leaves = nullptr;
};

struct RouteArgs {
  int n_rows = 0, n_experts = 0, top_k = 0, n_router_groups = 1, top_k_groups = 1;
  bool norm_top_k = true;
  float scaling_factor = 1.0f;
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  const float* leaves = nullptr;  // the logits' leaves instead, n_leaves a row
  int n_leaves = 0;
  const float* bias = nullptr;
  int* choice = nullptr;    // [n_rows][top_k]
  float* weight = nullptr;  // [n_rows][top_k]
  std::uint8_t* marked = nullptr;
};

// Slots: each holds one expert and up to slot_rows rows that chose it.
struct SlotArgs {
  int n_pairs = 0, top_k = 0, n_experts = 0, slot_rows = 0, max_slots = 0;
  const int* choice = nullptr;
  int* n_slots = nullptr;
  int* slot_expert = nullptr;  // [max_slots]
  int* in_row =
      nullptr;  // [max_slots * slot_rows]: the call's row; an empty place has its slot's first
  int* in_place = nullptr;    // the place itself; an empty place has its slot's first
  int* out_place = nullptr;   // the place itself, -1 if empty
  int* mark_row = nullptr;    // the call's row, -1 if empty
  int* pair_place = nullptr;  // [n_pairs]: where each (row, choice) went
};

// Route, and gather the slots in the same kernel: the last of its blocks does.
struct RouteSlotsArgs {
  RouteArgs route;
  SlotArgs slots;
  unsigned int* n_done = nullptr;  // 0 between calls
};

struct CombineArgs {
  int n_rows = 0, n_cols = 0, top_k = 0;
  const int* pair_place = nullptr;
  const float* weight = nullptr;
  const float* out = nullptr;  // [places][n_cols]
  float* y = nullptr;
  std::int64_t y_stride = 0;
  // Null, or y = RN(y + RN(sum + plus)): the residual stream and the shared expert.
  bool residual = false;
  const float* plus = nullptr;
  std::int64_t plus_stride = 0;
  QuantOut quantised;  // y quantised, too
};

inline constexpr int kDeviceExpertsMax = 1024;

// Slots that n_rows rows may need at most.
int slots_bound(int n_rows, int top_k, int n_experts, int slot_rows);
void launch_router(const RouterArgs& args, cudaStream_t stream);
void launch_route_slots(const RouteSlotsArgs& args, cudaStream_t stream);
void launch_route(const RouteArgs& args, cudaStream_t stream);
void launch_slots(const SlotArgs& args, cudaStream_t stream);
void launch_combine(const CombineArgs& args, cudaStream_t stream);

}  // namespace bolt::cuda
