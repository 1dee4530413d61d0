// AVX2 (FMA, F16C) forms of fp8 and of GGUF's blocks, equal in bits to linear_definition.inc. A
// vector holds eight outputs.
#include <immintrin.h>

#include "core/ops/linear_kernels.h"
#include "core/pack/block_values.h"

namespace bolt {

namespace {

constexpr bool kSignedTables = true;

// One decoded segment of `n` groups against kRows rows; adds to their totals.
template <Format kFormat, int kRows>
void block_segment(const struct DecodedSegment& decoded, int n, const struct BlockRow* rows);

#include "core/ops/x86/linear_blocks_vec.inc"

template <Format kFormat, int kRows>
void block_segment(const DecodedSegment& decoded, int n, const BlockRow* rows) {
  constexpr bool kHalves = has_half_scales(kFormat), kOffset = has_offset(kFormat);
  constexpr int kDots = kHalves ? 2 : 1;
  const __m256i ones = _mm256_set1_epi16(1);
  for (int e = 0; e < kEights; ++e) {
    __m256 acc[kRows];
    for (auto& v : acc) v = _mm256_setzero_ps();
    for (int g = 0; g < n; ++g) {
      __m256i dot[kDots][kRows];
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t* sums = rows[r].sums + 2 * g;
        if constexpr (kHalves) {
          for (int h = 0; h < 2; ++h) dot[h][r] = _mm256_set1_epi32(-bias_of(kFormat) * sums[h]);
        } else {
          dot[0][r] = _mm256_set1_epi32(-bias_of(kFormat) * (sums[0] + sums[1]));
        }
      }
      for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const __m256i w =
              _mm256_load_si256(reinterpret_cast<const __m256i*>(&decoded.codes[g][h][t][e * 32]));
          const __m256i magnitude = is_iq4(kFormat) ? _mm256_abs_epi8(w) : w;
          for (int r = 0; r < kRows; ++r) {
            __m256i q = _mm256_set1_epi32(load4(rows[r].codes + g * 32 + h * 16 + t * 4));
            // |w| * (q with w's sign): two products of at most 127 * 127 fit 16 bits.
            if constexpr (is_iq4(kFormat)) q = _mm256_sign_epi8(q, w);
            __m256i& to = dot[kHalves ? h : 0][r];
            to = _mm256_add_epi32(to, _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones));
          }
        }
      }
      const auto scale = [&](int i) { return _mm256_load_ps(&decoded.scale[g][i][e * 8]); };
      for (int r = 0; r < kRows; ++r) {
        const std::int32_t* sums = rows[r].sums + 2 * g;
        const auto sum_of = [&](std::int32_t s) { return _mm256_set1_ps(static_cast<float>(s)); };
        __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[0][r]), scale(0));
        if constexpr (kHalves) {
          product = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[kDots - 1][r]), scale(1), product);
          if constexpr (kOffset) {
            const __m256 u = _mm256_fmadd_ps(sum_of(sums[1]), scale(3),
                                             _mm256_mul_ps(sum_of(sums[0]), scale(2)));
            product = _mm256_add_ps(product, u);
          }
        } else if constexpr (kOffset) {
          product = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[0][r]), scale(0),
                                    _mm256_mul_ps(scale(2), sum_of(sums[0] + sums[1])));
        }
        acc[r] = _mm256_fmadd_ps(product, _mm256_set1_ps(rows[r].scales[g]), acc[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float* total = rows[r].totals + e * 8;
      _mm256_store_ps(total, _mm256_add_ps(_mm256_load_ps(total), acc[r]));
    }
  }
}

}  // namespace

TileKernel block_kernel_avx2(Format format) { return kernel_of(format); }

}  // namespace bolt
