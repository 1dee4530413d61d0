// Packing tiles: one loop a format that fills a block word by word, and element addresses.
#include "core/pack/tile_codec.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/pack/block_values.h"

namespace bolt {
namespace {

constexpr std::pair<std::string_view, Format> kNames[] = {
    {"f32", Format::f32},       {"bf16", Format::bf16},     {"f16", Format::f16},
    {"q8", Format::q8},         {"nvfp4", Format::nvfp4},   {"fp8", Format::fp8},
    {"q4_0", Format::q4_0},     {"q4_1", Format::q4_1},     {"q5_0", Format::q5_0},
    {"q5_1", Format::q5_1},     {"q2_k", Format::q2_k},     {"q3_k", Format::q3_k},
    {"q4_k", Format::q4_k},     {"q5_k", Format::q5_k},     {"q6_k", Format::q6_k},
    {"iq4_nl", Format::iq4_nl}, {"iq4_xs", Format::iq4_xs}, {"iq2_xxs", Format::iq2_xxs},
    {"mxfp4", Format::mxfp4},
};

constexpr int kQ8Scales = 1024, kNvfp4Scales = 512;  // byte offsets inside a block

template <class T>
T load(const std::byte* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class T>
void store(std::byte* to, T x) {
  std::memcpy(to, &x, sizeof x);
}

int nvfp4_scale_index(int row, int half) { return (row >> 2) * 8 + half * 4 + (row & 3); }

// One row of a group: 32 codes, zero past the matrix.
void pack_group_row(Format format, const std::byte* codes, int row, std::byte* block) {
  switch (format) {
    case Format::bf16:
    case Format::f16:
      // Word w holds columns 2w, 2w + 1 of the group: plane w / 4, lane w % 4.
      for (int w = 0; w < 16; ++w) {
        store(block + (w >> 2) * 512 + word_index(w & 3, row) * 4,
              load<std::uint32_t>(codes + 4 * w));
      }
      break;
    case Format::f32:
      for (int w = 0; w < 16; ++w) {
        store(block + (w >> 2) * 1024 + word_index(w & 3, row) * 8,
              load<std::uint64_t>(codes + 8 * w));
      }
      break;
    case Format::q8:
      // Slots 4h..4h+3 of lane t are columns 4t + 2h + {0, 1, 16, 17}.
      for (int h = 0; h < 2; ++h) {
        for (int t = 0; t < 4; ++t) {
          const std::byte* pair = codes + 4 * t + 2 * h;
          const auto word = static_cast<std::uint32_t>(load<std::uint16_t>(pair)) |
                            static_cast<std::uint32_t>(load<std::uint16_t>(pair + 16)) << 16;
          store(block + h * 512 + word_index(t, row) * 4, word);
        }
      }
      break;
    case Format::nvfp4:
      for (int t = 0; t < 4; ++t) {
        std::uint32_t word = 0;
        for (int p = 0; p < 8; ++p) {
          word |= (static_cast<std::uint32_t>(codes[slot_column(t, p)]) & 15u) << (4 * p);
        }
        store(block + word_index(t, row) * 4, word);
      }
      break;
    default:
      require(false, "a format packed word by word");
  }
}

// A group of four rows of bf16 or f16, 4 quad to 4 quad + 3 of the tile: a chunk of 16 bytes holds
// one word of each, so this is four transpositions of four words by four.
void pack_quad(const std::byte* const (&rows)[4], int quad, std::byte* block) {
  using Words = std::uint32_t __attribute__((vector_size(16)));
  for (int plane = 0; plane < 4; ++plane) {
    Words r[4];
    for (int i = 0; i < 4; ++i) std::memcpy(&r[i], rows[i] + 16 * plane, sizeof r[i]);
    const Words a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
                b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7),
                c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5),
                d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    const Words lanes[4] = {
        __builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
        __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
    for (int t = 0; t < 4; ++t) {
      std::memcpy(block + plane * 512 + word_index(t, 4 * quad) * 4, &lanes[t], sizeof lanes[t]);
    }
  }
}

// One row of a group of a BlockForm: its planes, word by word. The block was zero.
void pack_planes(const BlockForm& form, const std::byte* codes, int row, std::byte* group) {
  std::uint32_t bits = 0;
  for (int h = 0; h < 2; ++h) {
    std::uint32_t pairs = 0;
    for (int t = 0; t < 4; ++t) {
      std::uint32_t word = load<std::uint32_t>(codes + 16 * h + 4 * t);
      std::byte* at = group + word_index(t, row) * 4;
      if (form.bytes) {
        store(at + h * 512, word);
        continue;
      }
      if (form.nibbles) {
        store(at, load<std::uint32_t>(at) | (word & 0x0f0f0f0fu) << (4 * h));
        word = (word >> 4) & 0x0f0f0f0fu;
      }
      if (form.pairs) {
        pairs |= (word & 0x03030303u) << (2 * t);
        word = (word >> 2) & 0x3f3f3f3fu;
      }
      if (form.bits) bits |= (word & 0x01010101u) << (4 * h + t);
    }
    if (form.pairs) store(group + form.pairs_at() + h * 128 + row * 4, pairs);
  }
  if (form.bits) store(group + form.bits_at() + row * 4, bits);
}

// One row of a tile in a BlockForm: its groups' planes and its blocks' scales.
void pack_block_row(const BlockForm& form, const std::byte* codes, const std::byte* scales,
                    int n_cols, int row, std::byte* to) {
  for (int g = 0; g < n_groups(n_cols); ++g) {
    std::byte padded[kGroupCols] = {};
    std::memcpy(padded, codes + g * kGroupCols,
                static_cast<std::size_t>(std::min(kGroupCols, n_cols - g * kGroupCols)));
    const int per_block = form.n_cols / kGroupCols;
    pack_planes(form, padded, row,
                to + g / per_block * form.block_bytes() + g % per_block * form.group_bytes());
  }
  for (int b = 0; b * form.n_cols < n_cols && form.scale_bytes() > 0; ++b) {
    const std::byte* from = scales + b * form.scale_bytes();
    std::byte* at = to + b * form.block_bytes() + form.codes_bytes();
    for (int i = 0; i < form.n_halves; ++i) {
      std::memcpy(at + i * 2 * kTileRows + row * 2, from + 2 * i, 2);
    }
    at += form.n_halves * 2 * kTileRows;
    from += 2 * form.n_halves;
    for (int i = 0; i < form.n_small; ++i) at[i * kTileRows + row] = from[i];
  }
}

}  // namespace

const char* format_name(Format format) {
  for (const auto& [name, f] : kNames) {
    if (f == format) return name.data();
  }
  return "?";
}

bool format_named(std::string_view name, Format& format) {
  for (const auto& [known, f] : kNames) {
    if (known != name) continue;
    format = f;
    return true;
  }
  return false;
}

std::uint64_t weight_bytes(const Weight& weight) {
  const auto matrices = static_cast<std::uint64_t>(weight.n_matrices);
  if (weight.layout == Layout::tiles) {
    return matrices * packed_matrix_bytes(weight.format, weight.n_rows, weight.n_cols);
  }
  return matrices * static_cast<std::uint64_t>(weight.n_rows) *
         static_cast<std::uint64_t>(weight.n_cols) *
         static_cast<std::uint64_t>(code_bytes(weight.format));
}

int RowCodes::n_scales() const {
  const int cols = scale_cols(format);
  return cols == 0 ? 0 : (n_cols + cols - 1) / cols;
}

void RowCodes::resize(Format f, int rows, int cols) {
  format = f;
  n_rows = rows;
  n_cols = cols;
  const auto n = static_cast<std::size_t>(rows);
  codes.resize(n * static_cast<std::size_t>(cols) * static_cast<std::size_t>(code_bytes(f)));
  scales.resize(n * static_cast<std::size_t>(n_scales()) *
                static_cast<std::size_t>(scale_bytes(f)));
}

void pack_tile(const RowCodes& rows, int first_row, std::byte* to) {
  const Format format = rows.format;
  const int groups = n_groups(rows.n_cols), block = block_bytes(format), code = code_bytes(format);
  const BlockForm form = block_form(format);
  const int n = std::min(kTileRows, rows.n_rows - first_row);
  const bool halves = format == Format::bf16 || format == Format::f16;
  if (!halves || n < kTileRows || rows.n_cols % kGroupCols != 0) {
    std::memset(to, 0, tile_bytes(format, rows.n_cols));
  }
  const std::size_t row_bytes =
      static_cast<std::size_t>(rows.n_cols) * static_cast<std::size_t>(code);
  const int n_scales = rows.n_scales();
  const auto codes_of = [&](int r) {
    return rows.codes.data() + static_cast<std::size_t>(first_row + r) * row_bytes;
  };
  const auto scales_of = [&](int r) {
    return rows.scales.data() + static_cast<std::size_t>(first_row + r) *
                                    static_cast<std::size_t>(n_scales) *
                                    static_cast<std::size_t>(scale_bytes(format));
  };
  if (form.n_cols > 0) {
    for (int r = 0; r < n; ++r) pack_block_row(form, codes_of(r), scales_of(r), rows.n_cols, r, to);
    return;
  }
  // A block at a time: it stays in the first cache.
  for (int g = 0; g < groups; ++g) {
    std::byte* at = to + static_cast<std::size_t>(g) * static_cast<std::size_t>(block);
    const int n_cols = std::min(kGroupCols, rows.n_cols - g * kGroupCols);
    int r = 0;
    for (; halves && n_cols == kGroupCols && r + 4 <= n; r += 4) {
      const std::byte* quad[4];
      for (int i = 0; i < 4; ++i) quad[i] = codes_of(r + i) + g * kGroupCols * 2;
      pack_quad(quad, r / 4, at);
    }
    for (; r < n; ++r) {
      const std::byte* group =
          codes_of(r) + static_cast<std::size_t>(g) * kGroupCols * static_cast<std::size_t>(code);
      std::byte padded[kGroupCols * 4];
      if (n_cols < kGroupCols) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, group, static_cast<std::size_t>(n_cols * code));
        group = padded;
      }
      pack_group_row(format, group, r, at);
      if (format == Format::q8) {
        std::memcpy(at + kQ8Scales + 2 * r, scales_of(r) + 2 * g, 2);
      } else if (format == Format::nvfp4) {
        for (int half = 0; half < 2 && 2 * g + half < n_scales; ++half) {
          at[kNvfp4Scales + nvfp4_scale_index(r, half)] = scales_of(r)[2 * g + half];
        }
      }
    }
  }
}

