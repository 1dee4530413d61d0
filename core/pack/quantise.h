// The contract's quantisers of weights, for `convert --quant`. Deterministic: equal rows give equal
// codes.
#pragma once

#include <cstdint>

namespace bolt {

// q8: for each 32 columns (the last may be short), amax = max |w|, s = f16(RN(amax / 127)),
// code = clamp(rint(RN(w / s)), +-127), ties to even; s = 0 gives code 0 everywhere.
//   w       f32 [n_cols], finite
//   codes   s8 [n_cols];  scales  f16 [ceil(n_cols / 32)]
// Answers whether every scale is finite: false where |w| passes 127 * 65504.
bool quantise_q8(const float* w, int n_cols, std::int8_t* codes, std::uint16_t* scales);

}  // namespace bolt
