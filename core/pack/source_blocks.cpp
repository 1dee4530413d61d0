// Rows as codes and scales: bits are moved, never changed. Layouts of GGUF's blocks as
// llama.cpp's ggml-common.h publishes them.
#include "core/pack/source_blocks.h"

#include <cstring>

#include "core/base/bits.h"
#include "core/pack/iq2_codebook.h"

namespace bolt {
namespace {

struct GgufType {
  std::uint32_t number;
  SourceEncoding encoding;
};
constexpr GgufType kGgufTypes[] = {
    {0, {"F32", Format::f32, 1, 4}},
    {1, {"F16", Format::f16, 1, 2}},
    {30, {"BF16", Format::bf16, 1, 2}},
    {8, {"Q8_0", Format::q8, 32, 34}},
    {2, {"Q4_0", Format::q4_0, 32, 18}},
    {3, {"Q4_1", Format::q4_1, 32, 20}},
    {6, {"Q5_0", Format::q5_0, 32, 22}},
    {7, {"Q5_1", Format::q5_1, 32, 24}},
    {10, {"Q2_K", Format::q2_k, 256, 84}},
    {11, {"Q3_K", Format::q3_k, 256, 110}},
    {12, {"Q4_K", Format::q4_k, 256, 144}},
    {13, {"Q5_K", Format::q5_k, 256, 176}},
    {14, {"Q6_K", Format::q6_k, 256, 210}},
    {20, {"IQ4_NL", Format::iq4_nl, 32, 18}},
    {23, {"IQ4_XS", Format::iq4_xs, 256, 136}},
    {16, {"IQ2_XXS", Format::iq2_xxs, 256, 66}},
    {39, {"MXFP4", Format::mxfp4, 32, 17}},
    {40, {"NVFP4", Format::nvfp4, 64, 36}},
};
// ModelOpt's own: F8_E4M3 codes, and two e2m1 codes a byte.
constexpr SourceEncoding kModelOptTypes[] = {{"F8_E4M3", Format::fp8, 1, 1},
                                             {"U8", Format::nvfp4, 2, 1}};
// What else a GGUF may hold, so that a refusal can name it.
constexpr std::pair<std::uint32_t, const char*> kOtherTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
    {22, "IQ2_S"}, {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},   {28, "F64"},
    {29, "IQ1_M"}, {34, "TQ1_0"}, {35, "TQ2_0"},  {41, "Q1_0"},
};

std::uint8_t byte_at(const std::byte* at, int i) { return static_cast<std::uint8_t>(at[i]); }
std::uint16_t half_at(const std::byte* at) {
  std::uint16_t h;
  std::memcpy(&h, at, sizeof h);
  return h;
}
std::uint32_t word_at(const std::byte* at) {
  std::uint32_t w;
  std::memcpy(&w, at, sizeof w);
  return w;
}
bool finite_half(const std::byte* at) { return (half_at(at) & 0x7c00u) != 0x7c00u; }

// 16 bytes of nibbles: the low ones are elements 0 to 15, the high ones 16 to 31.
void split_nibbles(const std::byte* qs, std::byte* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = qs[i] & std::byte{15};
    codes[16 + i] = qs[i] >> 4;
  }
}
void add_fifth_bits(std::uint32_t bits, std::byte* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<std::byte>((bits >> i & 1u) << 4);
}
// Fields of two bits: element i is 2 bits of qs[32 (i / 128) + i % 32] at shift 2 (i / 32 % 4).
void split_pairs(const std::byte* qs, std::byte* codes) {
  for (int i = 0; i < 256; ++i) {
    codes[i] = (qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & std::byte{3};
  }
}
// The 6-bit scales and minima of Q4_K and Q5_K, out of 12 bytes.
void split_six_bits(const std::byte* s, std::byte* sc, std::byte* mn) {
  for (int j = 0; j < 4; ++j) {
    sc[j] = s[j] & std::byte{63};
    mn[j] = s[j + 4] & std::byte{63};
    sc[j + 4] = (s[j + 8] & std::byte{15}) | (s[j] >> 6) << 4;
    mn[j + 4] = (s[j + 8] >> 4) | (s[j + 4] >> 6) << 4;
  }
}

// One block to codes and its record of scales. False if a number of the scales is not finite.
bool split_block(Format format, const std::byte* b, std::byte* codes, std::byte* scales) {
  switch (format) {
    case Format::q8:
      std::memcpy(scales, b, 2);
      std::memcpy(codes, b + 2, 32);
      return finite_half(b);
    case Format::q4_0:
    case Format::iq4_nl:
      std::memcpy(scales, b, 2);
      split_nibbles(b + 2, codes);
      return finite_half(b);
    case Format::q4_1:
      std::memcpy(scales, b, 4);
      split_nibbles(b + 4, codes);
      return finite_half(b) && finite_half(b + 2);
    case Format::q5_0:
      std::memcpy(scales, b, 2);
      split_nibbles(b + 6, codes);
      add_fifth_bits(word_at(b + 2), codes);
      return finite_half(b);
    case Format::q5_1:
      std::memcpy(scales, b, 4);
      split_nibbles(b + 8, codes);
      add_fifth_bits(word_at(b + 4), codes);
      return finite_half(b) && finite_half(b + 2);
    case Format::mxfp4:
      scales[0] = b[0];
      split_nibbles(b + 1, codes);
      return true;
    case Format::q2_k:  // 16 scales, 64 codes, d, dmin
      std::memcpy(scales, b + 80, 4);
      std::memcpy(scales + 4, b, 16);
      split_pairs(b + 16, codes);
      return finite_half(b + 80) && finite_half(b + 82);
    case Format::q3_k:  // 32 high bits, 64 codes, 12 scales, d
      std::memcpy(scales, b + 108, 2);
      for (int k = 0; k < 16; ++k) {
        const std::byte* s = b + 96;
        const std::byte low = k < 8 ? s[k] & std::byte{15} : s[k - 8] >> 4;
        const std::byte high = (s[8 + k % 4] >> (2 * (k / 4))) & std::byte{3};
        scales[2 + k] = static_cast<std::byte>(static_cast<int>(low | high << 4) - 32);
      }
      split_pairs(b + 32, codes);
      for (int i = 0; i < 256; ++i) {
        codes[i] |= ((b[i % 32] >> (i / 32)) & std::byte{1}) << 2;
      }
      return finite_half(b + 108);
    case Format::q4_k:
    case Format::q5_k: {  // d, dmin, 12 scales, q5_k: 32 high bits, 128 codes
      std::memcpy(scales, b, 4);
      split_six_bits(b + 4, scales + 4, scales + 12);
      const std::byte* qs = b + (format == Format::q5_k ? 48 : 16);
      for (int i = 0; i < 256; ++i) {
        const std::byte q = qs[32 * (i / 64) + i % 32];
        codes[i] = i / 32 % 2 == 0 ? q & std::byte{15} : q >> 4;
        if (format == Format::q5_k) codes[i] |= ((b[16 + i % 32] >> (i / 32)) & std::byte{1}) << 4;
      }
      return finite_half(b) && finite_half(b + 2);
    }
    case Format::q6_k:  // 128 low, 64 high, 16 scales, d
      std::memcpy(scales, b + 208, 2);
      std::memcpy(scales + 2, b + 192, 16);
      for (int i = 0; i < 256; ++i) {
        const int half = i / 128, j = i % 128, l = j % 32;
        const std::byte low = b[64 * half + j % 64];
        const std::byte high = b[128 + 32 * half + l] >> (2 * (j / 32));
        codes[i] = (j < 64 ? low & std::byte{15} : low >> 4) | (high & std::byte{3}) << 4;
      }
      return finite_half(b + 208);
    case Format::iq4_xs: {  // d, 2 high bits of the scales, their 4 low ones, 128 codes
      std::memcpy(scales, b, 2);
      const unsigned sh = half_at(b + 2);
      for (int j = 0; j < 8; ++j) {
        const unsigned low = byte_at(b, 4 + j / 2) >> (4 * (j % 2)) & 15u;
        scales[2 + j] =
            static_cast<std::byte>(static_cast<int>(low | (sh >> (2 * j) & 3u) << 4) - 32);
        split_nibbles(b + 8 + 16 * j, codes + 32 * j);
      }
      return finite_half(b);
    }
    case Format::iq2_xxs:  // d, 8 groups: 4 indices, signs and scale
      std::memcpy(scales, b, 2);
      for (int g = 0; g < 8; ++g) {
        const std::byte* at = b + 2 + 8 * g;
        const std::uint32_t w = word_at(at + 4);
        scales[2 + g] = static_cast<std::byte>(2 * (w >> 28) + 1);
        for (int v = 0; v < 4; ++v) {
          const std::uint32_t grid = kIq2Codebook[byte_at(at, v)];
          const std::uint32_t signs = iq2_signs(w >> (7 * v) & 127u);
          for (int j = 0; j < 8; ++j) {
            codes[32 * g + 8 * v + j] =
                static_cast<std::byte>((grid >> (2 * j) & 3u) | (signs >> j & 1u) << 2);
          }
        }
      }
      return finite_half(b);
    case Format::nvfp4:  // GGUF's: 4 scales, 32 codes; element j pairs with j + 8
      for (int s = 0; s < 4; ++s) {
        // Only 7 bits count; 0x7f is zero, where the eighth bit does not save it.
        scales[s] = b[s] == std::byte{0x7f} ? std::byte{0} : b[s] & std::byte{0x7f};
        for (int j = 0; j < 8; ++j) {
          codes[16 * s + j] = b[4 + 8 * s + j] & std::byte{15};
          codes[16 * s + 8 + j] = b[4 + 8 * s + j] >> 4;
        }
      }
      return true;
    default:
      return false;
  }
}

// -0 is stored as 0.
void drop_minus_zero(std::byte* codes, int n) {
  for (int i = 0; i < n; ++i) codes[i] = codes[i] == std::byte{8} ? std::byte{0} : codes[i];
}

}  // namespace

