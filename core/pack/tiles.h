// The packed layout of a linear weight: where each code and scale lies. One copy serves AVX-512,
// AVX2, dp4a and tensor cores. Packing and its inverse only; the sums are core/ops (arithmetic.md
// §4).
//
// A matrix [N, K] is cut in tiles of 32 rows and groups of 32 columns; block (tile, group) is
// contiguous, the blocks of a tile follow each other along K:
//   byte offset of a block = (tile * n_groups + group) * block_bytes(format)
// Rows past N and columns past K are code 0 (scales of halves without an element are 0).
// Inside a block, lane t = 0..3 owns eight columns in the slot order p = 0..7:
//   column(t, p) = 4t + {0,1,16,17,2,3,18,19}[p]
//   q8     [p/4][t][pos][row%4][4 x s8: slots 4(p/4)..+3], then f16 scale[32]          1088 bytes
//   nvfp4  [t][pos][row%4][u32: nibble p = slot p, e2m1 code, never -0],
//          then e4m3 [row/4][half][row%4]                                                576 bytes
//   bf16, f16  [i 0..3][t][pos][row%4][u32: column 8i+2t | column 8i+2t+1]              2048 bytes
//   f32        [i 0..3][t][pos][row%4][2 x f32: columns 8i+2t, 8i+2t+1]                 4096 bytes
// where pos = (row/4) xor 2t: a 16-byte chunk holds four rows, and the exclusive or keeps the
// tensor-core fragment reads of a plain copy in shared memory free of bank conflicts.
#pragma once

#include <cstdint>

#include "core/pack/graph.h"

namespace bolt {

inline constexpr int kTileRows = 32;      // rows of a tile
inline constexpr int kGroupCols = 32;     // columns of a quantisation group
inline constexpr int kSegmentGroups = 8;  // groups of a segment: the unit of the contract's sums

constexpr int block_bytes(Format format) {
  switch (format) {
    case Format::q8:
      return 1088;
    case Format::nvfp4:
      return 576;
    case Format::bf16:
    case Format::f16:
      return 2048;
    case Format::f32:
      return 4096;
  }
  return 0;
}
constexpr int n_tiles(int n_rows) { return (n_rows + kTileRows - 1) / kTileRows; }
constexpr int n_groups(int n_cols) { return (n_cols + kGroupCols - 1) / kGroupCols; }
constexpr std::uint64_t packed_matrix_bytes(Format format, int n_rows, int n_cols) {
  return static_cast<std::uint64_t>(n_tiles(n_rows)) *
         static_cast<std::uint64_t>(n_groups(n_cols)) *
         static_cast<std::uint64_t>(block_bytes(format));
}

// Column of a group that lane t's slot p holds, and its inverse.
constexpr int slot_column(int t, int p) {
  return 4 * t + (p & 1) + ((p >> 1) & 1) * 16 + (p >> 2) * 2;
}
constexpr int column_lane(int column) { return (column >> 2) & 3; }
constexpr int column_slot(int column) {
  return (column & 1) | (column >> 4) << 1 | ((column >> 1) & 1) << 2;
}
// Word (4 bytes) of lane t, row r inside a 512-byte plane of a block, in words.
constexpr int word_index(int t, int row) {
  return t * 32 + (((row >> 2) ^ (2 * t)) << 2) + (row & 3);
}

}  // namespace bolt
