// Rounds that the device decides by itself: the host announces one, launches the head's graph and
// waits; graphs launch each other (round_control.cu).
#pragma once

#include <array>
#include <map>
#include <memory>

#include "core/ops/round.h"
#include "cuda/ops.h"
#include "cuda/round_control.cuh"
#include "cuda/sample.cuh"

namespace bolt::cuda {

class DeviceRounds {
 public:
  // Null where the driver has no graphs that kernels launch.
  static std::unique_ptr<DeviceRounds> make(CudaOps& ops);
  explicit DeviceRounds(CudaOps& ops);

  // False, and nothing done: the round is larger than what is announced at once.
  bool run(const RoundTask& task, RoundOutcome& outcome);
  void drop_graphs();

 private:
  using Windows = std::array<cudaGraphExec_t, kWindowRowsMax + 1>;  // [rows]; null: not yet
  // A part of the round as the ops see it, and its sampling.
  struct Side {
    BatchView batch;
    SampleSpec* specs = nullptr;
    SampleNeeds needs;
    SampleArgs sampling;
    Scratch scratch;
  };

  void place_sampling(Side& side, Rows<const float> logits, int n_rows, const SampleSpec& spec,
                      const int* ids_of);
  void announce(const RoundTask& task, const Windows& windows);
  void run_levels(const RoundTask& task, std::uint64_t level_key, std::uint64_t window_key);
  // Captures `ops` and the sampling of the first n_rows rows after them.
  cudaGraphExec_t capture(Side& side, int n_rows, std::span<std::uint8_t> marks,
                          const std::function<void()>& ops, bool is_level);

  CudaOps& ops_;
  DevicePtr<std::byte> memory_;  // as laid out in the constructor
  PinnedPtr<std::byte> host_;
  PinnedPtr<RoundReport> report_;
  RoundView view_;
  Side level_, window_;
  std::map<std::uint64_t, cudaGraphExec_t> levels_;
  std::map<std::uint64_t, Windows> windows_;
  std::size_t n_graphs_ = 0;
};

}  // namespace bolt::cuda
