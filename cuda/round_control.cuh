// What a round is told and what it says, as the device has it (core/ops/round.h is its meaning).
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"
#include "cuda/batch.cuh"

namespace bolt::cuda {

inline constexpr int kRoundDraftsMax = kWindowRowsMax - 1;
inline constexpr int kRoundStopsMax = 64;

// Announced by the host, moved along by the device.
struct RoundControl {
  int max_levels, n_stop_ids, n_given;
  bool has_prices, levels_only;  // prices: go_on and row_prices, else all is drafted and verified
  int n_drafts;
  float product;
  float go_on[kWindowRowsMax];
  double row_prices[kWindowRowsMax];
  int stop_ids[kRoundStopsMax];
  Sampled given[kRoundDraftsMax];
  Sampled drafts[kRoundDraftsMax];
  cudaGraphExec_t windows[kWindowRowsMax + 1];  // [rows]; null: not captured yet
};

// In memory of the host's that the device can write.
struct RoundReport {
  int n_drafts, n_rows;  // rows of the window
  bool launched;         // the window was; else it is prepared, and the host is to launch it
  cudaError_t error;
  Sampled drafts[kRoundDraftsMax];
  Sampled sampled[kWindowRowsMax];
  std::uint8_t marks[kWindowRowsMax];
};

struct RoundView {
  RoundControl* control = nullptr;
  int* level_ids = nullptr;
  SegmentView* level_segment = nullptr;
  SampleSpec* level_spec = nullptr;
  Sampled* level_draft = nullptr;
  int* window_ids = nullptr;
  SegmentView* window_segment = nullptr;
  RoundReport* report = nullptr;  // the host's
};

// Ends a level's graph: launches it again for the next level, or the graph of the window's width.
// In a file of its own, for launching graphs takes relocatable device code.
void launch_end_of_level(const RoundView& view, cudaStream_t stream);

}  // namespace bolt::cuda