const SourceEncoding* source_encoding(std::string_view dtype) {
  for (const GgufType& type : kGgufTypes) {
    if (type.encoding.dtype == dtype) return &type.encoding;
  }
  for (const SourceEncoding& type : kModelOptTypes) {
    if (type.dtype == dtype) return &type;
  }
  return nullptr;
}
const SourceEncoding* gguf_encoding(std::uint32_t number) {
  for (const GgufType& type : kGgufTypes) {
    if (type.number == number) return &type.encoding;
  }
  return nullptr;
}
const char* gguf_type_name(std::uint32_t number) {
  if (const SourceEncoding* encoding = gguf_encoding(number)) return encoding->dtype.data();
  for (const auto& [other, name] : kOtherTypes) {
    if (other == number) return name;
  }
  return "?";
}

int read_codes(const SourceEncoding& encoding, const std::byte* row, const std::byte* block_scales,
               int n_cols, std::byte* codes, std::byte* scales) {
  if (encoding.dtype == "F8_E4M3") {
    std::memcpy(codes, row, static_cast<std::size_t>(n_cols));
    for (int k = 0; k < n_cols; ++k) {
      if ((codes[k] & std::byte{0x7f}) == std::byte{0x7f}) return k;
    }
    return -1;
  }
  if (encoding.dtype == "U8") {
    for (int k = 0; k < n_cols; ++k) codes[k] = (row[k / 2] >> (4 * (k % 2))) & std::byte{15};
    drop_minus_zero(codes, n_cols);
    for (int s = 0; s * 16 < n_cols; ++s) {
      scales[s] = block_scales[s];
      if (scales[s] >= std::byte{0x7f}) return s * 16;  // NaN or a sign
    }
    return -1;
  }
  const int record = scale_bytes(encoding.format) * (encoding.n_cols / scale_cols(encoding.format));
  for (int b = 0; b * encoding.n_cols < n_cols; ++b) {
    if (!split_block(encoding.format, row + b * encoding.bytes, codes + b * encoding.n_cols,
                     scales + b * record))
      return b * encoding.n_cols;
  }
  if (encoding.format == Format::nvfp4) drop_minus_zero(codes, n_cols);
  return -1;
}

}  // namespace bolt
