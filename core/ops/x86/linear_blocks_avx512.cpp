// AVX-512 (VNNI) forms of fp8 and of GGUF's blocks, equal in bits to linear_definition.inc. A
// vector holds sixteen outputs; decoding and fp8 take eight.
#include <immintrin.h>

#include "core/ops/linear_kernels.h"
#include "core/pack/block_values.h"

namespace bolt {

namespace {

constexpr bool kSignedTables = false;  // VNNI sums unsigned bytes in 32 bits

// One decoded segment of `n` groups against kRows rows; adds to their totals.
template <Format kFormat, int kRows>
void block_segment(const struct DecodedSegment& decoded, int n, const struct BlockRow* rows);

#include "core/ops/x86/linear_blocks_vec.inc"

template <Format kFormat, int kRows>
void block_segment(const DecodedSegment& decoded, int n, const BlockRow* rows) {
  constexpr bool kHalves = has_half_scales(kFormat), kOffset = has_offset(kFormat);
  constexpr int kDots = kHalves ? 2 : 1;
  for (int s = 0; s < 2; ++s) {
    __m512 acc[kRows];
    for (auto& v : acc) v = _mm512_setzero_ps();
    for (int g = 0; g < n; ++g) {
      __m512i dot[kDots][kRows];
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t* sums = rows[r].sums + 2 * g;
        if constexpr (kHalves) {
          for (int h = 0; h < 2; ++h) dot[h][r] = _mm512_set1_epi32(-bias_of(kFormat) * sums[h]);
        } else {
          dot[0][r] = _mm512_set1_epi32(-bias_of(kFormat) * (sums[0] + sums[1]));
        }
      }
      for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const __m512i w = _mm512_load_si512(&decoded.codes[g][h][t][s * 64]);
          for (int r = 0; r < kRows; ++r) {
            const __m512i q = _mm512_set1_epi32(load4(rows[r].codes + g * 32 + h * 16 + t * 4));
            __m512i& to = dot[kHalves ? h : 0][r];
            to = _mm512_dpbusd_epi32(to, w, q);
          }
        }
      }
      const auto scale = [&](int i) { return _mm512_load_ps(&decoded.scale[g][i][s * 16]); };
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t* sums = rows[r].sums + 2 * g;
        const auto sum_of = [&](std::int32_t of) { return _mm512_set1_ps(static_cast<float>(of)); };
        __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[0][r]), scale(0));
        if constexpr (kHalves) {
          product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[kDots - 1][r]), scale(1), product);
          if constexpr (kOffset) {
            const __m512 u = _mm512_fmadd_ps(sum_of(sums[1]), scale(3),
                                             _mm512_mul_ps(sum_of(sums[0]), scale(2)));
            product = _mm512_add_ps(product, u);
          }
        } else if constexpr (kOffset) {
          product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[0][r]), scale(0),
                                    _mm512_mul_ps(scale(2), sum_of(sums[0] + sums[1])));
        }
        acc[r] = _mm512_fmadd_ps(product, _mm512_set1_ps(rows[r].scales[g]), acc[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float* total = rows[r].totals + s * 16;
      _mm512_store_ps(total, _mm512_add_ps(_mm512_load_ps(total), acc[r]));
    }
  }
}

}  // namespace

TileKernel block_kernel_avx512(Format format) { return kernel_of(format); }

}  // namespace bolt
