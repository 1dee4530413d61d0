// The contract's elementary functions: one fixed order of IEEE operations, so that every host and
// device gives the same bits for all 2^32 inputs (`bolt-exact/1`). Nothing else belongs here.
//
// Each step is an explicit fma, add, multiply, divide, compare or integer operation; a compiler
// that neither contracts nor reassociates (-ffp-contract=off, nvcc -fmad=false) cannot change a
// bit. The order of the steps below *is* the definition: a tidier formula is another contract. NaN
// results are 0x7fc00000. Errors are at most 2.5 ulp. Plain C++ and CUDA both compile this file.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define BOLT_EXACT __host__ __device__ __forceinline__
#else
#define BOLT_EXACT \
  inline __attribute__((always_inline))  // so that no copy built for one ISA is shared
#endif

namespace bolt {

inline constexpr std::uint32_t kExactNan = 0x7fc00000u;

// The IEEE operations by name, so that no compiler switch can replace them on the device.
BOLT_EXACT float exact_from_bits(std::uint32_t u) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(u);
#else
  return std::bit_cast<float>(u);
#endif
}
BOLT_EXACT std::uint32_t exact_to_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}
BOLT_EXACT float exact_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
BOLT_EXACT float exact_div(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
BOLT_EXACT float exact_sqrt(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

// exp: x = n ln 2 + r with |r| <= ln 2 / 2 (n by adding 1.5 * 2^23, ln 2 in two parts), a
// polynomial in r, then 2^n in two halves so that subnormals and infinity are reached by IEEE
// rounding alone.
BOLT_EXACT float exact_exp(float x) {
  float c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;  // a NaN stays one
  const float z = exact_fma(c, 1.44269504088896341f, 12582912.0f);
  const float n = z - 12582912.0f;
  const int i = static_cast<int>(exact_to_bits(z)) - 0x4B400000;
  float r = exact_fma(n, -0.693145752f, c);
  r = exact_fma(n, -1.42860677e-6f, r);
  float p = 1.9875691500e-4f;
  p = exact_fma(p, r, 1.3981999507e-3f);
  p = exact_fma(p, r, 8.3334519073e-3f);
  p = exact_fma(p, r, 4.1665795894e-2f);
  p = exact_fma(p, r, 1.6666665459e-1f);
  p = exact_fma(p, r, 5.0000001201e-1f);
  p = exact_fma(p, r * r, r) + 1.0f;
  const int a = i >> 1, b = i - a;
  float y = (p * exact_from_bits(static_cast<std::uint32_t>(a + 127) << 23)) *
            exact_from_bits(static_cast<std::uint32_t>(b + 127) << 23);
  y = x < -104.0f ? 0.0f : y;
  return x != x ? exact_from_bits(kExactNan) : y;
}

// log: x = 2^k m with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1, ln 2 in two parts.
// log(+-0) = -inf, log(inf) = inf, below zero NaN.
BOLT_EXACT float exact_log(float x) {
  std::uint32_t u = exact_to_bits(x);
  const bool subnormal = u < 0x00800000u;
  const float scaled = subnormal ? x * 16777216.0f : x;
  u = exact_to_bits(scaled);
  const int e = static_cast<int>((u - 0x3f3504f3u) & 0xff800000u);
  const float m = exact_from_bits(u - static_cast<std::uint32_t>(e));
  const float f = m - 1.0f;
  const float k = static_cast<float>(e >> 23) - (subnormal ? 24.0f : 0.0f);
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = exact_fma(p, f, -1.1514610310e-1f);
  p = exact_fma(p, f, 1.1676998740e-1f);
  p = exact_fma(p, f, -1.2420140846e-1f);
  p = exact_fma(p, f, 1.4249322787e-1f);
  p = exact_fma(p, f, -1.6668057665e-1f);
  p = exact_fma(p, f, 2.0000714765e-1f);
  p = exact_fma(p, f, -2.4999993993e-1f);
  p = exact_fma(p, f, 3.3333331174e-1f);
  float y = (p * f) * z;
  y = exact_fma(k, -2.12194440e-4f, y);
  y = exact_fma(z, -0.5f, y);
  y = exact_fma(k, 0.693359375f, f + y);
  y = x == 0.0f ? exact_from_bits(0xff800000u) : y;
  y = exact_to_bits(x) == 0x7f800000u ? x : y;
  return !(x >= 0.0f) ? exact_from_bits(kExactNan) : y;
}

BOLT_EXACT float exact_sigmoid(float x) {
  const float y = exact_div(1.0f, 1.0f + exact_exp(-x));
  return x != x ? exact_from_bits(kExactNan) : y;
}

// silu(x) = x * sigmoid(x)
BOLT_EXACT float exact_silu(float x) {
  const float y = x * exact_sigmoid(x);
  return y != y ? exact_from_bits(kExactNan) : y;
}

// softplus: max(x, 0) + log1p(exp(-|x|)), log1p with Kahan's correction.
BOLT_EXACT float exact_softplus(float x) {
  const float u = exact_exp(-(x < 0.0f ? -x : x)), w = 1.0f + u;
  const float l = exact_log(w) + exact_div(u - (w - 1.0f), w);
  const float y = (x > 0.0f ? x : 0.0f) + l;
  return x != x ? exact_from_bits(kExactNan) : y;
}

// 1 / sqrt(x), both rounded.
BOLT_EXACT float exact_rsqrt(float x) {
  const float y = exact_div(1.0f, exact_sqrt(x));
  return y != y ? exact_from_bits(kExactNan) : y;
}

// relu(x)^2, the family's activation. A NaN gives +0; rows that hold one are marked before.
BOLT_EXACT float exact_relu2(float x) {
  const float r = x > 0.0f ? x : 0.0f;
  return r * r;
}

}  // namespace bolt
