// HostOperand: the rows that enter a linear, quantised as §3, in the layouts that the kernels read.
// Who fills it is quantize.cpp; who reads it is linear_kernels.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/ops.h"
#include "core/pack/tiles.h"

namespace bolt {

// A view of the rows, plain enough for the kernels of every instruction set. A row has n_groups
// groups of 32 columns, the last one padded with zeros.
struct OperandRows {
  int n_rows = 0, n_cols = 0, n_groups = 0;
  bool integer = false;      // whether the codes below are filled
  const float* x = nullptr;  // the rows themselves, readable up to 32 * n_groups columns
  std::int64_t x_stride = 0;
  const std::int8_t* codes = nullptr;  // [row][group][column]
  const std::int8_t* slots = nullptr;  // [row][group][p/4][t][p%4]: the order of a q8 block
  const float* scales = nullptr;       // [row][group]
  // What kernels that hold codes as unsigned numbers start from: sums of the row's codes, times
  // minus what they add to a weight's.
  const std::int32_t* q8_bias = nullptr;       // [row][group]: -128 * sum
  const std::int32_t* nvfp4_bias = nullptr;    // [row][group][half]: -12 * sum of the half
  const std::int32_t* nvfp4_bias16 = nullptr;  // the same, as the low one of two 16-bit numbers
  const std::int32_t* half_sums = nullptr;     // [row][group][half]: sums of the half's codes
  const std::uint8_t* nonfinite = nullptr;     // [row]: a group held a NaN or an infinity

  std::int64_t group_index(int row, int group) const {
    return static_cast<std::int64_t>(row) * n_groups + group;
  }
};

// Where one quantised group goes.
struct QuantizedGroup {
  std::int8_t* codes;  // [32]
  std::int8_t* slots;  // [32]
  float* scale;
  std::int32_t* q8_bias;
  std::int32_t* nvfp4_bias;    // [2]
  std::int32_t* nvfp4_bias16;  // [2]
  std::int32_t* half_sums;     // [2]
};

// §3 for one group of `n` elements, 1 to 32. False if one is not finite: then q = 0 and sa = 0.
bool quantize_group(const float* x, int n, const QuantizedGroup& out);

class HostOperand final : public Operand {
 public:
  HostOperand() = default;
  // Room for rows of a call; grows only through reserve().
  HostOperand(int max_rows, int max_cols) { reserve(max_rows, max_cols); }
  void reserve(int max_rows, int max_cols, bool codes = true, bool floats = true);

  // Starts a call's rows; quantised groups and padded floats are written through the two below.
  void begin(int n_rows, int n_cols, bool integer);
  // The rows as they lie: where no padding is needed nothing is copied.
  void borrow(Rows<const float> x);
  QuantizedGroup group(int row, int group);
  float* padded_row(int row) { return &padded_[static_cast<std::size_t>(row) * padded_cols()]; }
  void set_nonfinite(int row, bool value) { nonfinite_[static_cast<std::size_t>(row)] = value; }
  bool pads() const { return view_.n_cols % kGroupCols != 0; }

  const OperandRows& view() const { return view_; }

 private:
  std::size_t padded_cols() const { return static_cast<std::size_t>(view_.n_groups) * kGroupCols; }

  OperandRows view_;
  std::vector<std::int8_t> codes_, slots_;
  std::vector<float> scales_, padded_;
  std::vector<std::int32_t> q8_bias_, nvfp4_bias_, nvfp4_bias16_, half_sums_;
  std::vector<std::uint8_t> nonfinite_;
};

}  // namespace bolt
