// Linear layers for few rows: one pass over the weights, bound by memory. A block owns a tile of 32
// outputs and up to R rows; warp w sums segments w, w + n_warps, ...; lane l is output l of the
// tile. Segment sums meet in shared memory and are added in ascending order (arithmetic.md §4).
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/linear.cuh"

namespace bolt::cuda {
namespace {

constexpr int kWarpsMax = 16;

__device__ __forceinline__ int dot(std::uint32_t w, std::uint32_t x, int sum) {
  return __dp4a(static_cast<int>(w), static_cast<int>(x), sum);
}

// One group of 32 columns of one output, as its lane loads it.
template <Format F>
struct Block;

template <>
struct Block<Format::q8> {
  std::uint32_t w[8];  // [plane][t]
  std::uint16_t scale_bits;

  BOLT_DEV void load(const std::uint8_t* block, int lane) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(block);
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
      for (int t = 0; t < 4; ++t)
        w[plane * 4 + t] = load_stream(words + plane * 128 + word_index(t, lane));
    }
    scale_bits = __ldg(reinterpret_cast<const unsigned short*>(block + 1024) + lane);
  }
  struct Decoded {
    float s;
  };
  BOLT_DEV Decoded decode() const { return {__half2float(__ushort_as_half(scale_bits))}; }
  BOLT_DEV float add(const Decoded& d, const QuantView& x, int row, int group, float acc) const {
    const uint4* words = x.slot_words(row, group);
    const uint4 x0 = words[0], x1 = words[1];
    int sum = dot(w[0], x0.x, dot(w[4], x0.y, 0));
    sum = dot(w[1], x0.z, dot(w[5], x0.w, sum));
    sum = dot(w[2], x1.x, dot(w[6], x1.y, sum));
    sum = dot(w[3], x1.z, dot(w[7], x1.w, sum));
    return fma_rn(mul_rn(__int2float_rn(sum), d.s), x.row_scale(row, group), acc);
  }
};

template <>
struct Block<Format::nvfp4> {
  std::uint32_t w[4];  // [t]
  std::uint32_t scale_codes;

  BOLT_DEV void load(const std::uint8_t* block, int lane) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(block);
#pragma unroll
    for (int t = 0; t < 4; ++t) w[t] = load_stream(words + word_index(t, lane));
    const std::uint8_t* scales = block + 512 + (lane >> 2) * 8 + (lane & 3);
    scale_codes = __ldg(scales) | static_cast<std::uint32_t>(__ldg(scales + 4)) << 8;
  }
  struct Decoded {
    std::uint32_t half0[4], half1[4];
    float s0, s1;
  };
  BOLT_DEV Decoded decode() const {
    Decoded d;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      std::uint32_t low, high;
      e2m1_to_s8(w[t], low, high);
      d.half0[t] = __byte_perm(low, high, 0x5410);  // slots 0, 1, 4, 5
      d.half1[t] = __byte_perm(low, high, 0x7632);  // slots 2, 3, 6, 7
    }
    d.s0 = e4m3_scale(scale_codes & 0xff);
    d.s1 = e4m3_scale(scale_codes >> 8);
    return d;
  }
  BOLT_DEV float add(const Decoded& d, const QuantView& x, int row, int group, float acc) const {
    const uint4* words = x.half_words(row, group);
    const uint4 x0 = words[0], x1 = words[1];
    int sum0 = dot(d.half0[0], x0.x, dot(d.half0[1], x0.z, 0));
    int sum1 = dot(d.half1[0], x0.y, dot(d.half1[1], x0.w, 0));
    sum0 = dot(d.half0[2], x1.x, dot(d.half0[3], x1.z, sum0));
    sum1 = dot(d.half1[2], x1.y, dot(d.half1[3], x1.w, sum1));
    // The first product is exact, so this is one rounding (§4).
    const float term = fma_rn(__int2float_rn(sum1), d.s1, mul_rn(__int2float_rn(sum0), d.s0));
    return fma_rn(term, x.row_scale(row, group), acc);
  }
};

// Where a block's rows come from and go to: rows of the call, or places of an expert's slot.
template <int R, bool Slots>
struct RowMap {
  int in[R], out[R], mark[R];
  const std::uint8_t* weights;
  float gain;
  bool gained;

