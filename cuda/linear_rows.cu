// Linear layers for few rows: one pass over the weights, bound by memory. A block owns a tile of 32
// outputs and up to R rows; warp w sums segments w, w + n_warps, ...; lane l is output l of the
// tile. Segment sums meet in shared memory and are added in ascending order (arithmetic.md §4).
// Integer weights come through queues that are filled before the rows are there.
#include <algorithm>
#include <type_traits>

#include "cuda/float_pair.cuh"
#include "cuda/launch.cuh"
#include "cuda/linear.cuh"
#include "cuda/weight_queue.cuh"

namespace bolt::cuda {
namespace {

constexpr int kWarpsFew = 12, kWarpsMax = 16;

__device__ __forceinline__ int dot(std::uint32_t w, std::uint32_t x, int sum) {
  return __dp4a(static_cast<int>(w), static_cast<int>(x), sum);
}

// Where a lane, which is an output, finds its codes and scales in a ring's first block; other
// blocks are constant offsets away. Kept in registers: the compiler would work them out for each
// group.
struct LanePlace {
  const std::byte* words[4];
  const std::byte* scale;
};

// One group of 32 columns of a tile of 32 outputs in shared memory, lane = output.
template <Format F>
struct Group;

template <>
struct Group<Format::q8> {
  std::uint32_t w[8];  // [plane][t]
  float s;

  BOLT_DEV static LanePlace place(const std::byte* ring, int lane) {
    LanePlace at;
#pragma unroll
    for (int t = 0; t < 4; ++t) at.words[t] = ring + word_index(t, lane) * 4;
    at.scale = ring + 1024 + 2 * lane;
    return at;
  }
  BOLT_DEV void read(const LanePlace& at, int offset) {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        w[plane * 4 + t] =
            *reinterpret_cast<const std::uint32_t*>(at.words[t] + offset + plane * 512);
      }
    }
    s = __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(at.scale + offset)));
  }
  // x0, x1: the row's codes in slot order; sa its scale.
  BOLT_DEV float add(const uint4& x0, const uint4& x1, const int2&, float sa, float acc) const {
    int sum = dot(w[0], x0.x, dot(w[4], x0.y, 0));
    int more = dot(w[1], x0.z, dot(w[5], x0.w, 0));
    sum = dot(w[2], x1.x, dot(w[6], x1.y, sum));
    more = dot(w[3], x1.z, dot(w[7], x1.w, more));
    return fma_rn(mul_rn(__int2float_rn(sum + more), s), sa, acc);
  }
  BOLT_DEV static const std::int8_t* codes(const QuantView& x) { return x.slots; }
};

template <>
struct Group<Format::nvfp4> {
  const E2m1Tables tables;
  std::uint32_t half0[4], half1[4];  // twice the values plus 12
  float s0, s1;

  BOLT_DEV static LanePlace place(const std::byte* ring, int lane) {
    LanePlace at;
#pragma unroll
    for (int t = 0; t < 4; ++t) at.words[t] = ring + word_index(t, lane) * 4;
    at.scale = ring + 512 + (lane >> 2) * 8 + (lane & 3);
    return at;
  }
  BOLT_DEV void read(const LanePlace& at, int offset) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      e2m1_halves_plus_12(tables, *reinterpret_cast<const std::uint32_t*>(at.words[t] + offset),
                          half0[t], half1[t]);
    }
    const auto* scales = reinterpret_cast<const std::uint8_t*>(at.scale + offset);
    s0 = e4m3_scale(scales[0]);
    s1 = e4m3_scale(scales[4]);
  }
  // x0, x1: the row's codes with the halves apart; twelve: -12 times the halves' sums of codes.
  BOLT_DEV float add(const uint4& x0, const uint4& x1, const int2& twelve, float sa,
                     float acc) const {
    int sum0 = dot(half0[0], x0.x, dot(half0[1], x0.z, twelve.x));
    int sum1 = dot(half1[0], x0.y, dot(half1[1], x0.w, twelve.y));
    sum0 = dot(half0[2], x1.x, dot(half0[3], x1.z, sum0));
    sum1 = dot(half1[2], x1.y, dot(half1[3], x1.w, sum1));
    // The first product is exact, so this is one rounding (§4).
    const float term = fma_rn(__int2float_rn(sum1), s1, mul_rn(__int2float_rn(sum0), s0));
    return fma_rn(term, sa, acc);
  }
  BOLT_DEV static const std::int8_t* codes(const QuantView& x) { return x.halves; }
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
      if (a.n_slots != nullptr && y_block >= *a.n_slots) return false;
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