std::uint32_t packed_place(Format format, int row, int column) {
  const int element = format == Format::f32 ? 4 : 2;
  const int pair = column / 8 * 128 + word_index(column % 8 / 2, row);
  return static_cast<std::uint32_t>((2 * pair + column % 2) * element);
}

std::uint32_t packed_code(Format format, const std::byte* block, int row, int column) {
  const int t = column_lane(column), p = column_slot(column);
  switch (format) {
    case Format::q8:
      return static_cast<std::uint8_t>(block[(p >> 2) * 512 + word_index(t, row) * 4 + (p & 3)]);
    case Format::nvfp4:
      return load<std::uint32_t>(block + word_index(t, row) * 4) >> (4 * p) & 15u;
    case Format::bf16:
    case Format::f16:
      return load<std::uint16_t>(block + packed_place(format, row, column));
    case Format::f32:
      return load<std::uint32_t>(block + packed_place(format, row, column));
    default:
      return 0;
  }
}

std::uint32_t packed_scale(Format format, const std::byte* block, int row, int column) {
  if (format == Format::q8) return load<std::uint16_t>(block + kQ8Scales + 2 * row);
  if (format == Format::nvfp4) {
    return static_cast<std::uint8_t>(block[kNvfp4Scales + nvfp4_scale_index(row, column / 16)]);
  }
  return 0;
}

