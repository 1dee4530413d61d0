// What an engine runs on: the ops of the CPU or of a GPU, and the graph with its weights where
// those ops read them. open_cuda is cuda/backend.cu's, or core/engine/no_cuda.cpp's in a host-only
// build.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ops/ops.h"
#include "core/pack/graph.h"

namespace bolt {

struct Backend {
  std::unique_ptr<Ops> ops;
  Graph graph;                // weights point to memory of the ops
  std::string name;           // "cpu", or the GPU's name
  std::string arch;           // instruction set, or sm_NN
  int n_multiprocessors = 0;  // 0 on the CPU
  int ordinal = -1;           // the GPU's
};

// How a GPU is doing, as NVIDIA's management library has it.
struct GpuState {
  int sm_mhz = 0, memory_mhz = 0, temperature_c = 0;
  std::uint64_t used_bytes = 0;  // of its memory, by all processes
};
// Empty where the library is not installed or does not say.
std::optional<GpuState> gpu_state(int ordinal);

// One GPU that this build and the driver can use.
struct CudaDevice {
  int ordinal = 0;
  std::string name, arch;
  std::uint64_t memory_bytes = 0;
};

// GPUs, in the driver's order; empty without a driver. `why` says what is missing, if anything.
std::vector<CudaDevice> cuda_devices(std::string* why = nullptr);
bool built_with_cuda();

// Bytes a second that a GPU reads of its own memory at most, measured now; 0 without CUDA.
double cuda_read_ceiling(int ordinal);

// Uploads the graph's weights to GPU `ordinal`. graphs: capture calls of few rows and replay them.
// Throws Error(fault) naming what is missing: driver, device, architecture, memory.
Backend open_cuda(const Graph& graph, int ordinal, bool graphs);

// Fills in how ranks are opened on these GPUs, and how they exchange: stores into each other's
// memory where they reach it; NCCL, where it is installed, between others and for many rows; else,
// and where one GPU holds several, copies that the host orders.
// Throws Error naming a GPU that is not there, or that is not like the first.
struct RankSetup;
void open_cuda_ranks(const std::vector<int>& ordinals, bool graphs, RankSetup& setup);

}  // namespace bolt