// Shared memory of integer_rows: the warps' queues, their rows of one segment (codes, scales, and
// for nvfp4 -12 times the sums of each half's codes), the segments' sums.
template <Format F, int R>
constexpr int kRowsBytes = R* kSegmentGroups*(32 + 4 + (F == Format::nvfp4 ? 8 : 0));

// Weights of T tiles, one after the other. Of more than one, half a segment after the other, so
// that the next tile's are on their way while a tile is summed.
template <Format F, int T>
using TilesQueue =
    std::conditional_t<T == 1, WeightQueue<F>, WeightQueue<F, kSegmentGroups / 2, 2>>;

// The sums of a warp's segments for the first N of a block's rows: `sums` is [tile][segment][row of
// R][32], `my_rows` this warp's place for N rows of a segment.
template <Format F, int N, int R, class Queue>
BOLT_DEV void sum_segments(const LinearArgs& a, const int (&in)[R], Queue& queue,
                           const LanePlace& at, int n_tiles, std::byte* my_rows, float* sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  auto* const codes = reinterpret_cast<uint4*>(my_rows);
  auto* const scales = reinterpret_cast<float*>(my_rows + N * kSegmentGroups * 32);
  auto* const twelves = reinterpret_cast<int2*>(my_rows + N * kSegmentGroups * 36);
  Group<F> group;
  for (int tile = 0; tile < n_tiles; ++tile) {
    for (int segment = warp; segment < n_segments; segment += n_warps) {
      const int first = segment * kSegmentGroups;
      const int count = min(kSegmentGroups, a.n_groups - first);
      if (tile == 0 || n_segments > n_warps) {  // else they are there still
        // The rows' codes and scales of this segment: two 16-byte chunks a group, half a warp a
        // row.
        __syncwarp();
#pragma unroll
        for (int r0 = 0; r0 < N; r0 += 2) {
          const int r = r0 + (lane >> 4), chunk = lane & 15;
          const int from_row = r0 + 1 < N && lane >= 16 ? in[r0 + 1 < N ? r0 + 1 : r0] : in[r0];
          if (r < N && chunk < 2 * count) {
            const auto* from = reinterpret_cast<const uint4*>(
                Group<F>::codes(a.x) +
                (static_cast<std::int64_t>(from_row) * a.n_groups + first) * 32);
            codes[r * 2 * kSegmentGroups + chunk] = from[chunk];
          }
          if (r < N && chunk < count) {
            scales[r * kSegmentGroups + chunk] = a.x.row_scale(from_row, first + chunk);
          }
        }
        __syncwarp();
        if (F == Format::nvfp4) {
          for (int i = lane; i < N * kSegmentGroups; i += 32) {
            const uint4 x0 = codes[2 * i], x1 = codes[2 * i + 1];
            constexpr std::uint32_t kMinus12 = 0xf4f4f4f4u;
            twelves[i] = {dot(kMinus12, x0.x, dot(kMinus12, x0.z, 0)) +
                              dot(kMinus12, x1.x, dot(kMinus12, x1.z, 0)),
                          dot(kMinus12, x0.y, dot(kMinus12, x0.w, 0)) +
                              dot(kMinus12, x1.y, dot(kMinus12, x1.w, 0))};
          }
          __syncwarp();
        }
      }
      float acc[N];
#pragma unroll
      for (int r = 0; r < N; ++r) acc[r] = 0.0f;
      const auto add_group = [&](int g, int offset) {
        group.read(at, offset);
#pragma unroll
        for (int r = 0; r < N; ++r) {
          const int i = r * kSegmentGroups + g;
          const int2 twelve = F == Format::nvfp4 ? twelves[i] : int2{0, 0};
          acc[r] = group.add(codes[2 * i], codes[2 * i + 1], twelve, scales[i], acc[r]);
        }
      };
      constexpr int kRun = Queue::kRunGroups;
      if (count == kSegmentGroups) {
#pragma unroll
        for (int g = 0; g < kSegmentGroups; g += kRun) {
          const int offset = queue.wait_front();
#pragma unroll
          for (int u = 0; u < kRun; ++u) add_group(g + u, offset + u * block_bytes(F));
          queue.pop(lane);
        }
      } else {
        for (int g = 0; g < count; g += kRun) {
          const int offset = queue.wait_front();
          for (int u = 0; u < min(kRun, count - g); ++u)
            add_group(g + u, offset + u * block_bytes(F));
          queue.pop(lane);
        }
      }
#pragma unroll
      for (int r = 0; r < N; ++r)
        sums[((tile * n_segments + segment) * R + r) * 32 + lane] = acc[r];
    }
  }
}

