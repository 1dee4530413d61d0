// Kernels of separate drafters (core/ops/block_draft.h). Norms, rotations and gates round as the
// host's do; attention sums in another order, always the same.
#include <algorithm>

#include "core/ops/rope_angle.h"
#include "cuda/block_draft.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

constexpr int kHeadMax = 256;    // of head_dim
constexpr int kHeadsAtOnce = 8;  // query heads that share a reading of their keys
constexpr int kThreads = kPageKeys;

BOLT_DEV float widen(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
BOLT_DEV std::uint16_t narrow(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
BOLT_DEV float canonical_nan(float x) { return x != x ? __uint_as_float(kExactNan) : x; }

__global__ void __launch_bounds__(256)
    round_rows(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride, int n_cols) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n_cols) y[blockIdx.y * y_stride + i] = widen(narrow(x[blockIdx.y * x_stride + i]));
}

__global__ void __launch_bounds__(256) replace_rows(const int* ids, int id, const float* row,
                                                    float* x, std::int64_t stride, int n_cols) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (ids[blockIdx.x] != id) return;
  for (int i = threadIdx.x; i < n_cols; i += blockDim.x) x[blockIdx.x * stride + i] = row[i];
}

// A warp: rope(rmsnorm(x, w), position) of one head into `to` (shared, [head_dim]); false if its
// sum of squares is not finite. The norm's 64 chains are rows.cu's, two a lane.
BOLT_DEV bool norm_and_turn(const float* x, const float* w, const RopeTable& rope, float eps,
                            int position, float* to, int lane) {
  const int dim = rope.head_dim, half = dim / 2;
  float chain[2] = {0.0f, 0.0f};
  for (int i = lane; i < dim; i += 64) {
    chain[0] = fma_rn(x[i], x[i], chain[0]);
    if (i + 32 < dim) chain[1] = fma_rn(x[i + 32], x[i + 32], chain[1]);
  }
  float c = add_rn(chain[0], chain[1]);
#pragma unroll
  for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
  const float r = exact_rsqrt(add_rn(__fdiv_rn(c, static_cast<float>(dim)), eps));
  for (int i = lane; i < half; i += 32) {
    float sine, cosine;
    rope_angle(mul_rn(static_cast<float>(position), rope.inv_freq[i]), &sine, &cosine);
    sine = mul_rn(sine, rope.magnitude), cosine = mul_rn(cosine, rope.magnitude);
    const float low = mul_rn(mul_rn(x[i], r), w[i]);
    const float high = mul_rn(mul_rn(x[i + half], r), w[i + half]);
    to[i] = add_rn(mul_rn(low, cosine), -mul_rn(high, sine));
    to[i + half] = add_rn(mul_rn(high, cosine), mul_rn(low, sine));
  }
  __syncwarp();
  return finite(c);
}

// Block = one row, warp = one head at a time.
__global__ void __launch_bounds__(256)
    rope_heads(RopeArgs a, float* q, std::int64_t q_stride, int n_q, const float* q_norm, float* k,
               std::int64_t k_stride, int n_k, const float* k_norm) {
  __shared__ float turned[8][kHeadMax];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = a.rope.head_dim;
  const int row = blockIdx.x, position = place_of(a.batch, a.first_row + row).position;
  for (int head = warp; head < n_q + n_k; head += 8) {
    const bool is_q = head < n_q;
    float* const x =
        is_q ? q + row * q_stride + head * dim : k + row * k_stride + (head - n_q) * dim;
    if (!norm_and_turn(x, is_q ? q_norm : k_norm, a.rope, a.eps, position, turned[warp], lane) &&
        lane == 0) {
      a.marked[row] = 1;
    }
    for (int i = lane; i < dim; i += 32) x[i] = turned[warp][i];
    __syncwarp();
  }
}

BOLT_DEV std::int64_t cell_of(const BatchView& batch, const SegmentView& s, int ring_tiles,
                              int position) {
  const int tile = position / kPageKeys;
  const std::int64_t page = ring_tiles > 0
                                ? static_cast<std::int64_t>(s.slot) * ring_tiles + tile % ring_tiles
                                : batch.pages[s.first_page + tile];
  return page * kPageKeys + position % kPageKeys;
}

