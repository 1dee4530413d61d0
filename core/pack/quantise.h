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

// nvfp4, with the matrix's g0 = RN(amax / 2688): for each 16 columns (the last may be short),
// s = e4m3(RN(RN(amax / 6) / g0)), ties to even, at least 2^-9 and at most 448; code = nearest e2m1
// of RN(w / RN(s * g0)), ties to even, -0 as 0. g0 = 0 gives code 0 everywhere.
//   codes   a nibble a byte [n_cols];  scales  e4m3 [ceil(n_cols / 16)]
void quantise_nvfp4(const float* w, int n_cols, float g0, std::uint8_t* codes,
                    std::uint8_t* scales);
inline float nvfp4_g0(float amax) { return amax / 2688.0f; }

}  // namespace bolt