  // False if the block has nothing to do.
  BOLT_DEV bool find(const LinearArgs& a, int y_block) {
    gained = a.gains != nullptr;
    if (Slots) {
      if (y_block >= *a.n_slots) return false;
      const int expert = a.slot_expert[y_block];
      weights = a.weights + static_cast<std::int64_t>(expert) * a.matrix_bytes;
      gain = gained ? a.gains[expert] : 1.0f;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        in[r] = a.slot_in[y_block * R + r];
        out[r] = a.slot_out[y_block * R + r];
        mark[r] = a.slot_mark[y_block * R + r];
      }
    } else {
      weights = a.weights;
      gain = gained ? a.gains[0] : 1.0f;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int row = y_block * R + r;
        in[r] = row < a.n_rows ? row : a.n_rows - 1;
        out[r] = row < a.n_rows ? row : -1;
        mark[r] = row;
      }
    }
    return true;
  }
};

// Dynamic indexing of RowMap's arrays would move them to local memory: the finish loop reads these.
template <int R, bool Slots>
BOLT_DEV void row_of(const LinearArgs& a, int y_block, int r, int& out, int& mark) {
  if (Slots) {
    out = a.slot_out[y_block * R + r];
    mark = a.slot_mark[y_block * R + r];
  } else {
    const int row = y_block * R + r;
    out = row < a.n_rows ? row : -1;
    mark = row;
  }
}

// Grid (tiles, row blocks or slots), block 32 x n_warps; shared f32 [n_segments][R][32].
template <Format F, int R, bool Slots>
__global__ void __launch_bounds__(32 * kWarpsMax) integer_rows(LinearArgs a) {
  extern __shared__ float sums[];
  constexpr int kBlockBytes = block_bytes(F);
  constexpr int kUnroll = R <= 2 ? 4 : 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int tile = blockIdx.x;
  let_next_kernel_start();
  if (Slots) wait_for_earlier_kernels();
  RowMap<R, Slots> rows;
  if (!rows.find(a, blockIdx.y)) return;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::uint8_t* blocks =
      rows.weights + static_cast<std::int64_t>(tile) * a.n_groups * kBlockBytes;

  bool waited = Slots;
  for (int segment = warp; segment < n_segments; segment += n_warps) {
    const int first = segment * kSegmentGroups;
    const int count = min(kSegmentGroups, a.n_groups - first);
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; ++r) acc[r] = 0.0f;
    for (int g0 = 0; g0 < count; g0 += kUnroll) {
      Block<F> b[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (g0 + u < count)
          b[u].load(blocks + static_cast<std::int64_t>(first + g0 + u) * kBlockBytes, lane);
      }
      if (!waited) {  // the weights are on their way; the rows come from the kernel before
        wait_for_earlier_kernels();
        waited = true;
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (g0 + u < count) {
          const auto d = b[u].decode();
#pragma unroll
          for (int r = 0; r < R; ++r) acc[r] = b[u].add(d, a.x, rows.in[r], first + g0 + u, acc[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) sums[(segment * R + r) * 32 + lane] = acc[r];
  }
  if (!waited) wait_for_earlier_kernels();
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * R; i += blockDim.x) {
    const int n = tile * kTileRows + (i & 31);
    int out, mark;
    row_of<R, Slots>(a, blockIdx.y, i >> 5, out, mark);
    if (out < 0 || n >= a.n_out) continue;
    float total = 0.0f;
    for (int s = 0; s < n_segments; ++s) total = add_rn(total, sums[s * R * 32 + i]);
    finish_sum(a, total, rows.gain, rows.gained, out, mark, n);
  }
}

// Float weights of one group: step i holds columns 8i + 2t, 8i + 2t + 1 of chain t.
template <Format F>
BOLT_DEV float2 float_pair(const std::uint8_t* block, int i, int t, int lane) {
  if constexpr (F == Format::f32) {
    const auto* pairs = reinterpret_cast<const float2*>(block + i * 1024);
    return __ldg(pairs + word_index(t, lane));
  } else {
    const std::uint32_t w =
        load_stream(reinterpret_cast<const std::uint32_t*>(block + i * 512) + word_index(t, lane));
    if constexpr (F == Format::bf16) {
      return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)};
    } else {
      return {__half2float(__ushort_as_half(static_cast<unsigned short>(w))),
              __half2float(__ushort_as_half(static_cast<unsigned short>(w >> 16)))};
    }
  }
}