// Block = one row, warp = one kv head of one layer at a time.
__global__ void __launch_bounds__(256)
    put_context_rows(RopeArgs a, const float* k_norms, BlockCache cache, const float* kv,
                     std::int64_t kv_stride) {
  __shared__ float turned[8][kHeadMax];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = a.rope.head_dim;
  const RowPlace place = place_of(a.batch, a.first_row + blockIdx.x);
  if (!place.live) return;
  const std::int64_t cell = cell_of(a.batch, *place.segment, cache.ring_tiles, place.position);
  const int n_heads = cache.n_cols / dim;
  for (int item = warp; item < cache.n_layers * n_heads; item += 8) {
    const int layer = item / n_heads, first = item % n_heads * dim;
    const float* const k = kv + blockIdx.x * kv_stride + 2 * layer * cache.n_cols + first;
    if (!norm_and_turn(k, k_norms + layer * dim, a.rope, a.eps, place.position, turned[warp],
                       lane) &&
        lane == 0) {
      a.marked[blockIdx.x] = 1;
    }
    const std::int64_t at = (layer * cache.n_cells + cell) * cache.n_cols + first;
    for (int i = lane; i < dim; i += 32) {
      cache.keys[at + i] = narrow(turned[warp][i]);
      cache.values[at + i] = narrow(k[cache.n_cols + i]);
    }
    __syncwarp();
  }
}

// One key against several queries [kHeadsAtOnce][kHeadMax] in shared memory.
BOLT_DEV void dot_key(const std::uint16_t* key, const float (*q)[kHeadMax], int dim,
                      float (&score)[kHeadsAtOnce]) {
  if (dim % 8 == 0) {
    for (int d = 0; d < dim; d += 8) {
      const uint4 words = *reinterpret_cast<const uint4*>(key + d);
      const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = __uint_as_float(w[i] << 16), high = __uint_as_float(w[i] & 0xffff0000u);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          score[h] = fma_rn(q[h][d + 2 * i], low, score[h]);
          score[h] = fma_rn(q[h][d + 2 * i + 1], high, score[h]);
        }
      }
    }
    return;
  }
  for (int d = 0; d < dim; ++d) {
    const float k = widen(key[d]);
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) score[h] = fma_rn(q[h][d], k, score[h]);
  }
}
BOLT_DEV void dot_key(const float* key, const float (*q)[kHeadMax], int dim,
                      float (&score)[kHeadsAtOnce]) {
  for (int d = 0; d < dim; ++d) {
    const float k = key[d];
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) score[h] = fma_rn(q[h][d], k, score[h]);
  }
}

// Grid (units, rows, kv heads x runs of kHeadsAtOnce query heads); thread = a key of a tile, then
// columns d and d + 128.
__global__ void __launch_bounds__(kThreads) attend_unit(BlockAttentionArgs a) {
  __shared__ float q[kHeadsAtOnce][kHeadMax];
  __shared__ float weights[kHeadsAtOnce][kPageKeys];
  __shared__ float of_warp[kThreads / 32][kHeadsAtOnce];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const BlockShape& shape = a.shape;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, dim = shape.head_dim;
  const int heads_of_kv = shape.n_heads / shape.n_kv_heads;
  const int n_runs = (heads_of_kv + kHeadsAtOnce - 1) / kHeadsAtOnce;
  const int unit = blockIdx.x, row = blockIdx.y, kv_head = blockIdx.z / n_runs;
  const int first_head = kv_head * heads_of_kv + blockIdx.z % n_runs * kHeadsAtOnce;
  const int n_heads = min(kHeadsAtOnce, (kv_head + 1) * heads_of_kv - first_head);
  const int column = kv_head * dim;
  const SegmentView s = a.batch.segments[a.batch.row_segment[row]];
  const int position = s.first_position + row - s.first_row;
  const int first = shape.window > 0 ? max(s.first_key, position - shape.window + 1) : s.first_key;
  const bool is_own = unit == a.n_units;
  const int n_own = shape.is_causal ? row - s.first_row + 1 : s.n_live;

  for (int h = 0; h < kHeadsAtOnce; ++h) {
    for (int d = t; d < dim; d += kThreads) {
      q[h][d] = h < n_heads ? a.q[row * a.q_stride + (first_head + h) * dim + d] : 0.0f;
    }
  }
  float largest[kHeadsAtOnce], total[kHeadsAtOnce], sum[kHeadsAtOnce][kHeadMax / kThreads] = {};
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) largest[h] = -INFINITY, total[h] = 0.0f;
  const float scale = exact_rsqrt(static_cast<float>(dim));
  const int first_tile = first / kPageKeys + unit * a.tiles_a_unit;
  const int last_tile = is_own ? first_tile + 1 : first_tile + a.tiles_a_unit;
  __syncthreads();

  for (int tile = first_tile; tile < last_tile; ++tile) {
    // Keys [low, high) of the tile, or of the block.
    const int low = is_own ? 0 : max(first - tile * kPageKeys, 0);
    const int high = is_own ? n_own : min(s.first_position - tile * kPageKeys, kPageKeys);
    if (low >= high) break;
    const std::int64_t cells =
        is_own ? 0 : cell_of(a.batch, s, a.ring_tiles, tile * kPageKeys) * a.n_cols + column;
    const float* const own = a.kv + s.first_row * a.kv_stride + column;
    const bool is_key = t >= low && t < high;
    float score[kHeadsAtOnce] = {};
    if (is_key) {
      if (is_own) {
        dot_key(own + t * a.kv_stride, q, dim, score);
      } else {
        dot_key(a.keys + cells + static_cast<std::int64_t>(t) * a.n_cols, q, dim, score);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      score[h] = is_key ? mul_rn(score[h], scale) : -INFINITY;
      const float m = warp_max(score[h]);
      if (lane == 0) of_warp[warp][h] = m;
    }
    __syncthreads();
    float shrink[kHeadsAtOnce];
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      float m = largest[h];
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) m = fmaxf(m, of_warp[w][h]);
      // Scores of NaN alone: any number will do, the sum is NaN.
      if (m == -INFINITY) m = 0.0f;
      shrink[h] = exact_exp(add_rn(largest[h], -m));
      largest[h] = m;
      weights[h][t] = is_key ? exact_exp(add_rn(score[h], -m)) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      float part = weights[h][t];
#pragma unroll
      for (int m = 16; m; m >>= 1) part = add_rn(part, __shfl_xor_sync(kFullWarp, part, m));
      if (lane == 0) of_warp[warp][h] = part;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      float part = of_warp[0][h];
#pragma unroll
      for (int w = 1; w < kThreads / 32; ++w) part = add_rn(part, of_warp[w][h]);
      total[h] = fma_rn(total[h], shrink[h], part);
#pragma unroll
      for (int j = 0; j < kHeadMax / kThreads; ++j) sum[h][j] = mul_rn(sum[h][j], shrink[h]);
    }
