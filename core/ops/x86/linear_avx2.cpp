// AVX2 (FMA, F16C) forms of the linears' sums, equal in bits to linear_definition.inc.
//
// A vector holds eight outputs. Of a tile's four eights, eight e lies in lane t's chunk pair e ^ t
// (core/pack/tiles.h). A segment's blocks stay in the L1 cache while all rows of the call pass.
#include <immintrin.h>

#include "core/ops/linear_kernels.h"

namespace bolt {

namespace {

constexpr int kEights = 4;          // vectors of outputs in a tile
constexpr int kPrefetch = 8 << 10;  // bytes ahead of the stream of weights

__m256i load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
__m256i broadcast4(const std::int8_t* at) {
  int four = 0;
  __builtin_memcpy(&four, at, 4);
  return _mm256_set1_epi32(four);
}
void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
// Asks for the block that lies kPrefetch ahead, once per block.
template <int kBytes>
void prefetch_block(const std::byte* block) {
  for (int line = 0; line < kBytes; line += 64) prefetch(block + kPrefetch + line);
}

// Where one row's operands of a segment start.
struct IntegerRow {
  const std::int8_t* codes;
  const float* scales;
  const std::int32_t* bias;
};

// One segment: `n_groups` groups from `blocks` on, kRows rows; adds to their totals.
//   kEightsAtOnce: 4 reads the blocks once, in order, for few rows; 1 keeps more rows in registers.
template <int kRows, int kEightsAtOnce>
void q8_segment(const std::byte* blocks, int n_groups, const IntegerRow* rows, float** totals,
                bool stream) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int e0 = 0; e0 < kEights; e0 += kEightsAtOnce) {
    __m256 acc[kEightsAtOnce][kRows];
    for (auto& of_eight : acc) {
      for (auto& v : of_eight) v = _mm256_setzero_ps();
    }
    for (int group = 0; group < n_groups; ++group) {
      const std::byte* block = blocks + group * block_bytes(Format::q8);
      if (stream && e0 == 0) prefetch(block + kPrefetch + 1024);
      __m256i dot[kEightsAtOnce][kRows];
      for (auto& of_eight : dot) {
        for (auto& v : of_eight) v = _mm256_setzero_si256();
      }
#pragma GCC unroll 8
      for (int word = 0; word < 8; ++word) {  // word = 4 * (slot / 4) + lane
        const int t = word & 3;
        const std::byte* plane = block + word * 128;
        if (stream && e0 == 0) {  // line by line: a block's lines at once would wait for buffers
          prefetch(plane + kPrefetch);
          prefetch(plane + kPrefetch + 64);
        }
        __m256i w[kEightsAtOnce], magnitude[kEightsAtOnce];
        for (int e = 0; e < kEightsAtOnce; ++e) {
          w[e] = load(plane + ((e0 + e) ^ t) * 32);
          magnitude[e] = _mm256_abs_epi8(w[e]);
        }
        for (int r = 0; r < kRows; ++r) {
          const __m256i q = broadcast4(rows[r].codes + group * 32 + word * 4);
          for (int e = 0; e < kEightsAtOnce; ++e) {
            // |w| * (q with w's sign): two products of at most 128 * 127 fit 16 bits.
            const __m256i pairs = _mm256_maddubs_epi16(magnitude[e], _mm256_sign_epi8(q, w[e]));
            dot[e][r] = _mm256_add_epi32(dot[e][r], _mm256_madd_epi16(pairs, ones));
          }
        }
      }
      for (int e = 0; e < kEightsAtOnce; ++e) {
        const __m256 scale = _mm256_cvtph_ps(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 1024 + (e0 + e) * 16)));
        for (int r = 0; r < kRows; ++r) {
          acc[e][r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot[e][r]), scale),
                                      _mm256_set1_ps(rows[r].scales[group]), acc[e][r]);
        }
      }
    }
    for (int e = 0; e < kEightsAtOnce; ++e) {
      for (int r = 0; r < kRows; ++r) {
        float* total = totals[r] + (e0 + e) * 8;
        _mm256_store_ps(total, _mm256_add_ps(_mm256_load_ps(total), acc[e][r]));
      }
    }
  }
}