namespace {

// A row of fp8 or of a GGUF format; r is its place in the tile.
template <Format kFormat>
void block_row(const std::byte* tile, int n_cols, float gain, int r, float* values) {
  constexpr BlockForm kForm = block_form(kFormat);
  constexpr int kGroups = kForm.n_cols / kGroupCols;
  for (int g = 0; g * kGroupCols < n_cols; ++g) {
    const std::byte* block = tile + static_cast<std::ptrdiff_t>(g / kGroups) * kForm.block_bytes();
    const std::byte* group = block + g % kGroups * kForm.group_bytes();
    const GroupScale scale = packed_group_scale(kFormat, block, r, g % kGroups);
    const int n = std::min(kGroupCols, n_cols - g * kGroupCols);
    for (int c = 0; c < n; ++c) {
      const unsigned raw = plane_code(kForm, group, r, c);
      float x = 0.0f;
      if constexpr (kFormat == Format::fp8) {
        x = e4m3_to_float(static_cast<std::uint8_t>(raw)) * (gain * 512.0f);
      } else {
        x = scale.s[c / 16] * static_cast<float>(block_code(kFormat, raw));
        if constexpr (has_offset(kFormat)) x = x + scale.m[c / 16];
      }
      values[g * kGroupCols + c] = x;
    }
  }
}

// A row of the formats that packed_code knows.
template <Format kFormat>
void coded_row(const std::byte* tile, int n_cols, float gain, int r, float* values) {
  for (int k = 0; k < n_cols; ++k) {
    const std::byte* block =
        tile + static_cast<std::ptrdiff_t>(k / kGroupCols) * block_bytes(kFormat);
    const int c = k % kGroupCols;
    const std::uint32_t code = packed_code(kFormat, block, r, c);
    const auto half = static_cast<std::uint16_t>(code);
    if constexpr (kFormat == Format::f32) values[k] = bits_float(code);
    if constexpr (kFormat == Format::bf16) values[k] = bf16_to_float(half);
    if constexpr (kFormat == Format::f16) values[k] = f16_to_float(half);
    if constexpr (kFormat == Format::q8) {
      values[k] = f16_to_float(static_cast<std::uint16_t>(packed_scale(kFormat, block, r, c))) *
                  static_cast<float>(static_cast<std::int8_t>(code));
    }
    if constexpr (kFormat == Format::nvfp4) {
      // An e4m3 scale is an f16 number's upper bits, times 2^8; codes are doubled.
      const auto scale = static_cast<std::uint16_t>(packed_scale(kFormat, block, r, c) << 7);
      values[k] =
          static_cast<float>(kTwiceE2m1[code]) * (f16_to_float(scale) * 128.0f) * (gain * 0x1p-7f);
    }
  }
}

}  // namespace

