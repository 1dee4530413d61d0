// fp8's and GGUF's blocks as kernels take them: four codes of a row to a word of int8, as dp4a and
// the tensor cores multiply them, and the scales of a group. Where codes lie is core/pack/tiles.h,
// what they mean core/pack/block_values.h; the sums are arithmetic.md §4.
#pragma once

#include "core/pack/block_values.h"
#include "core/pack/tiles.h"
#include "cuda/device.cuh"

namespace bolt::cuda {

// What one output's row of a group holds for lane t's columns 4t..4t+3 and 16+4t..16+4t+3.
struct GroupWords {
  std::uint32_t codes[2];  // bytes: of each half. nibbles: both halves' in the first
  std::uint32_t pairs[2];  // of each half, all four lanes'
  std::uint32_t bits;      // of both halves, all four lanes'
};

// Words of int8 that stand for a word of codes: the sum over planes p of 16^p times a plane's
// product is D; of fp8, whose codes have 19 bits, 2 D.
template <Format F>
inline constexpr int kCodePlanes = F == Format::fp8 ? 4 : 1;

// The words hold some codes without their offset: D gets this many times the sum of the row's
// codes.
constexpr int code_offset(Format format) {
  switch (format) {
    case Format::q4_0:
      return -8;
    case Format::q5_0:
      return -16;
    case Format::q3_k:
      return -4;
    case Format::q6_k:
      return -32;
    default:
      return 0;
  }
}
// Whether sums of the row's codes are asked for.
constexpr bool needs_code_sums(Format format) {
  return code_offset(format) != 0 || has_offset(format);
}

// Four bytes of a table of int8 as a word.
template <std::size_t N>
constexpr std::uint32_t table_word(const std::int8_t (&table)[N], int word) {
  std::uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(table[4 * word + i])) << (8 * i);
  }
  return bytes;
}
template <Format F, int Word>
inline constexpr std::uint32_t kNibbleTable = table_word(F == Format::mxfp4 ? kTwiceE2m1
                                                                            : kIq4Values,
                                                         Word);
constexpr std::int8_t kIq2Values[8] = {8, 25, 43, 60, -8, -25, -43, -60};
template <int Word>
inline constexpr std::uint32_t kIq2Table = table_word(kIq2Values, Word);

// Eight nibbles, half 0's in the low ones, to the numbers that a table of 16 has for them.
template <Format F>
BOLT_DEV void nibble_table(std::uint32_t nibbles, std::uint32_t& half0, std::uint32_t& half1) {
  constexpr std::uint32_t kT0 = kNibbleTable<F, 0>, kT1 = kNibbleTable<F, 1>,
                          kT2 = kNibbleTable<F, 2>, kT3 = kNibbleTable<F, 3>;
  const std::uint32_t low = nibbles & 0x77777777u;
  // Selects from the lower or the upper eight of the table by a nibble's top bit.
  const std::uint32_t pick = 0x32103210u | ((nibbles & 0x88888888u) >> 1);
  const std::uint32_t first = prmt_raw(prmt_raw(kT0, kT1, low), prmt_raw(kT2, kT3, low), pick);
  const std::uint32_t second =
      prmt_raw(prmt_raw(kT0, kT1, low >> 16), prmt_raw(kT2, kT3, low >> 16), pick >> 16);
  half0 = __byte_perm(first, second, 0x6420);
  half1 = __byte_perm(first, second, 0x7531);
}

// Four bytes of 0 or -1: bit `bit` of each byte.
BOLT_DEV std::uint32_t byte_mask(std::uint32_t bytes, int bit) {
  return prmt_raw(bytes << (7 - bit), 0, 0xba98);
}

// Four e4m3 codes to planes: twice a magnitude times 2^9 is v * 16^(e div 4) with v at most 120.
BOLT_DEV void e4m3_planes(std::uint32_t bytes, std::uint32_t (&planes)[4]) {
  constexpr std::uint32_t kOnes = 0x01010101u;
  const std::uint32_t shift1 = byte_mask(bytes, 3), shift2 = byte_mask(bytes, 4);
  const std::uint32_t class1 = byte_mask(bytes, 5), class2 = byte_mask(bytes, 6);
  const std::uint32_t sign = byte_mask(bytes, 7);
  const std::uint32_t normal = shift1 | shift2 | class1 | class2;  // an exponent above 0
  const std::uint32_t mantissa = bytes & 0x07070707u;
  std::uint32_t v = (mantissa | (normal & 0x08080808u)) + (mantissa & ~normal);
  v += v & shift1;
  v += 3 * (v & shift2);
  // Negated where the sign says so: complement and 1, kept inside each byte.
  v = (((v ^ sign) & 0x7f7f7f7fu) + (sign & kOnes)) ^ (sign & 0x80808080u);
  planes[0] = v & ~(class1 | class2);
  planes[1] = v & class1 & ~class2;
  planes[2] = v & class2 & ~class1;
  planes[3] = v & class1 & class2;
}

