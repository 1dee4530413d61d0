// Linear layers in fp8 and GGUF's blocks. A block owns a tile of 32 outputs and some rows; its
// warps take segments in turn, each fetched by one bulk copy, and the segments' sums are added in
// ascending order (arithmetic.md §4). Up to four rows: dp4a, lane = output. More: the int8 tensor
// cores, in steps of 8 or 32 rows; there is no kernel of its own for prompt chunks.
#include <algorithm>

#include "cuda/blocks.cuh"
#include "cuda/launch.cuh"
#include "cuda/linear_blocks.cuh"
#include "cuda/weight_queue.cuh"

namespace bolt::cuda {
namespace {

constexpr int kRowsWarps = 12;
constexpr int kPad = 36;  // floats of a row of sums: 32 outputs, and 4 against bank conflicts

// The rows of a block: some of the call's, or some places of an expert's slot. blockIdx.x counts
// them, so that blocks that run together read the same weights.
struct Places {
  int first, count;
  const std::uint8_t* weights;
  float gain;

  // False if there is nothing to do.
  BOLT_DEV bool find(const LinearArgs& a, int rows) {
    int expert = 0;
    if (a.slot_expert != nullptr) {
      const int parts = (a.slot_rows + rows - 1) / rows;
      const int slot = blockIdx.x / parts, part = blockIdx.x % parts;
      if (a.n_slots != nullptr && slot >= *a.n_slots) return false;
      first = slot * a.slot_rows + part * rows;
      count = min(rows, a.slot_rows - part * rows);
      if (a.slot_out[first] < 0) return false;  // places are taken in order
      expert = a.slot_expert[slot];
    } else {
      first = blockIdx.x * rows;
      count = min(rows, a.n_rows - first);
    }
    weights = a.weights + static_cast<std::int64_t>(expert) * a.matrix_bytes;
    gain = a.gains != nullptr ? a.gains[expert] : 1.0f;
    return true;
  }
  BOLT_DEV int in(const LinearArgs& a, int i) const {
    const int place = first + min(i, count - 1);
    return a.slot_expert != nullptr ? a.slot_in[place] : place;
  }
  // -1: nowhere.
  BOLT_DEV int out(const LinearArgs& a, int i) const {
    if (i >= count) return -1;
    return a.slot_expert != nullptr ? a.slot_out[first + i] : first + i;
  }
  BOLT_DEV int mark(const LinearArgs& a, int i) const {
    return a.slot_expert != nullptr ? a.slot_mark[first + i] : first + i;
  }
};

// Finds the block's rows and starts the warp's weights; false if there is nothing to do.
template <Format F>
BOLT_DEV bool begin(const LinearArgs& a, int rows, Places& places, WeightQueue<F>& queue,
                    std::byte* ring) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  enter(a.order);
  queue.prepare(ring, lane);
  const bool slots = a.slot_expert != nullptr;
  if (slots) wait_for_slots<true>(a);
  if (!places.find(a, rows)) return false;
  const std::int64_t tile_bytes = static_cast<std::int64_t>(n_blocks(F, a.n_cols)) * block_bytes(F);
  queue.start(places.weights + blockIdx.y * tile_bytes, a.n_groups, warp, n_warps, lane);
  if (!slots || a.slots_ready) wait_for_rows(a.order);  // the weights are on their way
  return true;
}

// Shared memory of a warp's rows of one segment: codes with the halves apart, scales, and the sums
// of each half's codes.
template <Format F, int R>
constexpr int kRowsBytes = R* kSegmentGroups*(32 + 4 + (needs_code_sums(F) ? 8 : 0));

// Grid (row blocks, tiles), block 32 x n_warps; shared memory: the warps' queues, their rows, the
// segments' sums f32 [n_segments][R][32].
template <Format F, int R>
__global__ void __launch_bounds__(32 * kRowsWarps, 2) block_rows(LinearArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  std::byte* const my_rows = shared + n_warps * WeightQueue<F>::kStride + warp * kRowsBytes<F, R>;
  auto* const sums =
      reinterpret_cast<float*>(shared + n_warps * (WeightQueue<F>::kStride + kRowsBytes<F, R>));
  WeightQueue<F> queue;
  Places places;
  if (!begin<F>(a, R, places, queue, shared + warp * WeightQueue<F>::kStride)) return;
  int in[R];
#pragma unroll
  for (int r = 0; r < R; ++r) in[r] = places.in(a, r);

  auto* const codes = reinterpret_cast<uint4*>(my_rows);  // [R][groups][2]
  auto* const scales = reinterpret_cast<float*>(my_rows + R * kSegmentGroups * 32);
  auto* const code_sums = reinterpret_cast<int2*>(my_rows + R * kSegmentGroups * 36);
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  for (int segment = warp; segment < n_segments; segment += n_warps) {
    const int first = segment * kSegmentGroups;
    const int count = min(kSegmentGroups, a.n_groups - first);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (lane < 2 * count) {
        codes[r * 2 * kSegmentGroups + lane] = a.x.half_words(in[r], first)[lane];
      }
      if (lane < count) scales[r * kSegmentGroups + lane] = a.x.row_scale(in[r], first + lane);
    }
    __syncwarp();
    if (needs_code_sums(F)) {
      for (int i = lane; i < R * kSegmentGroups; i += 32) {
        if (i % kSegmentGroups >= count) continue;
        const uint4 x0 = codes[2 * i], x1 = codes[2 * i + 1];
        const auto sum = [](std::uint32_t p, std::uint32_t q, std::uint32_t s, std::uint32_t t) {
          int n = __dp4a(0x01010101, static_cast<int>(p), 0);
          n = __dp4a(0x01010101, static_cast<int>(q), n);
          n = __dp4a(0x01010101, static_cast<int>(s), n);
          return __dp4a(0x01010101, static_cast<int>(t), n);
        };
        const int half0 = sum(x0.x, x0.z, x1.x, x1.z), half1 = sum(x0.y, x0.w, x1.y, x1.w);
        code_sums[i] = kParts<F> == 2 ? int2{half0, half1} : int2{half0 + half1, 0};
      }
      __syncwarp();
    }
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; ++r) acc[r] = 0.0f;
    const std::byte* const run = queue.ring + queue.wait_front();
#pragma unroll(R == 1 ? 2 : 1)
    for (int g = 0; g < count; ++g) {
      const GroupPlace<F> at(run, g);
      int d[R][kParts<F>][kCodePlanes<F>] = {};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        std::uint32_t half0[kCodePlanes<F>], half1[kCodePlanes<F>];
        code_words<F>(at.words(t, lane), t, half0, half1);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const uint2 x = reinterpret_cast<const uint2*>(codes)[(r * kSegmentGroups + g) * 4 + t];
#pragma unroll
          for (int p = 0; p < kCodePlanes<F>; ++p) {
            int& low = d[r][0][p];
            int& high = d[r][kParts<F> - 1][p];
            low = __dp4a(static_cast<int>(half0[p]), static_cast<int>(x.x), low);
            high = __dp4a(static_cast<int>(half1[p]), static_cast<int>(x.y), high);
          }
        }
      }
      const GroupScale scale = at.scale(lane);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int i = r * kSegmentGroups + g;
        const int2 both = needs_code_sums(F) ? code_sums[i] : int2{0, 0};
        int sum[kParts<F>], dot[kParts<F>];
