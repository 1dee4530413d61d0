// AVX-512 (VNNI, VBMI) forms of the linears' sums, equal in bits to linear_definition.inc.
//
// A vector holds sixteen outputs. Of a tile's two sixteens, sixteen s lies in lane t's chunk quad
// s ^ (t / 2), its two halves swapped where t is odd (core/pack/tiles.h). A segment's blocks stay
// in the L1 cache while all rows of the call pass.
#include <immintrin.h>

#include "core/ops/linear_kernels.h"

namespace bolt {

namespace {

constexpr int kPrefetch = 8 << 10;  // bytes ahead of the stream of weights

void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
template <int kBytes>
void prefetch_block(const std::byte* block) {
  for (int line = 0; line < kBytes; line += 64) prefetch(block + kPrefetch + line);
}

// Sixteen outputs' words of lane t, in the order of the outputs.
__m512i load_words(const std::byte* plane, int sixteen, int t) {
  const __m512i w = _mm512_loadu_si512(plane + (sixteen ^ (t >> 1)) * 64);
  return t & 1 ? _mm512_shuffle_i64x2(w, w, 0x4e) : w;
}
__m512i broadcast4(const std::int8_t* at) {
  int four = 0;
  __builtin_memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}
void add_to(float* at, __m512 sum) { _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), sum)); }

// Where one row's operands of a segment start.
struct IntegerRow {
  const std::int8_t* codes;
  const float* scales;
  const std::int32_t* bias;
};

// One segment: `n_groups` groups from `blocks` on, kRows rows; adds to their totals. Codes are
// taken as unsigned (+128), so a row's dot products start from -128 times the sum of its codes.
template <int kRows>
void q8_segment(const std::byte* blocks, int n_groups, const IntegerRow* rows, float** totals,
                bool stream) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512 acc[2][kRows];
  for (int r = 0; r < kRows; ++r) acc[0][r] = acc[1][r] = _mm512_setzero_ps();
  for (int group = 0; group < n_groups; ++group) {
    const std::byte* block = blocks + group * block_bytes(Format::q8);
    if (stream) prefetch_block<block_bytes(Format::q8)>(block);
    __m512i dot[2][kRows];
    for (int r = 0; r < kRows; ++r) {
      dot[0][r] = dot[1][r] = _mm512_set1_epi32(rows[r].bias[group]);
    }
#pragma GCC unroll 8
    for (int word = 0; word < 8; ++word) {  // word = 4 * (slot / 4) + lane
      const std::byte* plane = block + word * 128;
      const __m512i w0 = _mm512_xor_si512(load_words(plane, 0, word & 3), flip);
      const __m512i w1 = _mm512_xor_si512(load_words(plane, 1, word & 3), flip);
      for (int r = 0; r < kRows; ++r) {
        const __m512i q = broadcast4(rows[r].codes + group * 32 + word * 4);
        dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], w0, q);
        dot[1][r] = _mm512_dpbusd_epi32(dot[1][r], w1, q);
      }
    }
    for (int s = 0; s < 2; ++s) {
      const __m512 scale = _mm512_cvtph_ps(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 1024 + s * 32)));
      for (int r = 0; r < kRows; ++r) {
        acc[s][r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[s][r]), scale),
                                    _mm512_set1_ps(rows[r].scales[group]), acc[s][r]);
      }
    }
  }
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < kRows; ++r) add_to(totals[r] + s * 16, acc[s][r]);
  }
}

// Scales e4m3 * 2^-8: f16's exponent has 8 more, so the code moves up by 7 bits.
__m512 widen_e4m3(__m128i codes) {
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7));
}

