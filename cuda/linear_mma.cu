// Integer linear layers for five rows and more, on the int8 tensor cores. A block owns a tile of 32
// outputs and up to 8 * NN rows; warp w sums segments w, w + n_warps, ...: in each round every warp
// sums one segment, and the sums of a round are added in ascending order (arithmetic.md §4).
//
// Inside a warp, lane 4g + t holds outputs 4g..4g+3 of the tile for rows 2t, 2t + 1 of each block
// of eight; the packed layout gives it its four outputs' codes in one 16-byte load.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/linear.cuh"
#include "cuda/linear_blocks.cuh"
#include "cuda/linear_chunk.cuh"
#include "cuda/weight_queue.cuh"

namespace bolt::cuda {
namespace {

constexpr int kPad = 36;  // floats of a row of sums: 32 outputs, and 4 against bank conflicts

// One group of the tile as a lane holds it: outputs 4g..4g+3, lane t's eight columns.
template <Format F>
struct Fragment;

template <>
struct Fragment<Format::q8> {
  uint4 low, high;  // slots 0..3 and 4..7 of the four outputs
  uint2 scales;     // four binary16

  BOLT_DEV void read(const std::byte* block, int g, int t) {
    const int chunk = t * 128 + ((g ^ (2 * t)) << 4);
    low = *reinterpret_cast<const uint4*>(block + chunk);
    high = *reinterpret_cast<const uint4*>(block + 512 + chunk);
    scales = reinterpret_cast<const uint2*>(block + 1024)[g];
  }
  // Adds this group to acc[n][output][row parity] for every block n of eight rows.
  template <int NN>
  BOLT_DEV void add(const uint2 (&b)[NN], const float (&sa)[NN][2], float (&acc)[NN][4][2]) const {
    const float2 s01 = __half22float2(*reinterpret_cast<const __half2*>(&scales.x));
    const float2 s23 = __half22float2(*reinterpret_cast<const __half2*>(&scales.y));
    const float s[4] = {s01.x, s01.y, s23.x, s23.y};
    const std::uint32_t a_low[4] = {low.x, low.y, low.z, low.w};
    const std::uint32_t a_high[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < NN; ++n) {
        int d[4] = {0, 0, 0, 0};
        mma_s8_k32(d, a_low[2 * m], a_low[2 * m + 1], a_high[2 * m], a_high[2 * m + 1], b[n].x,
                   b[n].y);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& c = acc[n][2 * m + (i >> 1)][i & 1];
          c = fma_rn(mul_rn(__int2float_rn(d[i]), s[2 * m + (i >> 1)]), sa[n][i & 1], c);
        }
      }
    }
  }
  BOLT_DEV static const std::int8_t* codes(const QuantView& x) { return x.slots; }
};

template <>
struct Fragment<Format::nvfp4> {
  uint4 words;
  uint2 scales;  // e4m3 of four outputs, half 0 and half 1
  const E2m1Tables tables;

  BOLT_DEV void read(const std::byte* block, int g, int t) {
    words = *reinterpret_cast<const uint4*>(block + t * 128 + ((g ^ (2 * t)) << 4));
    scales = reinterpret_cast<const uint2*>(block + 512)[g];
  }
  template <int NN>
  BOLT_DEV void add(const uint2 (&b)[NN], const float (&sa)[NN][2], float (&acc)[NN][4][2]) const {
    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      std::uint32_t half0[2], half1[2];
      float s0[2], s1[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        e2m1_halves_plus_12(tables, w[2 * m + i], half0[i], half1[i]);
        half0[i] = minus_12(half0[i]);
        half1[i] = minus_12(half1[i]);
        s0[i] = e4m3_scale((scales.x >> (8 * (2 * m + i))) & 0xff);
        s1[i] = e4m3_scale((scales.y >> (8 * (2 * m + i))) & 0xff);
      }
#pragma unroll
      for (int n = 0; n < NN; ++n) {
        int d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0};
        mma_s8_k16(d0, half0[0], half0[1], b[n].x);
        mma_s8_k16(d1, half1[0], half1[1], b[n].y);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float term =
              fma_rn(__int2float_rn(d1[i]), s1[i >> 1], mul_rn(__int2float_rn(d0[i]), s0[i >> 1]));
          float& c = acc[n][2 * m + (i >> 1)][i & 1];
          c = fma_rn(term, sa[n][i & 1], c);
        }
      }
    }
  }
  BOLT_DEV static const std::int8_t* codes(const QuantView& x) { return x.halves; }
};

// The rows of one group as a lane holds them: 8 columns of row g of each block of eight, and the
// scales of rows 2t, 2t + 1.
template <int NN>
struct RowGroup {
  uint2 codes[NN];
  float scale[NN][2];
};

template <Format F, int NN>
constexpr int kWarpsOf = NN == 1   ? 16
                         : NN == 2 ? 12
                                   : 8;