#pragma unroll
        for (int h = 0; h < kParts<F>; ++h) {
          sum[h] = h == 0 ? both.x : both.y;
          dot[h] = joined<F>(d[r][h]) + code_offset(F) * sum[h];
        }
        acc[r] = add_group<F>(dot, sum, scale, scales[i], acc[r]);
      }
    }
    queue.pop(lane);
#pragma unroll
    for (int r = 0; r < R; ++r) sums[(segment * R + r) * 32 + lane] = acc[r];
  }
  __syncthreads();
  for (int r = warp; r < R; r += n_warps) {
    const int out = places.out(a, r);
    if (out < 0) continue;
    float total = 0.0f;
#pragma unroll 4
    for (int s = 0; s < n_segments; ++s) total = add_rn(total, sums[(s * R + r) * 32 + lane]);
    finish_tile(a, total, places.gain, a.gains != nullptr, out, places.mark(a, r), blockIdx.y,
                lane);
  }
  leave(a.order);
}

// The rows of one group as a lane of the tensor cores holds them: lane t's columns of row g of each
// block of eight, and the scales of rows 2t, 2t + 1.
template <int NN>
struct RowGroup {
  uint2 codes[NN];
  float scale[NN][2];
};

template <int NN>
constexpr int kMmaWarps = NN == 1 ? 12 : 8;