// As integer_rows; shared f32 [n_segments][4 chains][R][32]. x is read as it lies: K a multiple of
// 32 or the tail guarded. Padding columns have weight 0 and x 0, and are not added: a chain ends
// where its columns do.
template <Format F, int R, bool Slots>
__global__ void __launch_bounds__(32 * kWarpsMax) float_rows(LinearArgs a) {
  extern __shared__ float sums[];
  constexpr int kBlockBytes = block_bytes(F);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int tile = blockIdx.x;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  RowMap<R, Slots> rows;
  if (!rows.find(a, blockIdx.y)) return;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::uint8_t* blocks =
      rows.weights + static_cast<std::int64_t>(tile) * a.n_groups * kBlockBytes;
  const float* x[R];
#pragma unroll
  for (int r = 0; r < R; ++r) x[r] = a.x.x + static_cast<std::int64_t>(rows.in[r]) * a.x.x_stride;

  for (int segment = warp; segment < n_segments; segment += n_warps) {
    const int first = segment * kSegmentGroups;
    const int last = min(first + kSegmentGroups, a.n_groups);
    float acc[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < 4; ++t) acc[r][t] = 0.0f;
    }
    for (int g = first; g < last; ++g) {
      const std::uint8_t* block = blocks + static_cast<std::int64_t>(g) * kBlockBytes;
      float2 w[16];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int t = 0; t < 4; ++t) w[i * 4 + t] = float_pair<F>(block, i, t, lane);
      }
      const bool whole = (g + 1) * kGroupCols <= a.n_cols;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const int k = g * kGroupCols + 8 * i + 2 * t;
#pragma unroll
          for (int r = 0; r < R; ++r) {
            if (whole || k < a.n_cols) acc[r][t] = fma_rn(w[i * 4 + t].x, x[r][k], acc[r][t]);
            if (whole || k + 1 < a.n_cols) {
              acc[r][t] = fma_rn(w[i * 4 + t].y, x[r][k + 1], acc[r][t]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < 4; ++t) sums[((segment * 4 + t) * R + r) * 32 + lane] = acc[r][t];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * R; i += blockDim.x) {
    const int n = tile * kTileRows + (i & 31);
    int out, mark;
    row_of<R, Slots>(a, blockIdx.y, i >> 5, out, mark);
    if (out < 0 || n >= a.n_out) continue;
    float total = 0.0f;
    for (int leaf = 0; leaf < n_segments * 4; ++leaf)
      total = add_rn(total, sums[leaf * R * 32 + i]);
    finish_sum(a, total, rows.gain, rows.gained, out, mark, n);
  }
}

template <Format F, int R, bool Slots>
void launch_rows(const LinearArgs& a, cudaStream_t stream) {
  constexpr bool kInteger = F == Format::q8 || F == Format::nvfp4;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const int n_warps = std::clamp(n_segments, R >= 4 ? 4 : 2, kWarpsMax);
  const std::size_t shared = static_cast<std::size_t>(n_segments) * R * 32 * 4 * (kInteger ? 1 : 4);
  const dim3 grid(static_cast<unsigned>(n_tiles(a.n_out)),
                  static_cast<unsigned>(Slots ? a.max_slots : (a.n_rows + R - 1) / R));
  void (*kernel)(LinearArgs);
  if constexpr (kInteger) {
    kernel = integer_rows<F, R, Slots>;
  } else {
    kernel = float_rows<F, R, Slots>;
  }
  allow_shared(kernel, shared);
  launch(kernel, grid, dim3(static_cast<unsigned>(32 * n_warps)), shared, stream, a);
}

template <Format F>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  if (a.slot_expert != nullptr) {
    switch (a.slot_rows) {
      case 1:
        return launch_rows<F, 1, true>(a, stream);
      case 2:
        return launch_rows<F, 2, true>(a, stream);
      case 4:
        return launch_rows<F, 4, true>(a, stream);
      default:
        return launch_rows<F, kSlotRowsFew, true>(a, stream);
    }
  }
  // Shared sums of float formats grow with R and K; few rows a block always fit.
  constexpr bool kInteger = F == Format::q8 || F == Format::nvfp4;
  const bool long_rows = a.n_cols > (kInteger ? 32768 : 8192);
  if (a.n_rows == 1) return launch_rows<F, 1, false>(a, stream);
  if (a.n_rows == 2 || long_rows) return launch_rows<F, 2, false>(a, stream);
  if (a.n_rows <= 4) return launch_rows<F, 4, false>(a, stream);
  launch_rows<F, 8, false>(a, stream);
}

}  // namespace

void launch_linear_rows(const LinearArgs& args, Format format, cudaStream_t stream) {
  switch (format) {
    case Format::q8:
      return launch_format<Format::q8>(args, stream);
    case Format::nvfp4:
      return launch_format<Format::nvfp4>(args, stream);
    case Format::bf16:
      return launch_format<Format::bf16>(args, stream);
    case Format::f16:
      return launch_format<Format::f16>(args, stream);
    case Format::f32:
      return launch_format<Format::f32>(args, stream);
  }
}

}  // namespace bolt::cuda
