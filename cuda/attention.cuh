// Integer attention on the device (arithmetic.md §7): the layout of a page, arguments, launchers.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/ops.h"
#include "cuda/batch.cuh"
#include "cuda/quantize.cuh"

namespace bolt::cuda {

// Byte offsets inside one (page, kv head): 32-bit words of four dims (K) or four keys (V).
//   K  [plane h, l][dim / 4][key]     V  [plane h, l][key / 4][dim]
//   f32 2^ek [key], ev [key], 2^-ev [key]
struct PageLayout {
  int words = 0;  // of a key's codes: head_dim / 4, rounded up

  __host__ __device__ int dims() const { return words * 4; }
  __host__ __device__ int plane_words() const { return words * kPageKeys; }
  __host__ __device__ int k_word(int plane, int word, int key) const {
    return (plane * words + word) * kPageKeys + key;
  }
  __host__ __device__ int v_word(int plane, int key4, int dim) const {
    return 2 * plane_words() + (plane * (kPageKeys / 4) + key4) * dims() + dim;
  }
  __host__ __device__ int scale_word(int which, int key) const {
    return 4 * plane_words() + which * kPageKeys + key;
  }
  __host__ __device__ std::int64_t bytes() const {
    return (4 * static_cast<std::int64_t>(plane_words()) + 3 * kPageKeys) * 4;
  }
};

struct AttentionArgs {
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, n_rows = 0;
  float c = 0.0f;  // RN(log2(e) / sqrt(head_dim))
  PageLayout layout;
  BatchView batch;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  std::uint32_t* pages = nullptr;    // [page][kv head][layout words]
  std::uint32_t* q_codes = nullptr;  // [row][head][plane][words]
  float* q_scale = nullptr;          // [row][head], c * 2^(eq + 8)
  float* partial = nullptr;          // [row - row0][head][unit][head_dim + 2]: m, l, o
  int tiles_a_unit = 1, max_units = 0, row0 = 0;
  int max_segment_rows = 0;  // rows of the longest segment; 0: unknown
  QuantOut quantised;        // y quantised, too; then head_dim is a multiple of 32
};

// From so many rows of a sequence, or tiles of context, on attention_many.cu takes the tiles.
inline constexpr int kManyRows = 4, kManyTiles = 64;

// Quantises k and v into the pages; with `queries`, q too.
void launch_put(const AttentionArgs& args, bool queries, cudaStream_t stream);
// Rows [row0, row0 + n) of the call: tiles, then their merge.
void launch_attend(const AttentionArgs& args, int n, cudaStream_t stream);
// The tiles for many rows of a sequence. False, and nothing launched, if the shape does not fit.
bool launch_attend_many(const AttentionArgs& args, int n, cudaStream_t stream);

}  // namespace bolt::cuda
