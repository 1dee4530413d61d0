// The packed layout of a linear weight: where each code and scale lies. One copy serves AVX-512,
// AVX2, dp4a and tensor cores. Packing and its inverse only; the sums are core/ops (arithmetic.md
// §4).
//
// A matrix [N, K] is cut in tiles of 32 rows and groups of 32 columns; block (tile, group) is
// contiguous, the blocks of a tile follow each other along K:
//   byte offset of a block = (tile * n_blocks + block) * block_bytes(format)
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
//
// fp8 and GGUF's blocks are cut in planes of bits (BlockForm): column 16h + 4t + i of a group is
// byte i of half h, lane t, as the int8 tensor-core fragments take it. A group's planes, in order:
//   bytes    [h][t][pos][row%4][i: 8 bits]
//   nibbles  [t][pos][row%4][i: the 4 bits of half h from bit 4h]
//   pairs    [h][row][i: the 2 bits of lane t from bit 2t]
//   bits     [row][i: the bit of half h and lane t at 4h + t]
// A block has 32 columns, or 256 where the format shares scales among 8 groups: all groups' planes,
// then f16 [n_halves][row], then bytes [n_small][row] (tile_codec.h says what they are).
#pragma once

#include <cstdint>
#include <iterator>

#include "core/pack/graph.h"

namespace bolt {

inline constexpr int kTileRows = 32;      // rows of a tile
inline constexpr int kGroupCols = 32;     // columns of a quantisation group
inline constexpr int kSegmentGroups = 8;  // groups of a segment: the unit of the contract's sums

// What a block of fp8 or of a GGUF type is made of; n_cols is 0 for the other formats.
struct BlockForm {
  int n_cols = 0;
  bool bytes = false, nibbles = false, pairs = false, bits = false;
  int n_halves = 0, n_small = 0;  // scales of a row: f16 numbers, then bytes

  constexpr int group_bytes() const {
    return (bytes ? 1024 : 0) + (nibbles ? 512 : 0) + (pairs ? 256 : 0) + (bits ? 128 : 0);
  }
  constexpr int codes_bytes() const { return n_cols / kGroupCols * group_bytes(); }
  // Offsets inside a group's planes.
  constexpr int pairs_at() const { return nibbles ? 512 : 0; }
  constexpr int bits_at() const { return pairs_at() + (pairs ? 256 : 0); }
  // Bytes of a row's scales, as rows hold them: the f16 numbers, then the bytes.
  constexpr int scale_bytes() const { return 2 * n_halves + n_small; }
  constexpr int block_bytes() const { return codes_bytes() + kTileRows * scale_bytes(); }
};

constexpr BlockForm block_form(Format format) {
  BlockForm f;
  const auto make = [&](int n_cols, int n_halves, int n_small) {
    f.n_cols = n_cols;
    f.n_halves = n_halves;
    f.n_small = n_small;
  };
  switch (format) {
    case Format::fp8:
      make(32, 0, 0), f.bytes = true;
      break;
    case Format::q4_0:
    case Format::iq4_nl:
      make(32, 1, 0), f.nibbles = true;
      break;
    case Format::q4_1:
      make(32, 2, 0), f.nibbles = true;
      break;
    case Format::q5_0:
      make(32, 1, 0), f.nibbles = f.bits = true;
      break;
    case Format::q5_1:
      make(32, 2, 0), f.nibbles = f.bits = true;
      break;
    case Format::mxfp4:
      make(32, 0, 1), f.nibbles = true;
      break;
    case Format::q2_k:
      make(256, 2, 16), f.pairs = true;
      break;
    case Format::q3_k:
      make(256, 1, 16), f.pairs = f.bits = true;
      break;
    case Format::q4_k:
      make(256, 2, 16), f.nibbles = true;
      break;
    case Format::q5_k:
      make(256, 2, 16), f.nibbles = f.bits = true;
      break;
    case Format::q6_k:
      make(256, 1, 16), f.nibbles = f.pairs = true;
      break;
    case Format::iq4_xs:
      make(256, 1, 8), f.nibbles = true;
      break;
    case Format::iq2_xxs:
      make(256, 1, 8), f.pairs = f.bits = true;
      break;
    case Format::f32:
    case Format::bf16:
    case Format::f16:
    case Format::q8:
    case Format::nvfp4:
      break;
  }
  return f;
}

// Whether a format's tiles are laid out by a BlockForm: fp8's and GGUF's are.
constexpr bool is_block(Format format) { return block_form(format).n_cols > 0; }

// Every format, in the order of the enumeration.
inline constexpr Format kAllFormats[] = {
    Format::f32,    Format::bf16,   Format::f16,     Format::q8,   Format::nvfp4,
    Format::fp8,    Format::q4_0,   Format::q4_1,    Format::q5_0, Format::q5_1,
    Format::q2_k,   Format::q3_k,   Format::q4_k,    Format::q5_k, Format::q6_k,
    Format::iq4_nl, Format::iq4_xs, Format::iq2_xxs, Format::mxfp4};
static_assert(std::size(kAllFormats) == static_cast<std::size_t>(Format::mxfp4) + 1);

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
    default:
      return block_form(format).block_bytes();
  }
}
// Columns of a block, and the blocks of a row.
constexpr int block_cols(Format format) {
  return block_form(format).n_cols == 256 ? 256 : kGroupCols;
}
constexpr int n_blocks(Format format, int n_cols) {
  return (n_cols + block_cols(format) - 1) / block_cols(format);
}
constexpr int n_tiles(int n_rows) { return (n_rows + kTileRows - 1) / kTileRows; }
constexpr int n_groups(int n_cols) { return (n_cols + kGroupCols - 1) / kGroupCols; }
constexpr std::uint64_t tile_bytes(Format format, int n_cols) {
  return static_cast<std::uint64_t>(n_blocks(format, n_cols)) *
         static_cast<std::uint64_t>(block_bytes(format));
}
constexpr std::uint64_t packed_matrix_bytes(Format format, int n_rows, int n_cols) {
  return static_cast<std::uint64_t>(n_tiles(n_rows)) * tile_bytes(format, n_cols);
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

// Raw code of an element of a BlockForm: its planes' bits, the lower plane's first.
template <class Byte>
__attribute__((always_inline)) constexpr unsigned plane_code(const BlockForm& form,
                                                             const Byte* group, int row,
                                                             int column) {
  const int h = column >> 4, t = (column >> 2) & 3, i = column & 3;
  const auto at = [&](int offset) { return static_cast<unsigned>(group[offset]) & 255u; };
  if (form.bytes) return at(h * 512 + word_index(t, row) * 4 + i);
  unsigned code = 0;
  int width = 0;
  if (form.nibbles) code = at(word_index(t, row) * 4 + i) >> (4 * h) & 15u, width = 4;
  if (form.pairs) {
    code |= (at(form.pairs_at() + h * 128 + row * 4 + i) >> (2 * t) & 3u) << width;
    width += 2;
  }
  if (form.bits) code |= (at(form.bits_at() + row * 4 + i) >> (4 * h + t) & 1u) << width;
  return code;
}

}  // namespace bolt