// Grid (tiles, row blocks or slots), block 32 x n_warps; shared memory: the warps' queues, then
// their sums f32 [n_warps][8 NN][kPad].
template <Format F, int NN, bool Slots>
__global__ void __launch_bounds__(32 * kWarpsOf<F, NN>, NN == 4 ? 2 : 1) integer_mma(LinearArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  constexpr int kRows = 8 * NN;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
  const int g = lane >> 2, t = lane & 3, tile = blockIdx.x;
  auto* const sums = reinterpret_cast<float*>(shared + n_warps * WeightQueue<F>::kStride);
  enter(a.order);
  WeightQueue<F> queue;
  queue.prepare(shared + warp * WeightQueue<F>::kStride, lane);
  wait_for_slots<Slots>(a);

  const std::uint8_t* weights = a.weights;
  float gain = 1.0f;
  const bool gained = a.gains != nullptr;
  if (Slots) {
    if (a.n_slots != nullptr && static_cast<int>(blockIdx.y) >= *a.n_slots) return;
    const int expert = a.slot_expert[blockIdx.y];
    weights += static_cast<std::int64_t>(expert) * a.matrix_bytes;
    if (gained) gain = a.gains[expert];
  } else if (gained) {
    gain = a.gains[0];
  }
  const int n_groups = a.n_groups, n_segments = (n_groups + kSegmentGroups - 1) / kSegmentGroups;
  queue.start(weights + static_cast<std::int64_t>(tile) * n_groups * block_bytes(F), n_groups, warp,
              n_warps, lane);
  if (!Slots || a.slots_ready) wait_for_rows(a.order);  // the weights are on their way

  const auto in_row = [&](int place) {
    if (Slots) return a.slot_in[blockIdx.y * kRows + place];
    const int row = static_cast<int>(blockIdx.y) * kRows + place;
    return row < a.n_rows ? row : a.n_rows - 1;
  };
  const std::int8_t* code[NN];
  const float* scale[NN][2];
#pragma unroll
  for (int n = 0; n < NN; ++n) {
    code[n] = Fragment<F>::codes(a.x) +
              static_cast<std::int64_t>(in_row(n * 8 + g)) * n_groups * 32 + t * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      scale[n][j] = a.x.scale + static_cast<std::int64_t>(in_row(n * 8 + 2 * t + j)) * n_groups;
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
      const int first = segment * kSegmentGroups, last = min(first + kSegmentGroups, n_groups);
      float acc[NN][4][2];
#pragma unroll
      for (int n = 0; n < NN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i][0] = acc[n][i][1] = 0.0f;
      }
      Fragment<F> fragment;
      RowGroup<NN> x[2];
      load_rows(x[0], first);
      int offset = 0;
      for (int group = first; group < last; group += 2) {
        constexpr int kRun = WeightQueue<F>::kRunGroups;
        if (group + 1 < last) load_rows(x[1], group + 1);
        offset = (group - first) % kRun == 0 ? queue.wait_front() : offset + 2 * block_bytes(F);
        const std::byte* pair = queue.ring + offset;
        fragment.read(pair, g, t);
        fragment.template add<NN>(x[0].codes, x[0].scale, acc);
        if (group + 2 < last) load_rows(x[0], group + 2);
        if (group + 1 < last) {
          fragment.read(pair + block_bytes(F), g, t);
          fragment.template add<NN>(x[1].codes, x[1].scale, acc);
        }
        if ((group + 2 - first) % kRun == 0 || group + 2 >= last) queue.pop(lane);
      }
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
    if (row >= kRows) continue;
    const int place = static_cast<int>(blockIdx.y) * kRows + row;
    const int out = Slots ? a.slot_out[place] : (place < a.n_rows ? place : -1);
    if (out < 0) continue;
    finish_tile(a, totals[k], gain, gained, out, Slots ? a.slot_mark[place] : place, tile, lane);
  }
  leave(a.order);
}

template <Format F, int NN, bool Slots>
void launch_mma(const LinearArgs& a, cudaStream_t stream) {
  constexpr int kRows = 8 * NN;
  const int n_segments = (a.n_groups + kSegmentGroups - 1) / kSegmentGroups;
  const std::size_t of_warp = WeightQueue<F>::kStride + static_cast<std::size_t>(kRows) * kPad * 4;
  const int most = std::clamp(static_cast<int>(shared_limit() / of_warp), 4, kWarpsOf<F, NN>);
  const int turns = (n_segments + most - 1) / most;
  const int n_warps = std::max(4, (n_segments + turns - 1) / turns);
  const std::size_t shared = static_cast<std::size_t>(n_warps) * of_warp;
  const dim3 grid(static_cast<unsigned>(n_tiles(a.n_out)),
                  static_cast<unsigned>(Slots ? a.max_slots : (a.n_rows + kRows - 1) / kRows));
  allow_shared(integer_mma<F, NN, Slots>, shared);
  launch(integer_mma<F, NN, Slots>, grid, dim3(static_cast<unsigned>(32 * n_warps)), shared, stream,
         a);
}

template <Format F>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  if (a.slot_expert != nullptr) return launch_mma<F, kSlotRowsFew / 8, true>(a, stream);
  if (a.n_rows <= 8) return launch_mma<F, 1, false>(a, stream);
  if (a.n_rows <= 16) return launch_mma<F, 2, false>(a, stream);
  launch_mma<F, 4, false>(a, stream);
}

}  // namespace

void launch_linear_mma(const LinearArgs& args, Format format, cudaStream_t stream) {
  if (format == Format::q8) return launch_format<Format::q8>(args, stream);
  launch_format<Format::nvfp4>(args, stream);
}

void launch_linear(const LinearArgs& args, Format format, cudaStream_t stream) {
  if (is_block(format)) return launch_linear_blocks(args, format, stream);
  if (chunk_serves(args)) return launch_linear_chunk(args, format, stream);
  const bool many = (args.slot_expert != nullptr ? args.slot_rows : args.n_rows) > 4;
  if (is_integer(format) && many) return launch_linear_mma(args, format, stream);
  launch_linear_rows(args, format, stream);
}

}  // namespace bolt::cuda
