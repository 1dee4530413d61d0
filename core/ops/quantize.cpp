// Quantised rows (§3): groups of 32, one scale each. The layouts are operand.h's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/host.h"
#include "core/ops/operand.h"

namespace bolt {

namespace {

constexpr float kLeastAmax = 0x1p-120f;     // below it 127/amax would overflow: the group is zero
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to integer, ties to even

std::int8_t round_to_code(float v) {  // |v| <= 127.5
  return static_cast<std::int8_t>(static_cast<std::int32_t>(float_bits(v + kRoundMagic)) -
                                  static_cast<std::int32_t>(float_bits(kRoundMagic)));
}

}  // namespace

bool quantize_group(const float* x, int n, const QuantizedGroup& out) {
  float v[kGroupCols] = {};
  std::memcpy(v, x, sizeof(float) * static_cast<std::size_t>(n));
  // The largest magnitude by its bits, which order as the magnitudes do; NaN and infinity come
  // last.
  std::uint32_t largest = 0;
  for (float e : v) largest = std::max(largest, float_bits(e) & 0x7fffffffu);
  const bool finite = largest < 0x7f800000u;
  const float amax = bits_float(largest);
  if (!finite || amax < kLeastAmax) {
    std::memset(out.codes, 0, kGroupCols);
    std::memset(out.slots, 0, kGroupCols);
    *out.scale = 0.0f;
    *out.q8_bias = 0;
    out.nvfp4_bias[0] = out.nvfp4_bias[1] = 0;
    out.nvfp4_bias16[0] = out.nvfp4_bias16[1] = 0;
    out.half_sums[0] = out.half_sums[1] = 0;
    return finite;
  }
  *out.scale = amax / 127.0f;
  const float inverse = 127.0f / amax;
  for (int k = 0; k < kGroupCols; ++k) out.codes[k] = round_to_code(v[k] * inverse);
  std::int32_t* sums = out.half_sums;
  sums[0] = sums[1] = 0;
  for (int k = 0; k < kGroupCols; ++k) sums[k / 16] += out.codes[k];
  *out.q8_bias = -128 * (sums[0] + sums[1]);
  for (int half = 0; half < 2; ++half) {
    out.nvfp4_bias[half] = -12 * sums[half];
    out.nvfp4_bias16[half] = out.nvfp4_bias[half] & 0xffff;
  }
  for (int p = 0; p < 8; ++p) {
    for (int t = 0; t < 4; ++t) {
      out.slots[(p / 4) * 16 + t * 4 + p % 4] = out.codes[slot_column(t, p)];
    }
  }
  return true;
}

void HostOperand::reserve(int max_rows, int max_cols, bool codes, bool floats) {
  const auto rows = static_cast<std::size_t>(max_rows);
  const std::size_t groups = rows * static_cast<std::size_t>(n_groups(max_cols));
  const std::size_t columns = groups * kGroupCols;
  if (codes && codes_.size() < columns) codes_.resize(columns), slots_.resize(columns);
  if (codes && scales_.size() < groups) {
    scales_.resize(groups);
    q8_bias_.resize(groups);
    nvfp4_bias_.resize(2 * groups);
    nvfp4_bias16_.resize(2 * groups);
    half_sums_.resize(2 * groups);
  }
  if (floats && padded_.size() < columns) padded_.resize(columns);
  if (nonfinite_.size() < rows) nonfinite_.resize(rows);
}

void HostOperand::begin(int n_rows, int n_cols, bool integer) {
  view_ = {};
  view_.n_rows = n_rows;
  view_.n_cols = n_cols;
  view_.n_groups = n_groups(n_cols);
  view_.integer = integer;
  const auto rows = static_cast<std::size_t>(n_rows);
  const std::size_t groups = rows * static_cast<std::size_t>(view_.n_groups);
  require(rows <= nonfinite_.size() &&
              (integer ? groups <= scales_.size() : groups * kGroupCols <= padded_.size()),
          "an operand's rows fit what was reserved");
  view_.x = padded_.data();
  view_.x_stride = static_cast<std::int64_t>(padded_cols());
  view_.codes = codes_.data();
  view_.slots = slots_.data();
  view_.scales = scales_.data();
  view_.q8_bias = q8_bias_.data();
  view_.nvfp4_bias = nvfp4_bias_.data();
  view_.nvfp4_bias16 = nvfp4_bias16_.data();
  view_.half_sums = half_sums_.data();
  view_.nonfinite = nonfinite_.data();
  std::fill_n(nonfinite_.begin(), n_rows, std::uint8_t{0});
}

void HostOperand::borrow(Rows<const float> x) {
  view_.x = x.data;
  view_.x_stride = x.stride;
}

QuantizedGroup HostOperand::group(int row, int group) {
  const auto index = static_cast<std::size_t>(view_.group_index(row, group));
  return {&codes_[index * kGroupCols],
          &slots_[index * kGroupCols],
          &scales_[index],
          &q8_bias_[index],
          &nvfp4_bias_[2 * index],
          &nvfp4_bias16_[2 * index],
          &half_sums_[2 * index]};
}

std::unique_ptr<Operand> HostOps::operand(int max_rows, int max_cols) {
  return std::make_unique<HostOperand>(max_rows, max_cols);
}

void HostOps::quantize(Rows<const float> x, bool integer, Operand& operand) {
  auto& out = static_cast<HostOperand&>(operand);
  out.begin(x.n_rows, x.n_cols, integer);
  if (!out.pads()) out.borrow(x);
  const int n_groups_of_row = out.view().n_groups;
  const auto one_row = [&](int row) {
    if (out.pads()) {
      float* padded = out.padded_row(row);
      std::copy_n(x.row(row), x.n_cols, padded);
      std::fill(padded + x.n_cols, padded + n_groups_of_row * kGroupCols, 0.0f);
    }
    if (!integer) return;
    bool finite = true;
    for (int group = 0; group < n_groups_of_row; ++group) {
      const int first = group * kGroupCols;
      finite &= quantize_group(x.row(row) + first, std::min(kGroupCols, x.n_cols - first),
                               out.group(row, group));
    }
    out.set_nonfinite(row, !finite);
  };
  const auto rows = [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) one_row(row);
  };
  pool_.parallel_for(x.n_rows, std::max(1, 8192 / std::max(1, x.n_cols)), std::ref(rows));
}

}  // namespace bolt
