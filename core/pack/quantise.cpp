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

}  // namespace bolt