// Codes are taken as unsigned (+12); each half of 16 columns has its own sum and scale.
template <int kRows>
void nvfp4_segment(const std::byte* blocks, int n_groups, const IntegerRow* rows, float** totals,
                   bool stream) {
  // Nibble -> 2 * e2m1 + 12, four times the same sixteen entries: the index's upper bits do not
  // count.
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  // Where in a 64-bit word (of two outputs) the nibbles of a half's four columns start.
  const __m512i first_half = _mm512_set1_epi64(0x3430242014100400ll);   // slots 0 1 4 5
  const __m512i second_half = _mm512_set1_epi64(0x3c382c281c180c08ll);  // slots 2 3 6 7
  const __m256i by_half = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  __m512 acc[2][kRows];
  for (int r = 0; r < kRows; ++r) acc[0][r] = acc[1][r] = _mm512_setzero_ps();
  for (int group = 0; group < n_groups; ++group) {
    const std::byte* block = blocks + group * block_bytes(Format::nvfp4);
    if (stream) prefetch_block<block_bytes(Format::nvfp4)>(block);
    __m512i dot[2][2][kRows];  // [sixteen][half][row]
    for (int r = 0; r < kRows; ++r) {
      for (int half = 0; half < 2; ++half) {
        dot[0][half][r] = dot[1][half][r] = _mm512_set1_epi32(rows[r].bias[group * 2 + half]);
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      __m512i w[2][2];
      for (int s = 0; s < 2; ++s) {
        const __m512i words = load_words(block + t * 128, s, t);
        w[s][0] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(first_half, words), table);
        w[s][1] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(second_half, words), table);
      }
      for (int r = 0; r < kRows; ++r) {
        for (int half = 0; half < 2; ++half) {
          const __m512i q = broadcast4(rows[r].codes + group * 32 + half * 16 + t * 4);
          for (int s = 0; s < 2; ++s) {
            dot[s][half][r] = _mm512_dpbusd_epi32(dot[s][half][r], w[s][half], q);
          }
        }
      }
    }
    for (int s = 0; s < 2; ++s) {
      // Scales lie as [row/4][half][row%4]: bring the first half's sixteen in front.
      const __m256i bytes = _mm256_permutevar8x32_epi32(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 512 + s * 32)), by_half);
      const __m512 scale0 = widen_e4m3(_mm256_castsi256_si128(bytes));
      const __m512 scale1 = widen_e4m3(_mm256_extracti128_si256(bytes, 1));
      for (int r = 0; r < kRows; ++r) {
        const __m512 both =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[s][1][r]), scale1,
                            _mm512_mul_ps(_mm512_cvtepi32_ps(dot[s][0][r]), scale0));
        acc[s][r] = _mm512_fmadd_ps(both, _mm512_set1_ps(rows[r].scales[group]), acc[s][r]);
      }
    }
  }
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < kRows; ++r) add_to(totals[r] + s * 16, acc[s][r]);
  }
}

// Sixteen outputs' weights of two neighbouring columns of lane t. bf16 leaves the two halves
// swapped where t is odd, which restore() undoes; the others come out in order.
struct Bf16Pairs {
  static constexpr Format kFormat = Format::bf16;
  static void load_pair(const std::byte* lane, int sixteen, int t, __m512& first, __m512& second) {
    const __m512i w = _mm512_loadu_si512(lane + (sixteen ^ (t >> 1)) * 64);
    first = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    second =
        _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static __m512 restore(__m512 v, int t) { return t & 1 ? _mm512_shuffle_f32x4(v, v, 0x4e) : v; }
};
struct InterleavedPairs {
  // `low` and `high` hold the first and last eight outputs, two columns each, neighbours together.
  static void split(__m512 low, __m512 high, __m512& first, __m512& second) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    first = _mm512_permutex2var_ps(low, even, high);
    second = _mm512_permutex2var_ps(low, odd, high);
  }
  static __m512 restore(__m512 v, int) { return v; }
};
struct F16Pairs : InterleavedPairs {
  static constexpr Format kFormat = Format::f16;
  static void load_pair(const std::byte* lane, int sixteen, int t, __m512& first, __m512& second) {
    const auto* halves = reinterpret_cast<const __m256i*>(lane + (sixteen ^ (t >> 1)) * 64);
    const int swap = t & 1;
    split(_mm512_cvtph_ps(_mm256_loadu_si256(halves + swap)),
          _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1 - swap)), first, second);
  }
};
struct F32Pairs : InterleavedPairs {
  static constexpr Format kFormat = Format::f32;
  static void load_pair(const std::byte* lane, int sixteen, int t, __m512& first, __m512& second) {
    const auto* floats = reinterpret_cast<const float*>(lane + (sixteen ^ (t >> 1)) * 128);
    const int swap = t & 1;
    split(_mm512_loadu_ps(floats + 16 * swap), _mm512_loadu_ps(floats + 16 - 16 * swap), first,
          second);
  }
};

// One segment of a float format; kChains of the four chains walk together. A chain's columns are
// 8i + 2t and 8i + 2t + 1, ascending.
template <class Pairs, int kRows, int kChains>
void float_segment(const std::byte* blocks, int n_groups, const float* const* rows, float** totals,
                   bool stream) {
  constexpr int kStepBytes = block_bytes(Pairs::kFormat) / 4;  // of 8 columns
  constexpr int kLaneBytes = kStepBytes / 4;                   // of 2 columns
  for (int t0 = 0; t0 < 4; t0 += kChains) {
    __m512 c[kChains][2][kRows];
    for (auto& of_chain : c) {
      for (auto& of_sixteen : of_chain) {
        for (auto& v : of_sixteen) v = _mm512_setzero_ps();
      }
    }
    for (int step = 0; step < n_groups * 4; ++step) {
      const std::byte* at = blocks + step * kStepBytes;
      if (stream && t0 == 0) {
        for (int line = 0; line < kStepBytes; line += 64) prefetch(at + kPrefetch + line);
      }
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) {
        const int t = t0 + chain;
        __m512 w[2][2];
        for (int s = 0; s < 2; ++s) {
          Pairs::load_pair(at + t * kLaneBytes, s, t, w[s][0], w[s][1]);
        }
        for (int r = 0; r < kRows; ++r) {
          const float* x = rows[r] + step * 8 + t * 2;
          for (int column = 0; column < 2; ++column) {
            const __m512 v = _mm512_set1_ps(x[column]);
            for (int s = 0; s < 2; ++s) {
              c[chain][s][r] = _mm512_fmadd_ps(w[s][column], v, c[chain][s][r]);
            }
          }
        }
      }
    }
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < kRows; ++r) {
        float* at = totals[r] + s * 16;
        __m512 total = _mm512_load_ps(at);
        for (int chain = 0; chain < kChains; ++chain) {
          total = _mm512_add_ps(total, Pairs::restore(c[chain][s][r], t0 + chain));
        }
        _mm512_store_ps(at, total);
      }
    }
  }
}