// Grid (row blocks, tiles), block 32 x n_warps; shared memory: the warps' queues, then their sums
// f32 [n_warps][8 NN][kPad]. Lane 4g + t holds outputs 4g..4g+3 of the tile for rows 2t, 2t + 1 of
// each block of eight.
template <Format F, int NN>
__global__ void __launch_bounds__(32 * kMmaWarps<NN>, NN == 1 ? 2 : 1) block_mma(LinearArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  constexpr int kRows = 8 * NN, P = kCodePlanes<F>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int g = lane >> 2, t = lane & 3;
  auto* const sums = reinterpret_cast<float*>(shared + n_warps * WeightQueue<F>::kStride);
  WeightQueue<F> queue;
  Places places;
  if (!begin<F>(a, kRows, places, queue, shared + warp * WeightQueue<F>::kStride)) return;

  const int n_groups = a.n_groups, n_segments = (n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::int8_t* code[NN];
  const float* scale[NN][2];
#pragma unroll
  for (int n = 0; n < NN; ++n) {
    code[n] =
        a.x.halves + static_cast<std::int64_t>(places.in(a, n * 8 + g)) * n_groups * 32 + t * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      scale[n][j] =
          a.x.scale + static_cast<std::int64_t>(places.in(a, n * 8 + 2 * t + j)) * n_groups;
    }
  }
  const auto load_rows = [&](RowGroup<NN>& x, int group) {
#pragma unroll
    for (int n = 0; n < NN; ++n) {
      x.codes[n] = *reinterpret_cast<const uint2*>(code[n] + group * 32);
      x.scale[n][0] = scale[n][0][group];
      x.scale[n][1] = scale[n][1][group];
    }
  };

  // Thread i's outputs in the final addition: row i / 32 + k * n_warps, output i % 32.
  constexpr int kTotals = (kRows + 3) / 4;  // blocks have at least four warps
  float totals[kTotals];
#pragma unroll
  for (int k = 0; k < kTotals; ++k) totals[k] = 0.0f;

  for (int round = 0; round < n_segments; round += n_warps) {
    const int segment = round + warp;
    if (segment < n_segments) {
      const int first = segment * kSegmentGroups, count = min(kSegmentGroups, n_groups - first);
      float acc[NN][4][2];
#pragma unroll
      for (int n = 0; n < NN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i][0] = acc[n][i][1] = 0.0f;
      }
      RowGroup<NN> x, next;
      load_rows(x, first);
      const std::byte* const run = queue.ring + queue.wait_front();
      for (int u = 0; u < count; ++u) {
        if (u + 1 < count) load_rows(next, first + u + 1);
        const GroupPlace<F> at(run, u);
        GroupWords words[4];
        GroupScale scales[4];
        at.words(t, g, words);
        at.scale(g, scales);
        // Sums of the rows' codes, which every output's lane gets: [n][half][row parity].
        int sum[NN][kParts<F>][2] = {};
        if (needs_code_sums(F)) {
          constexpr std::uint32_t kOnes = 0x01010101u;
#pragma unroll
          for (int n = 0; n < NN; ++n) {
            int s0[4] = {0, 0, 0, 0}, s1[4] = {0, 0, 0, 0};
            if (kParts<F> == 2) {
              mma_s8_k16(s0, kOnes, kOnes, x.codes[n].x);
              mma_s8_k16(s1, kOnes, kOnes, x.codes[n].y);
            } else {
              mma_s8_k32(s0, kOnes, kOnes, kOnes, kOnes, x.codes[n].x, x.codes[n].y);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              sum[n][0][j] = s0[j];
              if (kParts<F> == 2) sum[n][kParts<F> - 1][j] = s1[j];
            }
          }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {  // outputs 4g + 2m and the one after it
          std::uint32_t half0[2][P], half1[2][P];
#pragma unroll
          for (int i = 0; i < 2; ++i) code_words<F>(words[2 * m + i], t, half0[i], half1[i]);
#pragma unroll
          for (int n = 0; n < NN; ++n) {
            int d[kParts<F>][P][4] = {};
#pragma unroll
            for (int p = 0; p < P; ++p) {
              if (kParts<F> == 2) {
                mma_s8_k16(d[0][p], half0[0][p], half0[1][p], x.codes[n].x);
                mma_s8_k16(d[kParts<F> - 1][p], half1[0][p], half1[1][p], x.codes[n].y);
              } else {
                mma_s8_k32(d[0][p], half0[0][p], half0[1][p], half1[0][p], half1[1][p],
                           x.codes[n].x, x.codes[n].y);
              }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              int dot[kParts<F>], of_x[kParts<F>];
#pragma unroll
              for (int h = 0; h < kParts<F>; ++h) {
                int products[P];
#pragma unroll
                for (int p = 0; p < P; ++p) products[p] = d[h][p][i];
                of_x[h] = sum[n][h][i & 1];
                dot[h] = joined<F>(products) + code_offset(F) * of_x[h];
              }
              float& c = acc[n][2 * m + (i >> 1)][i & 1];
              c = add_group<F>(dot, of_x, scales[2 * m + (i >> 1)], x.scale[n][i & 1], c);
            }
          }
        }
        x = next;
      }
      queue.pop(lane);
#pragma unroll
      for (int n = 0; n < NN; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float* place = sums + (warp * kRows + n * 8 + 2 * t + j) * kPad + 4 * g;
          *reinterpret_cast<float4*>(place) =
              make_float4(acc[n][0][j], acc[n][1][j], acc[n][2][j], acc[n][3][j]);
        }
      }
    }
    __syncthreads();
    const int summed = min(n_warps, n_segments - round);
#pragma unroll
    for (int k = 0; k < kTotals; ++k) {
      const int row = warp + k * n_warps;
      if (row < kRows) {
#pragma unroll 4
        for (int s = 0; s < summed; ++s) {
          totals[k] = add_rn(totals[k], sums[(s * kRows + row) * kPad + lane]);
        }
      }
    }
    if (round + n_warps < n_segments) __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kTotals; ++k) {
    const int row = warp + k * n_warps;
    const int out = row < kRows ? places.out(a, row) : -1;
    if (out < 0) continue;
    finish_tile(a, totals[k], places.gain, a.gains != nullptr, out, places.mark(a, row), blockIdx.y,
                lane);
  }
  leave(a.order);
}