void packed_row(Format format, const std::byte* data, int n_cols, float gain, int row,
                float* values) {
  const std::byte* tile =
      data + static_cast<std::uint64_t>(row / kTileRows) * tile_bytes(format, n_cols);
  const int r = row % kTileRows;
  switch (format) {
    case Format::f32:
      return coded_row<Format::f32>(tile, n_cols, gain, r, values);
    case Format::bf16:
      return coded_row<Format::bf16>(tile, n_cols, gain, r, values);
    case Format::f16:
      return coded_row<Format::f16>(tile, n_cols, gain, r, values);
    case Format::q8:
      return coded_row<Format::q8>(tile, n_cols, gain, r, values);
    case Format::nvfp4:
      return coded_row<Format::nvfp4>(tile, n_cols, gain, r, values);
    case Format::fp8:
      return block_row<Format::fp8>(tile, n_cols, gain, r, values);
    case Format::q4_0:
      return block_row<Format::q4_0>(tile, n_cols, gain, r, values);
    case Format::q4_1:
      return block_row<Format::q4_1>(tile, n_cols, gain, r, values);
    case Format::q5_0:
      return block_row<Format::q5_0>(tile, n_cols, gain, r, values);
    case Format::q5_1:
      return block_row<Format::q5_1>(tile, n_cols, gain, r, values);
    case Format::q2_k:
      return block_row<Format::q2_k>(tile, n_cols, gain, r, values);
    case Format::q3_k:
      return block_row<Format::q3_k>(tile, n_cols, gain, r, values);
    case Format::q4_k:
      return block_row<Format::q4_k>(tile, n_cols, gain, r, values);
    case Format::q5_k:
      return block_row<Format::q5_k>(tile, n_cols, gain, r, values);
    case Format::q6_k:
      return block_row<Format::q6_k>(tile, n_cols, gain, r, values);
    case Format::iq4_nl:
      return block_row<Format::iq4_nl>(tile, n_cols, gain, r, values);
    case Format::iq4_xs:
      return block_row<Format::iq4_xs>(tile, n_cols, gain, r, values);
    case Format::iq2_xxs:
      return block_row<Format::iq2_xxs>(tile, n_cols, gain, r, values);
    case Format::mxfp4:
      return block_row<Format::mxfp4>(tile, n_cols, gain, r, values);
  }
}

}  // namespace bolt
