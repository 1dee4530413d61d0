// Attention over one tile of 128 absolute keys: what each kind of cache and each instruction set
// provides. How a call's rows and tiles are cut and merged is attention.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/cpu.h"
#include "core/ops/kv_cache.h"

namespace bolt {

// Query vectors (rows times heads of one kv head, by row) against one tile.
struct TileArgs {
  const KvLayout* layout = nullptr;
  const std::byte* base = nullptr;  // the (page, kv head)
  int n_queries = 0;
  const int* n_visible = nullptr;  // [n_queries] keys of the tile at or before the query: 1..128
  // i16: planes h and l of the query's codes, [n_queries, 2 dim_pairs]; factor RN(c * 2^(eq+8)).
  // f32: the scaled query, [n_queries, head_dim].
  const std::int16_t *qh = nullptr, *ql = nullptr;
  const float* factor = nullptr;
  const float* q = nullptr;
  // Results: [n_queries] maxima and sums, [n_queries, v_dims] sums over values.
  float *m = nullptr, *l = nullptr, *o = nullptr;
  std::uint8_t* marked = nullptr;  // [n_queries], set where a maximum is out of range
  std::byte* scratch = nullptr;    // kTileScratchBytes, 64-byte aligned
};
// The sums of four queries and 128 keys, and both planes of their probabilities.
inline constexpr std::size_t kTileScratchBytes = 4 * kPageKeys * 8;

struct AttentionKernels {
  void (*tile)(const TileArgs& args);
  // (M, L, O) = (M, L, O) joined with the later (m, l, o), over n dims.
  void (*merge)(int n, float* M, float* L, float* O, float m, float l, const float* o);
};

extern const AttentionKernels kAttentionPortable, kAttentionFma, kAttentionAvx2, kAttentionAvx512;
extern const AttentionKernels kAttentionF32Portable, kAttentionF32Fma, kAttentionF32Avx2,
    kAttentionF32Avx512;
const AttentionKernels& attention_kernels_for(KvKind kind, Isa isa);

// |m| at and past it marks a row: exp2_below needs scores inside +-2^22.
inline constexpr float kScoreLimit = 0x1p21f;

}  // namespace bolt