// The first `n_live` of the rows.
template <Format F, int N, int R, class Queue>
BOLT_DEV void sum_live(const LinearArgs& a, int n_live, const int (&in)[R], Queue& queue,
                       const LanePlace& at, int n_tiles, std::byte* my_rows, float* sums) {
  if constexpr (N < R) {
    if (n_live > N) {
      return sum_live<F, N + 1>(a, n_live, in, queue, at, n_tiles, my_rows, sums);
    }
  }
  sum_segments<F, N>(a, in, queue, at, n_tiles, my_rows, sums);
}

// Grid (tiles / T, row blocks or slots), block 32 x n_warps. An expert's slot is summed for the
// rows that it has.
template <Format F, int R, bool Slots, int MaxWarps, int T>
__global__ void __launch_bounds__(32 * MaxWarps, R == 1 && MaxWarps <= 12 ? 3 : 2)
    integer_rows(LinearArgs a) {
  using Queue = TilesQueue<F, T>;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int first_tile = blockIdx.x * T;
  const int tiles = T == 1 ? 1 : min(T, n_tiles(a.n_out) - first_tile);
  std::byte* const my_rows = shared + n_warps * Queue::kStride + warp * kRowsBytes<F, R>;
  auto* const sums =
      reinterpret_cast<float*>(shared + n_warps * Queue::kStride + n_warps * kRowsBytes<F, R>);
  enter(a.order);
  Queue queue;
  queue.prepare(shared + warp * Queue::kStride, lane);
  const LanePlace at = Group<F>::place(queue.ring, lane);
  wait_for_slots<Slots>(a);
  RowMap<R, Slots> rows;
  if (!rows.find(a, blockIdx.y)) return;
  queue.start(rows.weights + static_cast<std::int64_t>(first_tile) * a.n_groups * block_bytes(F),
              a.n_groups, warp, n_warps, lane, tiles);
  if (!Slots || a.slots_ready) wait_for_rows(a.order);  // the weights are on their way

  if (Slots && R > 1) {
    int n_live = 1;  // a slot is filled from its first place on
#pragma unroll
    for (int r = 1; r < R; ++r) n_live += rows.out[r] >= 0;
    sum_live<F, 1>(a, n_live, rows.in, queue, at, tiles, my_rows, sums);
  } else {
    sum_segments<F, R>(a, rows.in, queue, at, tiles, my_rows, sums);
  }
  __syncthreads();
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  for (int i = warp; i < tiles * R; i += n_warps) {
    const int tile = i / R, r = i % R;
    int out, mark;
    row_of<R, Slots>(a, blockIdx.y, r, out, mark);
    if (out < 0) continue;
    float total = 0.0f;
#pragma unroll 4
    for (int s = 0; s < n_segments; ++s) {
      total = add_rn(total, sums[((tile * n_segments + s) * R + r) * 32 + lane]);
    }
    finish_tile(a, total, rows.gain, rows.gained, out, mark, first_tile + tile, lane);
  }
  leave(a.order);
}

