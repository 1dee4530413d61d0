// Between rows of codes and the packed blocks of tiles.h: whole tiles in, whole tiles out, and
// single elements by another way, so that one checks the other. What codes mean is quantise.h and
// core/ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/pack/tiles.h"

namespace bolt {

const char* format_name(Format format);
// False if `name` names no format.
bool format_named(std::string_view name, Format& format);

// Bytes of one code as rows hold it: 4 f32, 2 bf16 and f16, 1 q8 (s8) and nvfp4 (a nibble a byte).
constexpr int code_bytes(Format format) {
  switch (format) {
    case Format::f32:
      return 4;
    case Format::bf16:
    case Format::f16:
      return 2;
    case Format::q8:
    case Format::nvfp4:
      return 1;
  }
  return 0;
}
// Columns that share a scale, 0 where there are none; and the scale's bytes.
constexpr int scale_cols(Format format) {
  return format == Format::q8 ? 32 : format == Format::nvfp4 ? 16 : 0;
}
constexpr int scale_bytes(Format format) {
  return format == Format::q8 ? 2 : format == Format::nvfp4 ? 1 : 0;
}

// Bytes of a weight's matrices, all of them, in its layout. Gains are not counted.
std::uint64_t weight_bytes(const Weight& weight);

// Rows of one matrix before packing, row-major: codes, then scales (one every scale_cols columns).
struct RowCodes {
  Format format = Format::f32;
  int n_rows = 0, n_cols = 0;
  std::vector<std::byte> codes, scales;

  void resize(Format f, int rows, int cols);
  int n_scales() const;  // of a row
  template <class T>
  T* code_row(int row) {
    return reinterpret_cast<T*>(codes.data()) +
           static_cast<std::size_t>(row) * static_cast<std::size_t>(n_cols);
  }
  template <class T>
  T* scale_row(int row) {
    return reinterpret_cast<T*>(scales.data()) +
           static_cast<std::size_t>(row) * static_cast<std::size_t>(n_scales());
  }
};

// Packs rows [first_row, first_row + 32) of `rows` (fewer at the end: the rest is zero) as one tile
// of n_groups(n_cols) blocks at `to`.
void pack_tile(const RowCodes& rows, int first_row, std::byte* to);

// Code and scale of one element, found from its address alone; row < 32, column of the group < 32.
// Floats answer their bits, q8 its code as two's complement, nvfp4 its nibble.
std::uint32_t packed_code(Format format, const std::byte* block, int row, int column);
std::uint32_t packed_scale(Format format, const std::byte* block, int row, int column);

}  // namespace bolt