#pragma unroll
    for (int j = 0; j < kHeadMax / kThreads; ++j) {
      const int d = t + j * kThreads;
      if (d >= dim) continue;
#pragma unroll 4
      for (int key = low; key < high; ++key) {
        const float v =
            is_own ? own[key * a.kv_stride + a.n_cols + d]
                   : widen(a.values[cells + static_cast<std::int64_t>(key) * a.n_cols + d]);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) sum[h][j] = fma_rn(weights[h][key], v, sum[h][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    if (h >= n_heads) continue;
    float* const to =
        a.partial +
        ((static_cast<std::int64_t>(row) * shape.n_heads + first_head + h) * (a.n_units + 1) +
         unit) *
            (dim + 2);
    if (t == 0) to[0] = largest[h], to[1] = total[h];
#pragma unroll
    for (int j = 0; j < kHeadMax / kThreads; ++j) {
      const int d = t + j * kThreads;
      if (d < dim) to[2 + d] = sum[h][j];
    }
  }
}

// Grid (rows, heads).
__global__ void __launch_bounds__(kThreads) join_units(BlockAttentionArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int row = blockIdx.x, head = blockIdx.y, dim = a.shape.head_dim, n = a.n_units + 1;
  const float* const from =
      a.partial + (static_cast<std::int64_t>(row) * a.shape.n_heads + head) * n * (dim + 2);
  const float sink = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
  float largest = sink;
  for (int u = 0; u < n; ++u) {
    // A unit without keys holds -Inf and 0; one without a number has a NaN sum.
    if (from[u * (dim + 2) + 1] != 0.0f) largest = fmaxf(largest, from[u * (dim + 2)]);
  }
  float total = a.sinks != nullptr ? exact_exp(add_rn(sink, -largest)) : 0.0f;
  float sum[kHeadMax / kThreads] = {};
  for (int u = 0; u < n; ++u) {
    const float* const part = from + u * (dim + 2);
    if (part[1] == 0.0f) continue;
    const float w = exact_exp(add_rn(part[0], -largest));
    total = fma_rn(part[1], w, total);
#pragma unroll
    for (int j = 0; j < kHeadMax / kThreads; ++j) {
      const int d = threadIdx.x + j * kThreads;
      if (d < dim) sum[j] = fma_rn(part[2 + d], w, sum[j]);
    }
  }
  if (threadIdx.x == 0 && !finite(total)) a.marked[row] = 1;
#pragma unroll
  for (int j = 0; j < kHeadMax / kThreads; ++j) {
    const int d = threadIdx.x + j * kThreads;
    if (d < dim) {
      a.y[row * a.y_stride + head * dim + d] = canonical_nan(__fdiv_rn(sum[j], total));
    }
  }
}

// Warp = one group of 32 columns of one row.
__global__ void __launch_bounds__(256)
    gate_rows(const float* gate, std::int64_t gate_stride, const float* up, std::int64_t up_stride,
              float* y, std::int64_t y_stride, int n_cols, QuantOut quantised) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31, group = blockIdx.x * 8 + (threadIdx.x >> 5);
  const int column = group * kGroupCols + lane, row = blockIdx.y;
  if (group * kGroupCols >= n_cols) return;
  float value = 0.0f;
  if (column < n_cols) {
    value = canonical_nan(
        mul_rn(exact_silu(gate[row * gate_stride + column]), up[row * up_stride + column]));
    y[row * y_stride + column] = value;
  }
  if (quantised.slots != nullptr) quantised.put(value, row, group, lane);
}

