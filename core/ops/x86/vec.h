// Vectors of floats and int32 of the width this file is compiled for: 16 lanes with AVX-512, else 8
// with AVX2 and FMA. Kernels written on them serve both.
//
// Only files whose name ends in _avx2.cpp or _avx512.cpp include this, inside namespace bolt and an
// unnamed namespace of their own, after <immintrin.h>: no function here may be shared by the linker
// between instruction sets. Each operation is one instruction with IEEE rounding.

// Before a loop of a few steps known at compile time whose sums must stay in registers.
#define BOLT_UNROLL _Pragma("GCC unroll 8")

#ifdef __AVX512F__

using F = __m512;
using I = __m512i;
using Mask = __mmask16;
constexpr int kLanes = 16;

inline F splat(float x) { return _mm512_set1_ps(x); }
inline I splat(int x) { return _mm512_set1_epi32(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline I load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline void store(std::int32_t* p, I x) { _mm512_storeu_si512(p, x); }
inline Mask first_lanes(int n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }
inline F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_first(float* p, int n, F x) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
inline F min(F a, F b) { return _mm512_min_ps(a, b); }  // a < b ? a : b
inline F ceil(F a) { return _mm512_roundscale_ps(a, 0x0A); }
inline Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask less_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline Mask equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Mask less(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
inline Mask not_mask(Mask m) { return static_cast<Mask>(~m); }
inline unsigned lane_bits(Mask m) { return m; }
inline F select(Mask m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }  // m ? a : b
inline F zero_unless(Mask m, F a) { return _mm512_maskz_mov_ps(m, a); }
inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
inline I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
template <int n>
inline I shift_left(I a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
inline I shift_right(I a) {  // keeps the sign
  return _mm512_srai_epi32(a, n);
}
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }  // rounded to nearest even
inline I to_int(F a) { return _mm512_cvtps_epi32(a); }    // rounded to nearest even
inline I bits(F a) { return _mm512_castps_si512(a); }
inline F from_bits(I a) { return _mm512_castsi512_ps(a); }
inline __m256 halves_sum(F a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

#else

using F = __m256;
using I = __m256i;
using Mask = __m256;  // all ones or zeros a lane
constexpr int kLanes = 8;

inline F splat(float x) { return _mm256_set1_ps(x); }
inline I splat(int x) { return _mm256_set1_epi32(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline I load(const std::int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void store(std::int32_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline I first_lanes_bits(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Mask first_lanes(int n) { return _mm256_castsi256_ps(first_lanes_bits(n)); }
inline F load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes_bits(n)); }
inline void store_first(float* p, int n, F x) { _mm256_maskstore_ps(p, first_lanes_bits(n), x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }  // a > b ? a : b
inline F min(F a, F b) { return _mm256_min_ps(a, b); }  // a < b ? a : b
inline F ceil(F a) { return _mm256_ceil_ps(a); }
inline Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Mask less_equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
inline Mask equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
inline Mask is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Mask less(I a, I b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)); }
inline Mask not_mask(Mask m) {
  return _mm256_xor_ps(m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
inline unsigned lane_bits(Mask m) { return static_cast<unsigned>(_mm256_movemask_ps(m)); }
inline F select(Mask m, F a, F b) { return _mm256_blendv_ps(b, a, m); }  // m ? a : b
inline F zero_unless(Mask m, F a) { return _mm256_and_ps(m, a); }
inline I add(I a, I b) { return _mm256_add_epi32(a, b); }
inline I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
inline I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
inline I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
template <int n>
inline I shift_left(I a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
inline I shift_right(I a) {  // keeps the sign
  return _mm256_srai_epi32(a, n);
}
inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }  // rounded to nearest even
inline I to_int(F a) { return _mm256_cvtps_epi32(a); }    // rounded to nearest even
inline I bits(F a) { return _mm256_castps_si256(a); }
inline F from_bits(I a) { return _mm256_castsi256_ps(a); }
inline __m256 halves_sum(F a) { return a; }

#endif

// The contract's tree over the lanes: c[l] = c[l] + c[l + m] for m = half, ..., 1.
inline float tree(F a) {
  const __m256 eight = halves_sum(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// The tree over 64 chains, chain k in lane k mod kLanes of vector k / kLanes. Overwrites them.
inline float tree_of_64(F* chains) {
  for (int half = 64 / kLanes / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) chains[i] = add(chains[i], chains[i + half]);
  }
  return tree(chains[0]);
}
inline float largest_lane(F a) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}
