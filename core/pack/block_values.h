// What the codes and scales of fp8 and of GGUF's blocks mean. The definition of the sums reads them
// through here, and so does whoever needs a weight's value; where they lie is tiles.h.
//
// A row's scales in a block, as rows hold them (little-endian f16 numbers, then bytes):
//   q4_0 q5_0 iq4_nl  d                    value = d c
//   q4_1 q5_1         d, m                 value = d c + m
//   mxfp4             e                    value = 2^(e-128) c, c the doubled e2m1
//   q4_k q5_k         d, dmin, sc[8], mn[8]   group j: value = (d sc_j) c - dmin mn_j
//   q2_k              d, dmin, b[16]       half j: value = (d (b_j & 15)) c - dmin (b_j >> 4)
//   q3_k q6_k         d, s8 sc[16]         half j: value = (d sc_j) c (q3_k: sc less its 32)
//   iq4_xs            d, s8 ls[8]          group j: value = (d ls_j) c (ls less its 32)
//   iq2_xxs           d, k[8]              group j: value = (d k_j / 8) c, k = 2 (w >> 28) + 1
//   fp8               none                 value = e4m3 times the matrix's scale
#pragma once

#include <cstdint>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/pack/tiles.h"

namespace bolt {

// Not inline: kernels of several instruction sets read them, and those share nothing by the linker.
constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Whether a format's values have an offset beside their scale.
constexpr bool has_offset(Format format) {
  return format == Format::q4_1 || format == Format::q5_1 || format == Format::q2_k ||
         format == Format::q4_k || format == Format::q5_k;
}
// Whether the two halves of a group have scales of their own.
constexpr bool has_half_scales(Format format) {
  return format == Format::q2_k || format == Format::q3_k || format == Format::q6_k;
}

// The integer that a raw code stands for; fp8: e4m3 * 2^9.
BOLT_EXACT std::int32_t block_code(Format format, unsigned raw) {
  const auto code = static_cast<std::int32_t>(raw);
  switch (format) {
    case Format::q4_0:
      return code - 8;
    case Format::q5_0:
      return code - 16;
    case Format::q3_k:
      return code - 4;
    case Format::q6_k:
      return code - 32;
    case Format::iq4_nl:
    case Format::iq4_xs:
      return kIq4Values[raw & 15u];
    case Format::mxfp4:
      return kTwiceE2m1[raw & 15u];
    case Format::iq2_xxs: {
      const std::int32_t magnitude =
          8 + 17 * static_cast<std::int32_t>(raw & 3u) + (raw & 2u ? 1 : 0);
      return raw & 4u ? -magnitude : magnitude;
    }
    case Format::fp8: {
      const unsigned exponent = (raw >> 3) & 15u, mantissa = raw & 7u;
      const auto magnitude =
          static_cast<std::int32_t>(exponent == 0 ? mantissa : (8u + mantissa) << (exponent - 1u));
      return raw & 128u ? -magnitude : magnitude;
    }
    default:
      return code;  // q4_1, q5_1, q2_k, q4_k, q5_k: unsigned
  }
}

// Scale and offset of the two halves of group `group` of a block: value = s c + m, s and m exact.
struct GroupScale {
  float s[2] = {1.0f, 1.0f}, m[2] = {0.0f, 0.0f};
};

#ifndef __CUDACC__  // the device's twin of what follows is cuda/blocks.cuh
// From a row's f16 numbers and a function that gives its bytes.
template <class Small>
BOLT_EXACT GroupScale group_scale(Format format, std::uint16_t first, std::uint16_t second,
                                  int group, Small small) {
  GroupScale to;
  const auto both = [&](float s, float m) {
    to.s[0] = to.s[1] = s;
    to.m[0] = to.m[1] = m;
  };
  const auto as_signed = [](unsigned byte) {
    return static_cast<float>(static_cast<std::int8_t>(byte));
  };
  const float d = f16_to_float(first), e = f16_to_float(second);
  switch (format) {
    case Format::q4_0:
    case Format::q5_0:
    case Format::iq4_nl:
      both(d, 0.0f);
      break;
    case Format::q4_1:
    case Format::q5_1:
      both(d, e);
      break;
    case Format::mxfp4: {
      const std::uint32_t x = small(0);
      both(exact_from_bits(x < 2 ? 0x00200000u << x : (x - 1) << 23), 0.0f);
      break;
    }
    case Format::q4_k:
    case Format::q5_k:
      both(d * static_cast<float>(small(group)), -(e * static_cast<float>(small(8 + group))));
      break;
    case Format::q2_k:
      for (int h = 0; h < 2; ++h) {
        const unsigned byte = small(2 * group + h);
        to.s[h] = d * static_cast<float>(byte & 15u);
        to.m[h] = -(e * static_cast<float>(byte >> 4));
      }
      break;
    case Format::q3_k:
    case Format::q6_k:
      for (int h = 0; h < 2; ++h) to.s[h] = d * as_signed(small(2 * group + h));
      break;
    case Format::iq4_xs:
      both(d * as_signed(small(group)), 0.0f);
      break;
    case Format::iq2_xxs:
      both(d * static_cast<float>(small(group)) * 0.125f, 0.0f);
      break;
    default:
      break;
  }
  return to;
}

// The same for row `row` of a packed block.
BOLT_EXACT GroupScale packed_group_scale(Format format, const std::byte* block, int row,
                                         int group) {
  const BlockForm form = block_form(format);
  const std::byte* scales = block + form.codes_bytes();
  std::uint16_t half[2] = {0, 0};
  for (int i = 0; i < form.n_halves; ++i) __builtin_memcpy(&half[i], scales + i * 64 + row * 2, 2);
  const std::byte* bytes = scales + form.n_halves * 64 + row;
  return group_scale(format, half[0], half[1], group,
                     [&](int i) { return static_cast<unsigned>(bytes[i * kTileRows]); });
}
#endif

}  // namespace bolt
