// Quantising weight rows.
#include "core/pack/quantise.h"

#include <algorithm>
#include <cmath>

#include "core/base/bits.h"

namespace bolt {

bool quantise_q8(const float* w, int n_cols, std::int8_t* codes, std::uint16_t* scales) {
  bool finite = true;
  for (int first = 0; first < n_cols; first += 32) {
    const int end = std::min(n_cols, first + 32);
    float amax = 0.0f;
    for (int k = first; k < end; ++k) amax = std::max(amax, std::fabs(w[k]));
    const std::uint16_t scale = float_to_f16(amax / 127.0f);
    scales[first / 32] = scale;
    const float s = f16_to_float(scale);
    finite = finite && is_finite(s);
    for (int k = first; k < end; ++k) {
      // Adding 1.5 * 2^23 rounds to an integer, ties to even; the clamp keeps it far below 2^22.
      const float q = s == 0.0f ? 0.0f : std::clamp(w[k] / s, -127.0f, 127.0f);
      codes[k] = static_cast<std::int8_t>((q + 12582912.0f) - 12582912.0f);
    }
  }
  return finite;
}

namespace {

// The e4m3 code of a number from 0 to 448, ties to even.
std::uint8_t to_e4m3(float x) {
  if (x >= 448.0f) return 0x7e;
  if (x < 0x1p-6f) return static_cast<std::uint8_t>((x + 16384.0f) * 512.0f - 8388608.0f);
  const std::uint32_t u = float_bits(x);
  const std::uint32_t rounded = u + 0x7ffffu + (u >> 20 & 1u);
  return static_cast<std::uint8_t>((rounded >> 20) - (120u << 3));
}

// The e2m1 code of a magnitude, ties to even: halfway to the next of 0 0.5 1 1.5 2 3 4 6.
std::uint8_t to_e2m1(float x) {
  constexpr float kHalfway[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  std::uint8_t code = 0;
  for (int i = 0; i < 7; ++i) code += x > kHalfway[i] || (x == kHalfway[i] && i % 2 == 1);
  return code;
}

}  // namespace

void quantise_nvfp4(const float* w, int n_cols, float g0, std::uint8_t* codes,
                    std::uint8_t* scales) {
  for (int first = 0; first < n_cols; first += 16) {
    const int end = std::min(n_cols, first + 16);
    float amax = 0.0f;
    for (int k = first; k < end; ++k) amax = std::max(amax, std::fabs(w[k]));
    const float wanted = g0 > 0.0f ? amax / 6.0f / g0 : 0.0f;
    const std::uint8_t scale = std::max<std::uint8_t>(1, to_e4m3(wanted));
    scales[first / 16] = scale;
    const float s = e4m3_to_float(scale) * g0;
    for (int k = first; k < end; ++k) {
      const std::uint8_t code = s > 0.0f ? to_e2m1(std::fabs(w[k]) / s) : 0;
      codes[k] = code != 0 && w[k] < 0.0f ? static_cast<std::uint8_t>(code | 8u) : code;
    }
  }
}

}  // namespace bolt
