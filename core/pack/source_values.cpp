// Rows as values: each format's formula element by element, from the block's own bytes.
#include <cstring>

#include "core/base/bits.h"
#include "core/pack/iq2_codebook.h"
#include "core/pack/source_blocks.h"

namespace bolt {
namespace {

// One block and an element of it.
struct Element {
  const std::byte* b;
  int i;

  unsigned u8(int at) const { return static_cast<unsigned>(b[at]) & 255u; }
  int s8(int at) const { return static_cast<std::int8_t>(b[at]); }
  float f16(int at) const {
    return f16_to_float(static_cast<std::uint16_t>(u8(at) | u8(at + 1) << 8));
  }
  std::uint32_t u32(int at) const {
    return u8(at) | u8(at + 1) << 8 | u8(at + 2) << 16 | u8(at + 3) << 24;
  }
  // Nibble of element i among 32, from byte `at` on.
  unsigned nibble(int at) const { return u8(at + i % 16) >> (i % 32 < 16 ? 0 : 4) & 15u; }
  unsigned pair(int at) const {
    return u8(at + 32 * (i / 128) + i % 32) >> (2 * (i / 32 % 4)) & 3u;
  }
};

float of(int x) { return static_cast<float>(x); }
float of(unsigned x) { return static_cast<float>(x); }

float e2m1(unsigned nibble) {
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return nibble & 8u ? -kMagnitudes[nibble & 7u] : kMagnitudes[nibble];
}
float iq4(unsigned nibble) {
  constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
  return of(kTable[nibble]);
}

float q3_k(const Element& e) {
  const int k = e.i / 16;
  const unsigned low = k < 8 ? e.u8(96 + k) & 15u : e.u8(96 + k - 8) >> 4;
  const unsigned high = e.u8(96 + 8 + k % 4) >> (2 * (k / 4)) & 3u;
  const int q = static_cast<int>(e.pair(32)) - (e.u8(e.i % 32) >> (e.i / 32) & 1u ? 0 : 4);
  return e.f16(108) * of(static_cast<int>(low | high << 4) - 32) * of(q);
}

float q45_k(const Element& e, bool five) {
  const int j = e.i / 32;
  unsigned sc = 0, mn = 0;
  if (j < 4) {
    sc = e.u8(4 + j) & 63u;
    mn = e.u8(4 + j + 4) & 63u;
  } else {
    sc = (e.u8(4 + j + 4) & 15u) | e.u8(4 + j - 4) >> 6 << 4;
    mn = e.u8(4 + j + 4) >> 4 | e.u8(4 + j) >> 6 << 4;
  }
  const unsigned byte = e.u8((five ? 48 : 16) + 32 * (j / 2) + e.i % 32);
  unsigned q = j % 2 == 0 ? byte & 15u : byte >> 4;
  if (five) q += 16u * (e.u8(16 + e.i % 32) >> j & 1u);
  return e.f16(0) * of(sc) * of(q) - e.f16(2) * of(mn);
}

float q6_k(const Element& e) {
  const int half = e.i / 128, l = e.i % 32, part = e.i % 128 / 32;
  const unsigned low = e.u8(64 * half + (part % 2) * 32 + l) >> (part < 2 ? 0 : 4) & 15u;
  const unsigned high = e.u8(128 + 32 * half + l) >> (2 * part) & 3u;
  return e.f16(208) * of(e.s8(192 + e.i / 16)) * of(static_cast<int>(low | high << 4) - 32);
}

float iq4_xs(const Element& e) {
  const int j = e.i / 32;
  const unsigned low = e.u8(4 + j / 2) >> (4 * (j % 2)) & 15u;
  const unsigned high = (e.u8(2) | e.u8(3) << 8) >> (2 * j) & 3u;
  return e.f16(0) * of(static_cast<int>(low | high << 4) - 32) * iq4(e.nibble(8 + 16 * j));
}

float iq2_xxs(const Element& e) {
  constexpr float kValues[4] = {8.0f, 25.0f, 43.0f, 0.0f};
  const int at = 2 + 8 * (e.i / 32), v = e.i % 32 / 8, j = e.i % 8;
  const std::uint32_t w = e.u32(at + 4), index = w >> (7 * v) & 127u;
  const bool minus = j < 7 ? (index >> j & 1u) != 0 : std::popcount(index) % 2 == 1;
  const float db = e.f16(0) * (0.5f + of(w >> 28)) * 0.25f;
  const float x = db * kValues[kIq2Codebook[e.u8(at + v)] >> (2 * j) & 3u];
  return minus ? -x : x;
}

float gguf_nvfp4(const Element& e) {
  const int s = e.i / 16, j = e.i % 16;
  const unsigned sc = e.u8(s), byte = e.u8(4 + 8 * s + j % 8);
  const unsigned exponent = sc >> 3 & 15u;
  float scale = exponent == 0 ? of(sc & 7u) * 0x1p-9f : 0.0f;
  if (exponent != 0) scale = bits_float((exponent + 120u) << 23 | (sc & 7u) << 20);
  if (sc == 0 || sc == 0x7f) scale = 0.0f;
  return scale * e2m1(j < 8 ? byte & 15u : byte >> 4);
}

float value_of(Format format, const Element& e) {
  switch (format) {
    case Format::q8:
      return e.f16(0) * of(e.s8(2 + e.i));
    case Format::q4_0:
      return e.f16(0) * of(static_cast<int>(e.nibble(2)) - 8);
    case Format::q4_1:
      return e.f16(0) * of(e.nibble(4)) + e.f16(2);
    case Format::q5_0:
      return e.f16(0) * of(static_cast<int>(e.nibble(6) + 16u * (e.u32(2) >> e.i & 1u)) - 16);
    case Format::q5_1:
      return e.f16(0) * of(e.nibble(8) + 16u * (e.u32(4) >> e.i & 1u)) + e.f16(2);
    case Format::q2_k: {
      const unsigned s = e.u8(e.i / 16);
      return e.f16(80) * of(s & 15u) * of(e.pair(16)) - e.f16(82) * of(s >> 4);
    }
    case Format::q3_k:
      return q3_k(e);
    case Format::q4_k:
    case Format::q5_k:
      return q45_k(e, format == Format::q5_k);
    case Format::q6_k:
      return q6_k(e);
    case Format::iq4_nl:
      return e.f16(0) * iq4(e.nibble(2));
    case Format::iq4_xs:
      return iq4_xs(e);
    case Format::iq2_xxs:
      return iq2_xxs(e);
    case Format::mxfp4: {
      const std::uint32_t x = e.u8(0);
      return bits_float(x < 2 ? 0x00200000u << x : (x - 1) << 23) * (2.0f * e2m1(e.nibble(1)));
    }
    default:
      return gguf_nvfp4(e);
  }
}

}  // namespace

void read_values(const SourceEncoding& encoding, const std::byte* row,
                 const std::byte* block_scales, float scale, int n_cols, float* values) {
  for (int k = 0; k < n_cols; ++k) {
    const Element e{row + k / encoding.n_cols * encoding.bytes, k % encoding.n_cols};
    float x = 0.0f;
    if (encoding.format == Format::f32) {
      x = bits_float(e.u32(0));
    } else if (encoding.format == Format::bf16) {
      x = bits_float((e.u8(0) | e.u8(1) << 8) << 16);
    } else if (encoding.format == Format::f16) {
      x = e.f16(0);
    } else if (encoding.dtype == "F8_E4M3") {
      x = e4m3_to_float(static_cast<std::uint8_t>(e.u8(0))) * scale;
    } else if (encoding.dtype == "U8") {
      const auto block = e4m3_to_float(static_cast<std::uint8_t>(block_scales[k / 16]));
      x = e2m1(e.u8(0) >> (4 * e.i) & 15u) * block * scale;
    } else {
      x = value_of(encoding.format, e);
      if (encoding.format == Format::nvfp4) x = x * scale;
    }
    values[k] = x;
  }
}

}  // namespace bolt