// Thread = one sequence.
__global__ void __launch_bounds__(32) block_step(BlockSteps a, int step) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int s = threadIdx.x;
  if (s >= a.n_sequences) return;
  a.marks[s] = 0;
  if (step == 0) {
    a.previous[s] = a.ids[s * a.block_rows];
    return;
  }
  Sampled* const drafts = a.drafts + s * a.n_drafts;
  Sampled draft = a.chosen[s];
  if (a.marked[s * a.block_rows + step] != 0 || (step > 1 && drafts[step - 2].id < 0)) {
    draft.id = -1, draft.probability = 0.0f;
  }
  drafts[step - 1] = a.drafts_out[s * a.n_drafts + step - 1] = draft;
  a.previous[s] = max(0, draft.id);
  ++a.specs[s].position;
}

dim3 grid_of(int n_cols, int threads, int n_rows) {
  return {static_cast<unsigned>((n_cols + threads - 1) / threads), static_cast<unsigned>(n_rows)};
}

}  // namespace

void launch_round_bf16(Rows<const float> x, Rows<float> y, cudaStream_t stream) {
  launch(round_rows, grid_of(y.n_cols, 256, y.n_rows), dim3(256), 0, stream, x.data, x.stride,
         y.data, y.stride, y.n_cols);
}

void launch_replace(const int* ids, int id, const float* row, Rows<float> x, cudaStream_t stream) {
  launch(replace_rows, dim3(static_cast<unsigned>(x.n_rows)), dim3(256), 0, stream, ids, id, row,
         x.data, x.stride, x.n_cols);
}

void launch_rope_heads(const RopeArgs& a, Rows<float> q, const float* q_norm, Rows<float> k,
                       const float* k_norm, cudaStream_t stream) {
  launch(rope_heads, dim3(static_cast<unsigned>(a.n_rows)), dim3(256), 0, stream, a, q.data,
         q.stride, q.n_cols / a.rope.head_dim, q_norm, k.data, k.stride, k.n_cols / a.rope.head_dim,
         k_norm);
}

void launch_put_context(const RopeArgs& a, const float* k_norms, const BlockCache& cache,
                        Rows<const float> kv, cudaStream_t stream) {
  launch(put_context_rows, dim3(static_cast<unsigned>(a.n_rows)), dim3(256), 0, stream, a, k_norms,
         cache, kv.data, kv.stride);
}

void launch_block_attention(const BlockAttentionArgs& a, cudaStream_t stream) {
  const int heads_of_kv = a.shape.n_heads / a.shape.n_kv_heads;
  const int n_runs = (heads_of_kv + kHeadsAtOnce - 1) / kHeadsAtOnce;
  launch(attend_unit,
         dim3(static_cast<unsigned>(a.n_units + 1), static_cast<unsigned>(a.n_rows),
              static_cast<unsigned>(a.shape.n_kv_heads * n_runs)),
         dim3(kThreads), 0, stream, a);
  launch(join_units, dim3(static_cast<unsigned>(a.n_rows), static_cast<unsigned>(a.shape.n_heads)),
         dim3(kThreads), 0, stream, a);
}

void launch_gate(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                 const QuantOut& quantised, cudaStream_t stream) {
  const int n_groups = (y.n_cols + kGroupCols - 1) / kGroupCols;
  launch(gate_rows, grid_of(n_groups, 8, y.n_rows), dim3(256), 0, stream, gate.data, gate.stride,
         up.data, up.stride, y.data, y.stride, y.n_cols, quantised);
}

void launch_block_step(const BlockSteps& steps, int step, cudaStream_t stream) {
  launch(block_step, dim3(1), dim3(32), 0, stream, steps, step);
}

}  // namespace bolt::cuda
