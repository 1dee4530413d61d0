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

// Bytes of one code as rows hold it: 4 f32, 2 bf16 and f16, 1 the rest (q8 an s8, nvfp4 a nibble,
// fp8 and GGUF's blocks the raw code of plane_code).
constexpr int code_bytes(Format format) {
  return format == Format::f32 ? 4 : is_integer(format) ? 1 : 2;
}
// Columns that share one record of scales, 0 where there are none; and the record's bytes
// (block_values.h says what it holds).
constexpr int scale_cols(Format format) {
  if (format == Format::q8) return 32;
  if (format == Format::nvfp4) return 16;
  const BlockForm form = block_form(format);
  return form.scale_bytes() > 0 ? form.n_cols : 0;
}
constexpr int scale_bytes(Format format) {
  return format == Format::q8 ? 2 : format == Format::nvfp4 ? 1 : block_form(format).scale_bytes();
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
// of n_blocks(format, n_cols) blocks at `to`. Formats with blocks of 256 columns take whole blocks.
void pack_tile(const RowCodes& rows, int first_row, std::byte* to);

// Code and scale of one element of q8, nvfp4 and the float formats, found from its address alone;
// row < 32, column of the group < 32. Floats answer their bits, q8 its code as two's complement,
// nvfp4 its nibble.
std::uint32_t packed_code(Format format, const std::byte* block, int row, int column);
// The same of a float format as the offset of its bytes in the block.
std::uint32_t packed_place(Format format, int row, int column);
std::uint32_t packed_scale(Format format, const std::byte* block, int row, int column);

// Values of a row of a matrix that is packed at `data`, in float32, as the library that owns the
// format decodes them: nvfp4 and fp8 RN(code scale * the matrix's own scale), which is gain * 2^-7
// and gain * 2^9; the rest of block_values.h with one rounding.
void packed_row(Format format, const std::byte* data, int n_cols, float gain, int row,
                float* values);

}  // namespace bolt