// The nibbles of 8 words as unsigned codes + 12, split by half: bytes 0..3 of a word are its
// columns.
void decode_nvfp4(__m256i w, __m256i& first, __m256i& second) {
  const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                         12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i odd_bytes = _mm256_set1_epi16(static_cast<short>(0xff00));
  // Byte i of a word holds slots 2i and 2i + 1; slots 0, 1, 4, 5 are the first half's columns.
  const __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(w, nibble));
  const __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble));
  first = _mm256_blendv_epi8(even, _mm256_slli_epi16(odd, 8), odd_bytes);
  second = _mm256_blendv_epi8(_mm256_srli_epi16(even, 8), odd, odd_bytes);
}

// A segment's codes, decoded once for many rows.
struct DecodedNvfp4 {
  alignas(64) std::byte codes[kSegmentGroups][4][kEights][2][32];  // [group][t][eight][half]
};
void decode_segment(const std::byte* blocks, int n_groups, DecodedNvfp4& to) {
  for (int group = 0; group < n_groups; ++group) {
    const std::byte* block = blocks + group * block_bytes(Format::nvfp4);
    for (int t = 0; t < 4; ++t) {
      for (int e = 0; e < kEights; ++e) {
        __m256i first, second;
        decode_nvfp4(load(block + t * 128 + (e ^ t) * 32), first, second);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes[group][t][e][0]), first);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes[group][t][e][1]), second);
      }
    }
  }
}

// One segment; `decoded` is null where few rows pass and the codes are decoded on the way. Codes
// are taken as unsigned (+12), and a half's 16-bit sums start from -12 times the sum of the row's
// codes: |start + sums| <= 16 * 12 * 127 at the end, and wrapping on the way does no harm.
template <int kRows, int kEightsAtOnce, bool kDecoded>
void nvfp4_segment(const std::byte* blocks, int n_groups, const IntegerRow* rows, float** totals,
                   bool stream, const DecodedNvfp4* decoded) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (int e0 = 0; e0 < kEights; e0 += kEightsAtOnce) {
    __m256 acc[kEightsAtOnce][kRows];
    for (auto& of_eight : acc) {
      for (auto& v : of_eight) v = _mm256_setzero_ps();
    }
    for (int group = 0; group < n_groups; ++group) {
      const std::byte* block = blocks + group * block_bytes(Format::nvfp4);
      if (stream && e0 == 0) prefetch_block<block_bytes(Format::nvfp4)>(block);
#pragma GCC unroll 4
      for (int i = 0; i < kEightsAtOnce; ++i) {
        const int e = e0 + i;
        __m256i dot[2][kRows];
        for (int r = 0; r < kRows; ++r) {
          for (int half = 0; half < 2; ++half) {
            dot[half][r] = _mm256_set1_epi32(rows[r].bias[group * 2 + half]);
          }
        }
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m256i w[2];
          if constexpr (kDecoded) {
            w[0] = load(decoded->codes[group][t][e][0]);
            w[1] = load(decoded->codes[group][t][e][1]);
          } else {
            decode_nvfp4(load(block + t * 128 + (e ^ t) * 32), w[0], w[1]);
          }
          for (int r = 0; r < kRows; ++r) {
            const std::int8_t* q = rows[r].codes + group * 32 + t * 4;
            for (int half = 0; half < 2; ++half) {
              dot[half][r] = _mm256_add_epi16(
                  dot[half][r], _mm256_maddubs_epi16(w[half], broadcast4(q + half * 16)));
            }
          }
        }
        // Scales lie as [row/4][half][row%4]: bring the first half's eight in front.
        const __m128i bytes = _mm_shuffle_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 512 + e * 16)), 0xd8);
        const __m256 scale0 = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
        const __m256 scale1 =
            _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_srli_si128(bytes, 8)), 7));
        for (int r = 0; r < kRows; ++r) {
          const __m256 dot0 = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[0][r], ones));
          const __m256 dot1 = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[1][r], ones));
          const __m256 both = _mm256_fmadd_ps(dot1, scale1, _mm256_mul_ps(dot0, scale0));
          acc[i][r] = _mm256_fmadd_ps(both, _mm256_set1_ps(rows[r].scales[group]), acc[i][r]);
        }
      }
    }
    for (int i = 0; i < kEightsAtOnce; ++i) {
      for (int r = 0; r < kRows; ++r) {
        float* total = totals[r] + (e0 + i) * 8;
        _mm256_store_ps(total, _mm256_add_ps(_mm256_load_ps(total), acc[i][r]));
      }
    }
  }
}

