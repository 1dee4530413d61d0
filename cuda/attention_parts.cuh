// The float steps of integer attention (arithmetic.md §7) that its kernels share.
#pragma once

#include "cuda/device.cuh"

namespace bolt::cuda {

BOLT_DEV float power_of_two(int e) {
  return __uint_as_float(static_cast<std::uint32_t>(e + 127) << 23);
}
// 2^d for whole d <= 0; 0 below 2^-126.
BOLT_DEV float power_down(float d) {
  return d < -126.0f ? 0.0f : power_of_two(static_cast<int>(d));
}

// 2^(u - m) for u <= m, m whole (`exp2p` of §7): clamped at 2^-126 below.
BOLT_DEV float exp2_below(float u, float m) {
  const float low = add_rn(m, -126.0f);
  const float c = u < low ? low : u;
  const float z = add_rn(c, 12582912.0f), n = add_rn(z, -12582912.0f), f = add_rn(c, -n);
  float p = 1.326472384e-3f;
  p = fma_rn(p, f, 9.671512869e-3f);
  p = fma_rn(p, f, 5.550733754e-2f);
  p = fma_rn(p, f, 2.402224208e-1f);
  p = fma_rn(p, f, 6.931469776e-1f);
  p = fma_rn(p, f, 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(z) << 23) -
                         (static_cast<std::uint32_t>(static_cast<int>(m)) << 23));
}

}  // namespace bolt::cuda
