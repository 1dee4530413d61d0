// Quantised rows on the device (arithmetic.md §3): layout, and the kernel that makes them.
#pragma once

#include <cstdint>

#include "core/pack/tiles.h"
#include "cuda/device.cuh"

namespace bolt::cuda {

// Rows of int8 codes, 32 bytes a group, twice: in slot order (lane t's slots 0..7: q8 and the
// tensor cores' B fragments), and with each lane's slots as {0,1,4,5 | 2,3,6,7} (the halves of a
// group, for nvfp4). scale is sa, [row][n_groups].
struct QuantView {
  const float* x = nullptr;  // the rows themselves, for the float formats
  std::int64_t x_stride = 0;
  const std::int8_t* slots = nullptr;
  const std::int8_t* halves = nullptr;
  const float* scale = nullptr;
  int n_groups = 0;

  BOLT_DEV const uint4* slot_words(int row, int group) const {
    return reinterpret_cast<const uint4*>(slots +
                                          (static_cast<std::int64_t>(row) * n_groups + group) * 32);
  }
  BOLT_DEV const uint4* half_words(int row, int group) const {
    return reinterpret_cast<const uint4*>(halves +
                                          (static_cast<std::int64_t>(row) * n_groups + group) * 32);
  }
  BOLT_DEV float row_scale(int row, int group) const {
    return scale[static_cast<std::int64_t>(row) * n_groups + group];
  }
};

// One warp, one group of one row; lane = column. A group with a value that is not finite gets codes
// 0 and a NaN scale: its sums are NaN, so the linear marks the row.
BOLT_DEV void quantize_group(float value, int lane, std::int8_t* slots, std::int8_t* halves,
                             float* scale) {
  const bool bad = __any_sync(kFullWarp, !finite(value));
  // Magnitudes are ordered as their bits are.
  const float amax =
      __uint_as_float(__reduce_max_sync(kFullWarp, bad ? 0u : __float_as_uint(fabsf(value))));
  const bool zero = bad || amax < 0x1p-120f;
  const float inverse = zero ? 0.0f : __fdiv_rn(127.0f, amax);
  const int q = zero ? 0 : __float2int_rn(mul_rn(value, inverse));
  const int t = column_lane(lane), p = column_slot(lane);
  slots[t * 8 + p] = static_cast<std::int8_t>(q);
  halves[t * 8 + ((p >> 1) & 1) * 4 + (p & 1) + 2 * (p >> 2)] = static_cast<std::int8_t>(q);
  if (lane == 0) *scale = bad ? __uint_as_float(kExactNan) : zero ? 0.0f : __fdiv_rn(amax, 127.0f);
}

// Where a kernel leaves its outputs quantised.
struct QuantOut {
  std::int8_t* slots = nullptr;  // null: nowhere
  std::int8_t* halves = nullptr;
  float* scale = nullptr;
  int n_groups = 0;

  BOLT_DEV void put(float value, int row, int group, int lane) const {
    const std::int64_t place = static_cast<std::int64_t>(row) * n_groups + group;
    quantize_group(value, lane, slots + place * 32, halves + place * 32, scale + place);
  }
};

}  // namespace bolt::cuda