// Eight outputs' weights of two neighbouring columns. f16 and f32 come out in the order
// 0 1 4 5 2 3 6 7, which restore() undoes.
struct Bf16Pairs {
  static constexpr Format kFormat = Format::bf16;
  static void load_pair(const std::byte* at, __m256& first, __m256& second) {
    const __m256i w = load(at);
    first = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    second =
        _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static __m256 restore(__m256 v) { return v; }
};
struct InterleavedPairs {
  static void split(__m256 low, __m256 high, __m256& first, __m256& second) {
    first = _mm256_shuffle_ps(low, high, 0x88);
    second = _mm256_shuffle_ps(low, high, 0xdd);
  }
  static __m256 restore(__m256 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  }
};
struct F16Pairs : InterleavedPairs {
  static constexpr Format kFormat = Format::f16;
  static void load_pair(const std::byte* at, __m256& first, __m256& second) {
    const auto* halves = reinterpret_cast<const __m128i*>(at);
    split(_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)),
          first, second);
  }
};
struct F32Pairs : InterleavedPairs {
  static constexpr Format kFormat = Format::f32;
  static void load_pair(const std::byte* at, __m256& first, __m256& second) {
    const auto* floats = reinterpret_cast<const float*>(at);
    split(_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8), first, second);
  }
};

// One segment of a float format. kChains of the four chains and kEightsAtOnce of the eights walk
// together; a chain's columns are 8i + 2t and 8i + 2t + 1, ascending.
template <class Pairs, int kRows, int kChains, int kEightsAtOnce>
void float_segment(const std::byte* blocks, int n_groups, const float* const* rows, float** totals,
                   bool stream) {
  constexpr int kBlockBytes = block_bytes(Pairs::kFormat);
  constexpr int kStepBytes = kBlockBytes / 4;  // of 8 columns
  constexpr int kLaneBytes = kStepBytes / 4;   // of 2 columns
  for (int t0 = 0; t0 < 4; t0 += kChains) {
    for (int e0 = 0; e0 < kEights; e0 += kEightsAtOnce) {
      __m256 c[kChains][kEightsAtOnce][kRows];
      for (auto& of_chain : c) {
        for (auto& of_eight : of_chain) {
          for (auto& v : of_eight) v = _mm256_setzero_ps();
        }
      }
      for (int step = 0; step < n_groups * 4; ++step) {
        const std::byte* at = blocks + step * kStepBytes;
        if (stream && t0 == 0 && e0 == 0) {
          for (int line = 0; line < kStepBytes; line += 64) prefetch(at + kPrefetch + line);
        }
        for (int chain = 0; chain < kChains; ++chain) {
          const int t = t0 + chain;
          for (int e = 0; e < kEightsAtOnce; ++e) {
            __m256 first, second;
            Pairs::load_pair(at + t * kLaneBytes + ((e0 + e) ^ t) * (kLaneBytes / 4), first,
                             second);
            for (int r = 0; r < kRows; ++r) {
              const float* x = rows[r] + step * 8 + t * 2;
              __m256& v = c[chain][e][r];
              v = _mm256_fmadd_ps(first, _mm256_broadcast_ss(x), v);
              v = _mm256_fmadd_ps(second, _mm256_broadcast_ss(x + 1), v);
            }
          }
        }
      }
      for (int e = 0; e < kEightsAtOnce; ++e) {
        for (int r = 0; r < kRows; ++r) {
          float* at = totals[r] + (e0 + e) * 8;
          __m256 total = _mm256_load_ps(at);
          for (int chain = 0; chain < kChains; ++chain) {
            total = _mm256_add_ps(total, Pairs::restore(c[chain][e][r]));
          }
          _mm256_store_ps(at, total);
        }
      }
    }
  }
}

