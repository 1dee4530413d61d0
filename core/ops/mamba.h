// Mamba-2 on the host: the recurrent cache, and the four steps that each instruction set provides.
// How a call's rows are cut among them is mamba.cpp.
#pragma once

#include <cstdint>
#include <memory>
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

class HostMambaCache : public MambaCache {
 public:
  HostMambaCache(const Mamba2& node, int n_slots);
  void reset(int slot) override;
  void read(int slot, int n_lag, std::vector<float>& state) const override;
  void copy(int from_slot, int to_slot) override;

  // One slot's parts: the state [n_heads, head_dim, d_state], the raw conv inputs before it
  // [conv_kernel - 1, d_conv], oldest first, and the rows after it [kWindowRowsMax - 1, lag_cols],
  // xBC | dt as in_proj gave them.
  float* h(int slot) { return part(slot); }
  float* conv(int slot) { return part(slot) + n_h_; }
  float* lag_row(int slot, int i) { return part(slot) + n_h_ + n_conv_ + i * lag_cols(); }
  int lag_cols() const { return d_conv_ + node_.n_heads; }
  int n_kept(int slot) const { return n_kept_[slot]; }  // lag rows that hold something
  void set_n_kept(int slot, int n) { n_kept_[slot] = n; }
  const float* taps() const { return taps_.data(); }  // [conv_kernel, d_conv]
  int n_slots() const { return static_cast<int>(n_kept_.size()); }

 private:
  struct Free {
    void operator()(float* p) const noexcept;
  };
  float* part(int slot) const { return memory_.get() + slot * n_slot_; }

  Mamba2 node_;
  int d_conv_;
  std::vector<float> taps_;
  std::int64_t n_h_, n_conv_, n_slot_;  // floats of a slot's parts, and of all of them
  std::unique_ptr<float, Free> memory_;
  std::vector<int> n_kept_;  // by slot
};

}  // namespace bolt