// As many warps as there are segments, or an equal share of them, as far as shared memory goes.
int warps_for(int n_segments, int least, int most) {
  const int turns = (n_segments + most - 1) / most;
  return std::max(least, (n_segments + turns - 1) / turns);
}

dim3 grid_of(const LinearArgs& a, int rows) {
  const int blocks = a.slot_expert != nullptr ? a.max_slots * ((a.slot_rows + rows - 1) / rows)
                                              : (a.n_rows + rows - 1) / rows;
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(n_tiles(a.n_out))};
}

template <Format F, int R>
void launch_rows(const LinearArgs& a, cudaStream_t stream) {
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::size_t sums = static_cast<std::size_t>(n_segments) * R * 32 * 4;
  const std::size_t of_warp = WeightQueue<F>::kStride + kRowsBytes<F, R>;
  const auto room = static_cast<int>((shared_limit() - std::min(sums, shared_limit())) / of_warp);
  const int n_warps = warps_for(n_segments, 1, std::clamp(room, 1, kRowsWarps));
  const std::size_t shared = static_cast<std::size_t>(n_warps) * of_warp + sums;
  allow_shared(block_rows<F, R>, shared);
  launch(block_rows<F, R>, grid_of(a, R), dim3(static_cast<unsigned>(32 * n_warps)), shared, stream,
         a);
}

template <Format F, int NN>
void launch_mma(const LinearArgs& a, cudaStream_t stream) {
  constexpr int kRows = 8 * NN;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::size_t of_warp = WeightQueue<F>::kStride + static_cast<std::size_t>(kRows) * kPad * 4;
  const int most = std::clamp(static_cast<int>(shared_limit() / of_warp), 4, kMmaWarps<NN>);
  const int n_warps = warps_for(n_segments, 4, most);
  const std::size_t shared = static_cast<std::size_t>(n_warps) * of_warp;
  allow_shared(block_mma<F, NN>, shared);
  launch(block_mma<F, NN>, grid_of(a, kRows), dim3(static_cast<unsigned>(32 * n_warps)), shared,
         stream, a);
}

template <Format F>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  const int rows = a.slot_expert != nullptr ? a.slot_rows : a.n_rows;
  // The sums of very long rows leave room for one of them only.
  if (rows == 1 || (rows <= 4 && a.n_cols > 32768)) return launch_rows<F, 1>(a, stream);
  if (rows <= 4) return launch_rows<F, 4>(a, stream);
  if (rows <= 8) return launch_mma<F, 1>(a, stream);
  launch_mma<F, 4>(a, stream);
}

}  // namespace

void launch_linear_blocks(const LinearArgs& args, Format format, cudaStream_t stream) {
  switch (format) {
    case Format::fp8:
      return launch_format<Format::fp8>(args, stream);
    case Format::q4_0:
      return launch_format<Format::q4_0>(args, stream);
    case Format::q4_1:
      return launch_format<Format::q4_1>(args, stream);
    case Format::q5_0:
      return launch_format<Format::q5_0>(args, stream);
    case Format::q5_1:
      return launch_format<Format::q5_1>(args, stream);
    case Format::q2_k:
      return launch_format<Format::q2_k>(args, stream);
    case Format::q3_k:
      return launch_format<Format::q3_k>(args, stream);
    case Format::q4_k:
      return launch_format<Format::q4_k>(args, stream);
    case Format::q5_k:
      return launch_format<Format::q5_k>(args, stream);
    case Format::q6_k:
      return launch_format<Format::q6_k>(args, stream);
    case Format::iq4_nl:
      return launch_format<Format::iq4_nl>(args, stream);
    case Format::iq4_xs:
      return launch_format<Format::iq4_xs>(args, stream);
    case Format::iq2_xxs:
      return launch_format<Format::iq2_xxs>(args, stream);
    case Format::mxfp4:
      return launch_format<Format::mxfp4>(args, stream);
    default:
      return;
  }
}

}  // namespace bolt::cuda
