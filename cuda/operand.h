// Rows as linears take them on the device: the rows themselves, and quantised (arithmetic.md §3) by
// quantize() or by the kernel that made them.
#pragma once

#include "core/ops/ops.h"
#include "cuda/check.h"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

class CudaOperand final : public Operand {
 public:
  CudaOperand(int max_rows, int max_cols) {
    const auto rows = static_cast<std::size_t>(max_rows);
    const auto groups = static_cast<std::size_t>(n_groups(max_cols));
    slots_ = device_alloc<std::int8_t>(rows * groups * 32, "quantised rows");
    halves_ = device_alloc<std::int8_t>(rows * groups * 32, "quantised rows");
    scale_ = device_alloc<float>(rows * groups, "quantised rows' scales");
  }

  // From now on this operand is x; its codes, if any, are written by whoever takes the answer.
  QuantOut hold(Rows<const float> x, bool integer) {
    view_ = {x.data, x.stride, slots_.get(), halves_.get(), scale_.get(), n_groups(x.n_cols)};
    n_rows_ = x.n_rows, n_cols_ = x.n_cols, is_integer_ = integer;
    if (!integer) return {};
    return {slots_.get(), halves_.get(), scale_.get(), n_groups(x.n_cols)};
  }
  const QuantView& view() const { return view_; }
  int n_rows() const { return n_rows_; }
  int n_cols() const { return n_cols_; }
  bool is_integer() const { return is_integer_; }

 private:
  DevicePtr<std::int8_t> slots_, halves_;
  DevicePtr<float> scale_;
  QuantView view_;
  int n_rows_ = 0, n_cols_ = 0;
  bool is_integer_ = false;
};

inline const CudaOperand& as_device(const Operand& operand) {
  return static_cast<const CudaOperand&>(operand);
}
inline CudaOperand& as_device(Operand& operand) { return static_cast<CudaOperand&>(operand); }

}  // namespace bolt::cuda