// Half h's codes of lane t as they are stored, one a byte.
template <Format F>
BOLT_DEV std::uint32_t stored_codes(const GroupWords& w, int h, int t) {
  constexpr BlockForm kForm = block_form(F);
  constexpr int kPairsAt = kForm.nibbles ? 4 : 0, kBitsAt = kPairsAt + (kForm.pairs ? 2 : 0);
  if (kForm.bytes) return w.codes[h];
  std::uint32_t codes = 0;
  if (kForm.nibbles) codes = (w.codes[0] >> (4 * h)) & 0x0f0f0f0fu;
  if (kForm.pairs) codes |= ((w.pairs[h] >> (2 * t)) & 0x03030303u) << kPairsAt;
  if (kForm.bits) codes |= ((w.bits >> (4 * h + t)) & 0x01010101u) << kBitsAt;
  return codes;
}

template <Format F>
BOLT_DEV void code_words(const GroupWords& w, int t, std::uint32_t (&half0)[kCodePlanes<F>],
                         std::uint32_t (&half1)[kCodePlanes<F>]) {
  if constexpr (F == Format::fp8) {
    e4m3_planes(w.codes[0], half0);
    e4m3_planes(w.codes[1], half1);
  } else if constexpr (F == Format::iq4_nl || F == Format::iq4_xs || F == Format::mxfp4) {
    nibble_table<F>(w.codes[0], half0[0], half1[0]);
  } else if constexpr (F == Format::iq2_xxs) {
    const auto look_up = [](std::uint32_t codes) {
      return prmt_raw(kIq2Table<0>, kIq2Table<1>, __byte_perm(codes | codes >> 4, 0, 0x4420));
    };
    half0[0] = look_up(stored_codes<F>(w, 0, t));
    half1[0] = look_up(stored_codes<F>(w, 1, t));
  } else {
    half0[0] = stored_codes<F>(w, 0, t);
    half1[0] = stored_codes<F>(w, 1, t);
  }
}

// D of the planes' products.
template <Format F>
BOLT_DEV int joined(const int (&products)[kCodePlanes<F>]) {
  if constexpr (F == Format::fp8) {
    return (products[0] + (products[1] << 4) + (products[2] << 8) + (products[3] << 12)) >> 1;
  } else {
    return products[0];
  }
}

// Which of a row's bytes the two of a group are.
template <Format F>
BOLT_DEV int small_index(int group, int which) {
  if (has_half_scales(F)) return 2 * group + which;
  if (F == Format::q4_k || F == Format::q5_k) return group + 8 * which;
  return F == Format::mxfp4 ? 0 : group;
}

// From a row's binary16 numbers and the group's two bytes; block_values.h's group_scale().
template <Format F>
BOLT_DEV GroupScale scales_of(unsigned first, unsigned second, unsigned byte0, unsigned byte1) {
  GroupScale to;
  const auto half = [](unsigned bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  };
  const auto number = [](unsigned byte) { return __uint2float_rn(byte); };
  const auto integer = [](unsigned byte) {
    return __int2float_rn(static_cast<signed char>(static_cast<unsigned char>(byte)));
  };
  const float d = half(first), e = half(second);
  if constexpr (F == Format::q4_0 || F == Format::q5_0 || F == Format::iq4_nl) {
    to.s[0] = d;
  } else if constexpr (F == Format::q4_1 || F == Format::q5_1) {
    to.s[0] = d, to.m[0] = e;
  } else if constexpr (F == Format::mxfp4) {
    to.s[0] = __uint_as_float(byte0 < 2 ? 0x00200000u << byte0 : (byte0 - 1) << 23);
  } else if constexpr (F == Format::q4_k || F == Format::q5_k) {
    to.s[0] = mul_rn(d, number(byte0)), to.m[0] = -mul_rn(e, number(byte1));
  } else if constexpr (F == Format::q2_k) {
    to.s[0] = mul_rn(d, number(byte0 & 15)), to.m[0] = -mul_rn(e, number(byte0 >> 4));
    to.s[1] = mul_rn(d, number(byte1 & 15)), to.m[1] = -mul_rn(e, number(byte1 >> 4));
  } else if constexpr (F == Format::q3_k || F == Format::q6_k) {
    to.s[0] = mul_rn(d, integer(byte0)), to.s[1] = mul_rn(d, integer(byte1));
  } else if constexpr (F == Format::iq4_xs) {
    to.s[0] = mul_rn(d, integer(byte0));
  } else if constexpr (F == Format::iq2_xxs) {
    to.s[0] = mul_rn(mul_rn(d, number(byte0)), 0.125f);
  }
  if constexpr (!has_half_scales(F)) to.s[1] = to.s[0], to.m[1] = to.m[0];
  return to;
}

// A group in memory: its planes, and the scales of the block that it is in.
template <Format F>
struct GroupPlace {
  static constexpr BlockForm kForm = block_form(F);
  static constexpr int kGroups = kForm.n_cols / kGroupCols;
  const std::byte* planes;
  const std::byte* scales;
  int group;  // in its block

  // Group `index` of those that begin at `blocks`.
  BOLT_DEV GroupPlace(const std::byte* blocks, int index) {
    const std::byte* block = blocks + index / kGroups * kForm.block_bytes();
    group = index % kGroups;
    planes = block + group * kForm.group_bytes();
    scales = block + kForm.codes_bytes();
  }