// Walks a tile: segments outside, rows by fours inside, so that a segment's blocks stay hot.
template <class Kernel>
void walk(const TileWork& work) {
  for (int i = 0; i < work.n_rows * kTileRows; i += 8) {
    _mm256_store_ps(work.totals + i, _mm256_setzero_ps());
  }
  const int n_groups_of_row = work.x->n_groups;
  for (int first = 0; first < n_groups_of_row; first += kSegmentGroups) {
    const int left = n_groups_of_row - first;
    const int n = left < kSegmentGroups ? left : kSegmentGroups;
    const Kernel kernel(work, first, n);
    int row = 0;
    for (; row + 4 <= work.n_rows; row += 4) kernel.template rows<4>(row);
    switch (work.n_rows - row) {
      case 3:
        kernel.template rows<3>(row);
        break;
      case 2:
        kernel.template rows<2>(row);
        break;
      case 1:
        kernel.template rows<1>(row);
        break;
      default:
        break;
    }
  }
}

// A segment of a tile: groups [first, first + n).
struct TileSegment {
  const TileWork& work;
  int first, n;

  TileSegment(const TileWork& w, int first_group, int n_groups)
      : work(w), first(first_group), n(n_groups) {}
  const std::byte* blocks(Format format) const {
    return work.blocks + static_cast<std::ptrdiff_t>(first) * block_bytes(format);
  }
  std::int64_t group_index(int row) const { return work.x->group_index(work.rows[row], first); }
  float* totals(int row) const { return work.totals + row * kTileRows; }
};

struct Q8Kernel : TileSegment {
  using TileSegment::TileSegment;

  template <int kRows>
  void rows(int row) const {
    IntegerRow of[kRows];
    float* to[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = group_index(row + r);
      of[r] = {work.x->slots + at * kGroupCols, work.x->scales + at, nullptr};
      to[r] = totals(row + r);
    }
    q8_segment<kRows, kRows == 1 ? 4 : 2>(blocks(Format::q8), n, of, to, row == 0);
  }
};

struct Nvfp4Kernel : TileSegment {
  static constexpr int kManyRows = 8;  // from here on decoding once pays
  DecodedNvfp4 decoded;

  Nvfp4Kernel(const TileWork& w, int first_group, int n_groups)
      : TileSegment(w, first_group, n_groups) {
    if (w.n_rows >= kManyRows) decode_segment(blocks(Format::nvfp4), n, decoded);
  }
  template <int kRows>
  void rows(int row) const {
    IntegerRow of[kRows];
    float* to[kRows];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t at = group_index(row + r);
      of[r] = {work.x->codes + at * kGroupCols, work.x->scales + at, work.x->nvfp4_bias16 + at * 2};
      to[r] = totals(row + r);
    }
    if (work.n_rows >= kManyRows) {
      nvfp4_segment<kRows, 1, true>(blocks(Format::nvfp4), n, of, to, row == 0, &decoded);
    } else {
      nvfp4_segment<kRows, kRows == 1 ? 4 : 1, false>(blocks(Format::nvfp4), n, of, to, row == 0,
                                                      nullptr);
    }
  }
};

template <class Pairs>
struct FloatKernel : TileSegment {
  using TileSegment::TileSegment;

  template <int kRows>
  void rows(int row) const {
    const float* of[kRows];
    float* to[kRows];
    for (int r = 0; r < kRows; ++r) {
      of[r] = work.x->x + work.rows[row + r] * work.x->x_stride + first * kGroupCols;
      to[r] = totals(row + r);
    }
    float_segment<Pairs, kRows, kRows == 1 ? 2 : 1,
                  kRows == 1   ? 4
                  : kRows == 2 ? 4
                               : 2>(blocks(Pairs::kFormat), n, of, to, row == 0);
  }
};

void add_scaled(float w, const float* x, int n, float* y) {
  const __m256 factor = _mm256_set1_ps(w);
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i,
                     _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
  for (; i < n; ++i) y[i] = __builtin_fmaf(w, x[i], y[i]);
}

}  // namespace

const LinearKernels kLinearAvx2 = {walk<FloatKernel<F32Pairs>>,
                                   walk<FloatKernel<Bf16Pairs>>,
                                   walk<FloatKernel<F16Pairs>>,
                                   walk<Q8Kernel>,
                                   walk<Nvfp4Kernel>,
                                   block_kernel_avx2,
                                   add_scaled};

}  // namespace bolt
