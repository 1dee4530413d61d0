// Mamba-2 on the host: the recurrent cache, and the four steps that each instruction set provides.
// How a call's rows are cut among them is mamba.cpp.
#pragma once

#include <vector>

#include "core/base/cpu.h"
#include "core/ops/ops.h"

namespace bolt {

// Rows of one sequence for one head and some of its dims.
struct ScanArgs {
  float* h = nullptr;  // [n_dims, d_state], read and written
  int n_rows = 0, n_dims = 0, d_state = 0;
  const float *x = nullptr, *B = nullptr,
              *C = nullptr;                  // after the convolution; x at the first dim
  std::int64_t stride = 0;                   // of x, B and C, in floats
  const float *dt = nullptr, *dA = nullptr;  // this head's
  std::int64_t head_stride = 0;              // of dt and dA
  float D = 0.0f;
  float* y = nullptr;  // null: the state alone
  std::int64_t y_stride = 0;
};

struct MambaKernels {
  // Channels [first, first + count): out = silu(bias + taps . raw), oldest tap first.
  //   raw: rows -(conv_kernel - 1) .. n_rows - 1; taps [conv_kernel, n_channels]; out rows of
  //   stride.
  void (*conv)(const float* const* raw, int n_rows, int conv_kernel, const float* taps,
               const float* bias, int n_channels, int first, int count, float* out,
               std::int64_t stride);
  // One row's step sizes: dt = softplus(raw + bias), clamped if clamp; dA = exp(dt * A).
  void (*steps)(const float* raw, const float* bias, const float* A, int n_heads, bool clamp,
                float dt_min, float dt_max, float* dt, float* dA);
  void (*scan)(const ScanArgs& args);
  // y = y * silu(z)
  void (*gate)(const float* z, int n, float* y);
};

extern const MambaKernels kMambaPortable, kMambaFma, kMambaAvx2, kMambaAvx512;
const MambaKernels& mamba_kernels_for(Isa isa);

class HostMambaCache final : public MambaCache {
 public:
  HostMambaCache(const Mamba2& node, int n_slots);
  void reset(int slot) override;
  void read(int slot, int n_lag, std::vector<float>& state) const override;
  void copy(int from_slot, int to_slot) override;

  // One slot's parts. lag rows hold xBC | dt as in_proj gave them.
  float* h(int slot) { return slots_[slot].h.data(); }
  float* conv(int slot) { return slots_[slot].conv.data(); }
  float* lag_row(int slot, int i) { return slots_[slot].lag.data() + i * lag_cols(); }
  int lag_cols() const { return d_conv_ + node_.n_heads; }
  int n_kept(int slot) const { return slots_[slot].n_kept; }
  void set_n_kept(int slot, int n) { slots_[slot].n_kept = n; }
  const float* taps() const { return taps_.data(); }  // [conv_kernel, d_conv]
  int n_slots() const { return static_cast<int>(slots_.size()); }

 private:
  struct Slot {
    std::vector<float> h;     // [n_heads, head_dim, d_state]
    std::vector<float> conv;  // [conv_kernel - 1, d_conv], the raw inputs before h, oldest first
    std::vector<float> lag;   // [kWindowRowsMax - 1, lag_cols], the rows after h
    int n_kept = 0;           // lag rows that hold something
  };
  Mamba2 node_;
  int d_conv_;
  std::vector<float> taps_;
  std::vector<Slot> slots_;
};

}  // namespace bolt