// Walks a tile: segments outside, rows by eights or fours inside, so that a segment's blocks stay
// hot.
template <class Kernel>
void walk(const TileWork& work) {
  for (int i = 0; i < work.n_rows * kTileRows; i += 16) {
    _mm512_store_ps(work.totals + i, _mm512_setzero_ps());
  }
  const int n_groups_of_row = work.x->n_groups;
  for (int first = 0; first < n_groups_of_row; first += kSegmentGroups) {
    const int left = n_groups_of_row - first;
    const int n = left < kSegmentGroups ? left : kSegmentGroups;
    int row = 0;
    if constexpr (Kernel::kMostRows == 8) {
      for (; row + 8 <= work.n_rows; row += 8) Kernel::template rows<8>(work, row, first, n);
    }
    for (; row + 4 <= work.n_rows; row += 4) Kernel::template rows<4>(work, row, first, n);
    switch (work.n_rows - row) {
      case 3:
        Kernel::template rows<3>(work, row, first, n);
        break;
      case 2:
        Kernel::template rows<2>(work, row, first, n);
        break;
      case 1:
        Kernel::template rows<1>(work, row, first, n);
        break;
      default:
        break;
    }
  }
}

struct Q8Kernel {
  static constexpr int kMostRows = 8;
  template <int kRows>
  static void rows(const TileWork& work, int row, int first, int n) {
    IntegerRow of[kRows];
    float* totals[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = work.x->group_index(work.rows[row + r], first);
      of[r] = {work.x->slots + at * kGroupCols, work.x->scales + at, work.x->q8_bias + at};
      totals[r] = work.totals + (row + r) * kTileRows;
    }
    q8_segment<kRows>(work.blocks + static_cast<std::ptrdiff_t>(first) * block_bytes(Format::q8), n,
                      of, totals, row == 0);
  }
};

struct Nvfp4Kernel {
  static constexpr int kMostRows = 4;  // four sums a row fill the registers
  template <int kRows>
  static void rows(const TileWork& work, int row, int first, int n) {
    IntegerRow of[kRows];
    float* totals[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = work.x->group_index(work.rows[row + r], first);
      of[r] = {work.x->codes + at * kGroupCols, work.x->scales + at, work.x->nvfp4_bias + at * 2};
      totals[r] = work.totals + (row + r) * kTileRows;
    }
    nvfp4_segment<kRows>(
        work.blocks + static_cast<std::ptrdiff_t>(first) * block_bytes(Format::nvfp4), n, of,
        totals, row == 0);
  }
};

template <class Pairs>
struct FloatKernel {
  static constexpr int kMostRows = 8;
  template <int kRows>
  static void rows(const TileWork& work, int row, int first, int n) {
    const float* of[kRows];
    float* totals[kRows];
    for (int r = 0; r < kRows; ++r) {
      of[r] = work.x->x + work.rows[row + r] * work.x->x_stride + first * kGroupCols;
      totals[r] = work.totals + (row + r) * kTileRows;
    }
    float_segment<Pairs, kRows,
                  kRows == 1   ? 4
                  : kRows == 2 ? 2
                               : 1>(
        work.blocks + static_cast<std::ptrdiff_t>(first) * block_bytes(Pairs::kFormat), n, of,
        totals, row == 0);
  }
};

void add_scaled(float w, const float* x, int n, float* y) {
  const __m512 factor = _mm512_set1_ps(w);
  for (int i = 0; i < n; i += 16) {
    const int left = n - i;
    const __mmask16 here = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512 sum = _mm512_fmadd_ps(factor, _mm512_maskz_loadu_ps(here, x + i),
                                       _mm512_maskz_loadu_ps(here, y + i));
    _mm512_mask_storeu_ps(y + i, here, sum);
  }
}

}  // namespace

const LinearKernels kLinearAvx512 = {walk<FloatKernel<F32Pairs>>,
                                     walk<FloatKernel<Bf16Pairs>>,
                                     walk<FloatKernel<F16Pairs>>,
                                     walk<Q8Kernel>,
                                     walk<Nvfp4Kernel>,
                                     block_kernel_avx512,
                                     add_scaled};

}  // namespace bolt
