// How checkpoints store rows of numbers: plain elements, ModelOpt's codes, GGUF's blocks. Two ways
// to read them, written apart: as codes and scales for packing, and as values, so that the proof of
// a conversion (verify.h) does not rest on what made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/pack/tile_codec.h"

namespace bolt {

struct SourceEncoding {
  std::string_view dtype;  // as Tensor::dtype has it: safetensors' names, or GGUF's
  Format format;
  int n_cols = 1, bytes = 0;  // of a block of a row
};

// Null for a dtype that holds no weights. U8 is ModelOpt's NVFP4: two columns a byte.
const SourceEncoding* source_encoding(std::string_view dtype);
// GGUF's number of a tensor type; null where bolt has no such format.
const SourceEncoding* gguf_encoding(std::uint32_t type);
const char* gguf_type_name(std::uint32_t type);  // also of those it has not; "?" if unknown

// One row as its codes and scales (tile_codec.h). block_scales: ModelOpt's weight_scale row, e4m3.
// Answers the first column whose number is not finite or whose scale is not valid, -1 if all are.
int read_codes(const SourceEncoding& encoding, const std::byte* row, const std::byte* block_scales,
               int n_cols, std::byte* codes, std::byte* scales);

// The row's values in float32, as the library that owns the format decodes them; `scale` multiplies
// (ModelOpt's weight_scale_2 or weight_scale, GGUF's X.scale; 1 where there is none).
void read_values(const SourceEncoding& encoding, const std::byte* row,
                 const std::byte* block_scales, float scale, int n_cols, float* values);

}  // namespace bolt
