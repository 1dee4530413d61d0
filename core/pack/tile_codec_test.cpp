#include "core/pack/tile_codec.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/pack/generated.h"

namespace bolt {
namespace {

constexpr Format kAll[] = {Format::f32, Format::bf16, Format::f16, Format::q8, Format::nvfp4};

// Where tiles.h puts an element, computed from the text of its layout by division alone, in bits
// from the block's start: independent of word_index, column_lane and column_slot.
int bit_of(Format format, int row, int column) {
  const auto pos = [&](int t) { return (row / 4) ^ (2 * t); };
  if (format == Format::bf16 || format == Format::f16 || format == Format::f32) {
    const int width = format == Format::f32 ? 32 : 16;
    const int i = column / 8, t = column % 8 / 2, low = column % 2;
    return (((i * 4 + t) * 8 + pos(t)) * 4 + row % 4) * 2 * width + low * width;
  }
  // The slot order lists the columns of lane t as 4t + {0,1,16,17,2,3,18,19}.
  constexpr int kOrder[] = {0, 1, 16, 17, 2, 3, 18, 19};
  for (int t = 0; t < 4; ++t) {
    for (int p = 0; p < 8; ++p) {
      if (4 * t + kOrder[p] != column) continue;
      if (format == Format::nvfp4) return ((t * 8 + pos(t)) * 4 + row % 4) * 32 + 4 * p;
      return ((((p / 4) * 4 + t) * 8 + pos(t)) * 4 + row % 4) * 32 + (p % 4) * 8;
    }
  }
  return -1;
}
int code_bits(Format format) {
  return format == Format::f32 ? 32 : format == Format::q8 ? 8 : format == Format::nvfp4 ? 4 : 16;
}
int scale_byte(Format format, int row, int half) {
  return format == Format::q8 ? 4 * 8 * 32 + 2 * row : 512 + row / 4 * 8 + half * 4 + row % 4;
}
std::uint32_t read_bits(const std::byte* block, int bit, int n_bits) {
  std::uint64_t word = 0;
  std::memcpy(&word, block + bit / 8, static_cast<std::size_t>((n_bits + 7) / 8));
  return static_cast<std::uint32_t>(word >> (bit % 8)) &
         static_cast<std::uint32_t>((std::uint64_t{1} << n_bits) - 1);
}

RowCodes random_rows(Format format, int n_rows, int n_cols, std::uint64_t seed) {
  RowCodes rows;
  rows.resize(format, n_rows, n_cols);
  for (std::size_t i = 0; i < rows.codes.size(); ++i) {
    auto byte = static_cast<std::uint8_t>(random_bits(seed, i));
    if (format == Format::nvfp4) byte &= 15;
    rows.codes[i] = static_cast<std::byte>(byte);
  }
  for (std::size_t i = 0; i < rows.scales.size(); ++i) {
    rows.scales[i] = static_cast<std::byte>(random_bits(seed + 1, i));
  }
  return rows;
}

std::uint32_t source_code(RowCodes& rows, int r, int k) {
  switch (code_bytes(rows.format)) {
    case 1:
      return rows.code_row<std::uint8_t>(r)[k];
    case 2:
      return rows.code_row<std::uint16_t>(r)[k];
    default:
      return rows.code_row<std::uint32_t>(r)[k];
  }
}

std::vector<std::byte> packed(const RowCodes& rows, int first_row) {
  std::vector<std::byte> tile(
      static_cast<std::size_t>(n_groups(rows.n_cols) * block_bytes(rows.format)), std::byte{0xee});
  pack_tile(rows, first_row, tile.data());
  return tile;
}

TEST_CASE("tiles: every bit lies where the layout's text puts it, padding is zero") {
  for (const Format format : kAll) {
    for (const auto& [n_rows, n_cols] : {std::pair{32, 64}, {7, 33}, {31, 80}, {1, 1}, {33, 96}}) {
      CAPTURE(format_name(format));
      CAPTURE(n_rows);
      CAPTURE(n_cols);
      RowCodes rows = random_rows(format, n_rows, n_cols, 7);
      for (int first = 0; first < n_rows; first += kTileRows) {
        const auto tile = packed(rows, first);
        std::size_t n_wrong = 0, n_set = 0;
        for (int g = 0; g < n_groups(n_cols); ++g) {
          const std::byte* block = tile.data() + g * block_bytes(format);
          for (int r = 0; r < kTileRows; ++r) {
            const bool row_there = first + r < n_rows;
            for (int c = 0; c < kGroupCols; ++c) {
              const int k = g * kGroupCols + c;
              const std::uint32_t should =
                  row_there && k < n_cols ? source_code(rows, first + r, k) : 0;
              const std::uint32_t is = read_bits(block, bit_of(format, r, c), code_bits(format));
              n_wrong += is != should || packed_code(format, block, r, c) != is;
              n_set += is != 0;
            }
            for (int half = 0; scale_cols(format) > 0 && half < 32 / scale_cols(format); ++half) {
              const int s = g * (32 / scale_cols(format)) + half;
              std::uint32_t should = 0;
              if (row_there && s < rows.n_scales()) {
                should = format == Format::q8 ? rows.scale_row<std::uint16_t>(first + r)[s]
                                              : rows.scale_row<std::uint8_t>(first + r)[s];
              }
              const std::uint32_t is =
                  read_bits(block, 8 * scale_byte(format, r, half), 8 * scale_bytes(format));
              n_wrong += is != should || packed_scale(format, block, r, half * 16) != is;
            }
          }
        }
        CHECK(n_wrong == 0);
        CHECK(n_set > 0);
      }
    }
  }
}

TEST_CASE("tiles: a wrong twin, two rows swapped, is seen by the element addresses") {
  RowCodes rows = random_rows(Format::bf16, 32, 32, 3);
  const auto right = packed(rows, 0);
  std::swap_ranges(rows.code_row<std::uint16_t>(4), rows.code_row<std::uint16_t>(5),
                   rows.code_row<std::uint16_t>(9));
  const auto wrong = packed(rows, 0);
  int n_differ = 0;
  for (int c = 0; c < 32; ++c) {
    n_differ += packed_code(Format::bf16, right.data(), 4, c) !=
                packed_code(Format::bf16, wrong.data(), 4, c);
  }
  CHECK(n_differ > 16);
}

TEST_CASE("tiles: block sizes add up to what the layout lists") {
  CHECK(block_bytes(Format::q8) == 2 * 4 * 32 * 4 + 2 * 32);
  CHECK(block_bytes(Format::nvfp4) == 4 * 32 * 4 + 64);
  CHECK(block_bytes(Format::bf16) == 32 * 32 * 2);
  CHECK(block_bytes(Format::f32) == 32 * 32 * 4);
  Weight w;
  w.format = Format::q8;
  w.layout = Layout::tiles;
  w.n_matrices = 3;
  w.n_rows = 33;
  w.n_cols = 65;
  CHECK(weight_bytes(w) == 3u * 2 * 3 * 1088);
}

}  // namespace
}  // namespace bolt
