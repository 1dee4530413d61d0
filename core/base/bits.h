// Exact conversions between float32 and the narrow storage types. No rounding but where named.
#pragma once

#include <bit>
#include <cstdint>

namespace bolt {

inline std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float bits_float(std::uint32_t u) { return std::bit_cast<float>(u); }
inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

inline float bf16_to_float(std::uint16_t h) {
  return bits_float(static_cast<std::uint32_t>(h) << 16);
}

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
inline std::uint16_t float_to_bf16(float x) {
  const std::uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Exact for every input, subnormals, infinities and NaN included.
inline float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bits_float(sign | float_bits(magnitude));
}

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
inline std::uint16_t float_to_f16(float x) {
  const std::uint32_t u = float_bits(x);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (a < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    const float scaled = bits_float(a) + 0.5f;  // 0.5 has an ulp of 2^-24, so the sum rounds for us
    return static_cast<std::uint16_t>(sign | (float_bits(scaled) - 0x3f000000u));
  }
  const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Float8 e4m3fn: bias 7, no infinities, 0x7f and 0xff are NaN.
inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return bits_float(0x7fc00000u);
  if (exponent != 0) return bits_float(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return bits_float(sign | float_bits(magnitude));
}

}  // namespace bolt