  BOLT_DEV GroupWords words(int t, int row) const {
    GroupWords w{};
    const auto at = [](const std::byte* p) { return *reinterpret_cast<const std::uint32_t*>(p); };
    if (kForm.bytes || kForm.nibbles) w.codes[0] = at(planes + word_index(t, row) * 4);
    if (kForm.bytes) w.codes[1] = at(planes + 512 + word_index(t, row) * 4);
    for (int h = 0; kForm.pairs && h < 2; ++h) {
      w.pairs[h] = at(planes + kForm.pairs_at() + h * 128 + row * 4);
    }
    if (kForm.bits) w.bits = at(planes + kForm.bits_at() + row * 4);
    return w;
  }
  BOLT_DEV GroupScale scale(int row) const {
    unsigned halves[2] = {0, 0}, bytes[2] = {0, 0};
    const std::byte* small = scales + kForm.n_halves * 2 * kTileRows + row;
    for (int i = 0; i < kForm.n_halves; ++i) {
      halves[i] = *reinterpret_cast<const unsigned short*>(scales + i * 2 * kTileRows + row * 2);
    }
    for (int i = 0; kForm.n_small > 0 && i < 2; ++i) {
      bytes[i] = static_cast<unsigned>(small[small_index<F>(group, i) * kTileRows]);
    }
    return scales_of<F>(halves[0], halves[1], bytes[0], bytes[1]);
  }

  // The same of rows 4g..4g+3 in wide loads: lane 4g + t of the tensor cores holds them.
  BOLT_DEV void words(int t, int g, GroupWords (&w)[4]) const {
    const int chunk = t * 128 + ((g ^ (2 * t)) << 4);
    const auto spread = [&w](const std::byte* p, auto member) {
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      member(w[0]) = v.x, member(w[1]) = v.y, member(w[2]) = v.z, member(w[3]) = v.w;
    };
    if (kForm.bytes || kForm.nibbles) {
      spread(planes + chunk, [](GroupWords& x) -> std::uint32_t& { return x.codes[0]; });
    }
    if (kForm.bytes) {
      spread(planes + 512 + chunk, [](GroupWords& x) -> std::uint32_t& { return x.codes[1]; });
    }
    if (kForm.pairs) {
      const std::byte* pairs = planes + kForm.pairs_at() + 16 * g;
      spread(pairs, [](GroupWords& x) -> std::uint32_t& { return x.pairs[0]; });
      spread(pairs + 128, [](GroupWords& x) -> std::uint32_t& { return x.pairs[1]; });
    }
    if (kForm.bits) {
      spread(planes + kForm.bits_at() + 16 * g,
             [](GroupWords& x) -> std::uint32_t& { return x.bits; });
    }
  }
  BOLT_DEV void scale(int g, GroupScale (&to)[4]) const {
    uint2 halves[2] = {};
    std::uint32_t bytes[2] = {};
    for (int i = 0; i < kForm.n_halves; ++i) {
      halves[i] = reinterpret_cast<const uint2*>(scales + i * 2 * kTileRows)[g];
    }
    const std::byte* small = scales + kForm.n_halves * 2 * kTileRows;
    for (int i = 0; kForm.n_small > 0 && i < 2; ++i) {
      bytes[i] =
          reinterpret_cast<const std::uint32_t*>(small + small_index<F>(group, i) * kTileRows)[g];
    }
    const auto half = [](const uint2& four, int i) {
      return ((i < 2 ? four.x : four.y) >> (16 * (i & 1))) & 0xffffu;
    };
    for (int i = 0; i < 4; ++i) {
      to[i] = scales_of<F>(half(halves[0], i), half(halves[1], i), (bytes[0] >> (8 * i)) & 255u,
                           (bytes[1] >> (8 * i)) & 255u);
    }
  }
};

// How many sums a group has: one, or one a half.
template <Format F>
inline constexpr int kParts = has_half_scales(F) ? 2 : 1;

// acc with one group added. d: D, or D0 and D1; sum: S, or S0 and S1.
template <Format F>
BOLT_DEV float add_group(const int (&d)[kParts<F>], const int (&sum)[kParts<F>],
                         const GroupScale& scale, float sa, float acc) {
  const float d0 = __int2float_rn(d[0]);
  float product;
  if constexpr (F == Format::fp8) {
    product = d0;
  } else if constexpr (kParts<F> == 2) {
    product = fma_rn(__int2float_rn(d[1]), scale.s[1], mul_rn(d0, scale.s[0]));
    if constexpr (has_offset(F)) {
      const float u =
          fma_rn(__int2float_rn(sum[1]), scale.m[1], mul_rn(__int2float_rn(sum[0]), scale.m[0]));
      product = add_rn(product, u);
    }
  } else if constexpr (has_offset(F)) {
    product = fma_rn(d0, scale.s[0], mul_rn(scale.m[0], __int2float_rn(sum[0])));
  } else {
    product = mul_rn(d0, scale.s[0]);
  }
  return fma_rn(product, sa, acc);
}

}  // namespace bolt::cuda