// As integer_rows; shared f32 [n_segments][4 chains][R][32], then each warp's rows of two groups,
// f32 [2][R][32]: lanes are outputs and all take the same column, so that four columns come with
// one read. Padding columns have weight 0 and x 0, and are not added: a chain ends where its
// columns do.
template <Format F, int R, bool Slots>
__global__ void __launch_bounds__(32 * kWarpsMax) float_rows(LinearArgs a) {
  extern __shared__ __align__(16) float sums[];
  constexpr int kBlockBytes = block_bytes(F);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int tile = blockIdx.x;
  enter(a.order);
  wait_for_rows(a.order);
  RowMap<R, Slots> rows;
  if (!rows.find(a, blockIdx.y)) return;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::uint8_t* blocks =
      rows.weights + static_cast<std::int64_t>(tile) * a.n_groups * kBlockBytes;
  float* const my_rows = sums + n_segments * 4 * R * 32 + warp * 2 * R * 32;
  const float* x[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    x[r] = a.x.x + static_cast<std::int64_t>(rows.in[r]) * a.x.x_stride + lane;
  }

  for (int segment = warp; segment < n_segments; segment += n_warps) {
    const int first = segment * kSegmentGroups;
    const int last = min(first + kSegmentGroups, a.n_groups);
    float acc[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < 4; ++t) acc[r][t] = 0.0f;
    }
    float next[R];
    const auto ask = [&](int g) {
      const bool in = g < last && g * kGroupCols + lane < a.n_cols;
#pragma unroll
      for (int r = 0; r < R; ++r) next[r] = in ? x[r][g * kGroupCols] : 0.0f;
    };
    ask(first);
    for (int g = first; g < last; ++g) {
      const std::uint8_t* block = blocks + static_cast<std::int64_t>(g) * kBlockBytes;
      float2 w[16];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int t = 0; t < 4; ++t) w[i * 4 + t] = float_pair<F>(block, i, t, lane);
      }
      // Two groups' places take turns: a lane may still read the group before.
      float* const here = my_rows + (g & 1) * R * 32;
#pragma unroll
      for (int r = 0; r < R; ++r) here[r * 32 + lane] = next[r];
      __syncwarp();
      ask(g + 1);
      const int columns = a.n_cols - g * kGroupCols;
      if (columns >= kGroupCols) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const auto* eight = reinterpret_cast<const float4*>(here + r * 32 + 8 * i);
            const float4 low = eight[0], high = eight[1];
            const float of[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int t = 0; t < 4; ++t) {
              acc[r][t] = fma_rn(w[i * 4 + t].x, of[2 * t], acc[r][t]);
              acc[r][t] = fma_rn(w[i * 4 + t].y, of[2 * t + 1], acc[r][t]);
            }
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const int k = 8 * i + 2 * t;
#pragma unroll
            for (int r = 0; r < R; ++r) {
              if (k < columns) acc[r][t] = fma_rn(w[i * 4 + t].x, here[r * 32 + k], acc[r][t]);
              if (k + 1 < columns) {
                acc[r][t] = fma_rn(w[i * 4 + t].y, here[r * 32 + k + 1], acc[r][t]);
              }
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
  for (int r = warp; r < R; r += n_warps) {
    int out, mark;
    row_of<R, Slots>(a, blockIdx.y, r, out, mark);
    if (out < 0) continue;
    float total = 0.0f;
#pragma unroll 4
    for (int leaf = 0; leaf < n_segments * 4; ++leaf)
      total = add_rn(total, sums[(leaf * R + r) * 32 + lane]);
    finish_tile(a, total, rows.gain, rows.gained, out, mark, tile, lane);
  }
  leave(a.order);
}

