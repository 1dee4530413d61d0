// Packing tiles: one loop a format that fills a block word by word, and element addresses.
#include "core/pack/tile_codec.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/error.h"

namespace bolt {
namespace {

constexpr std::pair<std::string_view, Format> kNames[] = {
    {"f32", Format::f32}, {"bf16", Format::bf16},   {"f16", Format::f16},
    {"q8", Format::q8},   {"nvfp4", Format::nvfp4},
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
  std::memset(to, 0, static_cast<std::size_t>(groups) * static_cast<std::size_t>(block));
  const int n = std::min(kTileRows, rows.n_rows - first_row);
  const std::size_t row_bytes =
      static_cast<std::size_t>(rows.n_cols) * static_cast<std::size_t>(code);
  const int n_scales = rows.n_scales();
  for (int r = 0; r < n; ++r) {
    const auto source_row = static_cast<std::size_t>(first_row + r);
    const std::byte* codes = rows.codes.data() + source_row * row_bytes;
    const std::byte* scales =
        rows.scales.data() + source_row * static_cast<std::size_t>(n_scales) *
                                 static_cast<std::size_t>(scale_bytes(format));
    for (int g = 0; g < groups; ++g) {
      std::byte* at = to + static_cast<std::size_t>(g) * static_cast<std::size_t>(block);
      const std::byte* group =
          codes + static_cast<std::size_t>(g) * kGroupCols * static_cast<std::size_t>(code);
      const int n_cols = std::min(kGroupCols, rows.n_cols - g * kGroupCols);
      std::byte padded[kGroupCols * 4];
      if (n_cols < kGroupCols) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, group, static_cast<std::size_t>(n_cols * code));
        group = padded;
      }
      pack_group_row(format, group, r, at);
      if (format == Format::q8) {
        std::memcpy(at + kQ8Scales + 2 * r, scales + 2 * g, 2);
      } else if (format == Format::nvfp4) {
        for (int half = 0; half < 2 && 2 * g + half < n_scales; ++half) {
          at[kNvfp4Scales + nvfp4_scale_index(r, half)] = scales[2 * g + half];
        }
      }
    }
  }
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
      return load<std::uint16_t>(block + column / 8 * 512 + word_index(column % 8 / 2, row) * 4 +
                                 column % 2 * 2);
    case Format::f32:
      return load<std::uint32_t>(block + column / 8 * 1024 + word_index(column % 8 / 2, row) * 8 +
                                 column % 2 * 4);
  }
  return 0;
}

std::uint32_t packed_scale(Format format, const std::byte* block, int row, int column) {
  if (format == Format::q8) return load<std::uint16_t>(block + kQ8Scales + 2 * row);
  if (format == Format::nvfp4) {
    return static_cast<std::uint8_t>(block[kNvfp4Scales + nvfp4_scale_index(row, column / 16)]);
  }
  return 0;
}

}  // namespace bolt