constexpr std::size_t float_shared(int n_segments, int n_warps, int n_rows) {
  return static_cast<std::size_t>(n_segments * 4 + n_warps * 2) * static_cast<std::size_t>(n_rows) *
         32 * 4;
}

template <Format F, int R, bool Slots>
void launch_float(const LinearArgs& a, const dim3& grid, int n_segments, cudaStream_t stream) {
  const int n_warps = std::clamp(n_segments, R >= 4 ? 4 : 2, kWarpsMax);
  const std::size_t shared = float_shared(n_segments, n_warps, R);
  allow_shared(float_rows<F, R, Slots>, shared);
  launch(float_rows<F, R, Slots>, grid, dim3(static_cast<unsigned>(32 * n_warps)), shared, stream,
         a);
}

// As many warps as there are segments, or an equal share of them, as far as shared memory goes.
template <Format F, int R, bool Slots, int T>
void launch_tiles(const LinearArgs& a, int n_blocks, int n_segments, cudaStream_t stream) {
  const std::size_t sums = static_cast<std::size_t>(T * n_segments) * R * 32 * 4;
  const std::size_t of_warp = TilesQueue<F, T>::kStride + kRowsBytes<F, R>;
  const int most = std::clamp(static_cast<int>((shared_limit() - sums) / of_warp), 1, kWarpsMax);
  const int turns = (n_segments + most - 1) / most;
  const int n_warps = (n_segments + turns - 1) / turns;
  const std::size_t shared = static_cast<std::size_t>(n_warps) * of_warp + sums;
  auto* kernel = n_warps <= kWarpsFew ? integer_rows<F, R, Slots, kWarpsFew, T>
                                      : integer_rows<F, R, Slots, kWarpsMax, T>;
  allow_shared(kernel, shared);
  const dim3 grid(static_cast<unsigned>((n_tiles(a.n_out) + T - 1) / T),
                  static_cast<unsigned>(n_blocks));
  launch(kernel, grid, dim3(static_cast<unsigned>(32 * n_warps)), shared, stream, a);
}

template <Format F, int R, bool Slots>
void launch_rows(const LinearArgs& a, cudaStream_t stream) {
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const int n_blocks = Slots ? a.max_slots : (a.n_rows + R - 1) / R;
  if constexpr (is_integer(F)) {
    // Two tiles a block hide the second's latency, where enough blocks are left for every
    // multiprocessor. At one row it is more blocks, so more weights on their way before the kernel
    // before this one ends, that count.
    if constexpr (Slots && R > 1 && F == Format::nvfp4) {
      if (n_tiles(a.n_out) * n_blocks >= 3 * n_multiprocessors()) {
        return launch_tiles<F, R, Slots, 2>(a, n_blocks, n_segments, stream);
      }
    }
    launch_tiles<F, R, Slots, 1>(a, n_blocks, n_segments, stream);
  } else {
    const dim3 grid(static_cast<unsigned>(n_tiles(a.n_out)), static_cast<unsigned>(n_blocks));
    launch_float<F, R, Slots>(a, grid, n_segments, stream);
  }
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
        if constexpr (!is_integer(F)) return launch_rows<F, kSlotRowsFew, true>(a, stream);
    }
    return;
  }
  // Shared sums grow with rows and K; few rows a block always fit.
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const auto fit = [&](int n_rows) {
    return is_integer(F) ? a.n_cols <= 32768
                         : float_shared(n_segments, kWarpsMax, n_rows) <= shared_limit();
  };
  if (a.n_rows == 1) return launch_rows<F, 1, false>(a, stream);
  if (a.n_rows == 2 || !fit(4)) return launch_rows<F, 2, false>(a, stream);
  if (a.n_rows <= 4 || is_integer(F) || !fit(8)) return launch_rows<F, 4, false>(a, stream);
  if constexpr (!is_integer(F)) launch_rows<F, 8, false>(a, stream);
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
