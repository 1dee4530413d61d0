// Linear layers for prompt chunks (arithmetic.md §4). A block owns 128 outputs (four tiles) and up
// to 8 * NN * WC rows; a warp owns one tile and 8 * NN of the rows, all of K. Codes come through a
// queue of stages in shared memory, two groups each; a segment's sums stay in registers, the totals
// in shared memory, where only the thread that owns them touches them.
//
// Inside a warp, lane 4g + t holds outputs 4g..4g+3 of its tile for rows 2t, 2t + 1 of each block
// of eight, as in linear_mma.cu.
#include <algorithm>

#include "cuda/chunk_async.cuh"
#include "cuda/launch.cuh"
#include "cuda/linear_chunk.cuh"

namespace bolt::cuda {
namespace {

constexpr int kBlockTiles = 4;   // of a block: one a warp along the outputs
constexpr int kStageGroups = 2;  // divides kSegmentGroups, so that no stage crosses a segment

// Where a block's rows come from and go to: rows of the call, or places of an expert's slot.
template <bool Slots>
struct Places {
  int first, n_live;
  const std::uint8_t* weights;
  float gain;
  bool gained;

  // False if the block has nothing to do. Every thread of the block calls it.
  BOLT_DEV bool find(const LinearArgs& a, int block, int n_places) {
    first = block * n_places;
    gained = a.gains != nullptr;
    int matrix = 0;
    if (Slots) {
      if (block >= *a.n_slots) return false;
      matrix = a.slot_expert[block];
      // A slot is filled from its first place on.
      const int place = first + static_cast<int>(threadIdx.x);
      n_live =
          __syncthreads_count(static_cast<int>(threadIdx.x) < n_places && a.slot_out[place] >= 0);
    } else {
      n_live = min(n_places, a.n_rows - first);
    }
    weights = a.weights + static_cast<std::int64_t>(matrix) * a.matrix_bytes;
    gain = gained ? a.gains[matrix] : 1.0f;
    return true;
  }
  BOLT_DEV int in(const LinearArgs& a, int i) const {
    return Slots ? a.slot_in[first + i] : first + min(i, n_live - 1);
  }
  BOLT_DEV int out(const LinearArgs& a, int i) const {
    return i >= n_live ? -1 : Slots ? a.slot_out[first + i] : first + i;
  }
  BOLT_DEV int mark(const LinearArgs& a, int i) const {
    return Slots ? a.slot_mark[first + i] : first + i;
  }
};

// One group of a tile as a lane holds it, its products with eight rows, and their scaled sums. `m`
// is a pair of outputs, 4g + 2m and 4g + 2m + 1.
template <Format F>
struct Fragment;

template <>
struct Fragment<Format::q8> {
  struct Dots {
    int d[4];
  };
  std::uint32_t codes[2][4];  // [m][slots 0..3 of two outputs, slots 4..7 of the two]
  float scale[4], base[4];

  BOLT_DEV void load(const unsigned char* block, int g, int t) {
    const unsigned char* chunk = block + t * 128 + ((g ^ (2 * t)) << 4);
    const uint4 low = *reinterpret_cast<const uint4*>(chunk);
    const uint4 high = *reinterpret_cast<const uint4*>(chunk + 512);
    codes[0][0] = low.x, codes[0][1] = low.y, codes[0][2] = high.x, codes[0][3] = high.y;
    codes[1][0] = low.z, codes[1][1] = low.w, codes[1][2] = high.z, codes[1][3] = high.w;
    const uint2 halves = *reinterpret_cast<const uint2*>(block + 1024 + g * 8);
    const float2 s01 = __half22float2(*reinterpret_cast<const __half2*>(&halves.x));
    const float2 s23 = __half22float2(*reinterpret_cast<const __half2*>(&halves.y));
    scale[0] = s01.x, scale[1] = s01.y, scale[2] = s23.x, scale[3] = s23.y;
#pragma unroll
    for (int i = 0; i < 4; ++i) base[i] = mul_rn(-kSumBase, scale[i]);
  }
  BOLT_DEV void dot(int m, uint2 b, Dots& dots) const { mma_sum_k32(dots.d, codes[m], b); }
  BOLT_DEV void add(int m, const Dots& dots, float2 sa, float (&acc)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int o = 2 * m + (i >> 1);
      const float term = fma_rn(__int_as_float(dots.d[i]), scale[o], base[o]);
      acc[o][i & 1] = fma_rn(term, i & 1 ? sa.y : sa.x, acc[o][i & 1]);
    }
  }
  BOLT_DEV static const std::int8_t* rows(const QuantView& x) { return x.slots; }
};

template <>
struct Fragment<Format::nvfp4> {
  struct Dots {
    int d0[4], d1[4];
  };
  std::uint32_t half0[2][2], half1[2][2];  // [m][output]
  float scale0[4], base0[4], scale1[4];

  BOLT_DEV void load(const unsigned char* block, int g, int t) {
    const uint4 words = *reinterpret_cast<const uint4*>(block + t * 128 + ((g ^ (2 * t)) << 4));
    const uint2 scales = *reinterpret_cast<const uint2*>(block + 512 + g * 8);
    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Bytes 0 and 2 hold the codes of the first half (slots 0, 1, 4, 5), 1 and 3 the second's.
      e2m1_to_s8(__byte_perm(w[i], 0, 0x3120), half0[i >> 1][i & 1], half1[i >> 1][i & 1]);
      scale0[i] = e4m3_scale((scales.x >> (8 * i)) & 0xff);
      scale1[i] = e4m3_scale((scales.y >> (8 * i)) & 0xff);
      base0[i] = mul_rn(-kSumBase, scale0[i]);
    }
  }
  BOLT_DEV void dot(int m, uint2 b, Dots& dots) const {
    mma_sum_k16(dots.d0, half0[m], b.x);
    mma_sum_k16(dots.d1, half1[m], b.y);
  }
  BOLT_DEV void add(int m, const Dots& dots, float2 sa, float (&acc)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int o = 2 * m + (i >> 1);
      const float first = fma_rn(__int_as_float(dots.d0[i]), scale0[o], base0[o]);  // exact
      const float second = add_rn(__int_as_float(dots.d1[i]), -kSumBase);           // exact
      acc[o][i & 1] = fma_rn(fma_rn(second, scale1[o], first), i & 1 ? sa.y : sa.x, acc[o][i & 1]);
    }
  }
  BOLT_DEV static const std::int8_t* rows(const QuantView& x) { return x.halves; }
};

// A stage in shared memory: [tile][group] blocks, [group][row] codes, [group][row] scales.
template <Format F, int Rows>
struct Stage {
  static constexpr int kBlock = block_bytes(F);
  static constexpr int kRowCodes = kBlockTiles * kStageGroups * kBlock;
  static constexpr int kRowScales = kRowCodes + kStageGroups * Rows * kGroupCols;
  static constexpr int kBytes = kRowScales + kStageGroups * Rows * 4;
};

template <Format F, int NN, int WC, int Stages>
constexpr int shared_bytes() {
  constexpr int kRows = 8 * NN * WC;
  return Stages * Stage<F, kRows>::kBytes + kRows * kBlockTiles * kTileRows * 4;
}

// The work of a block whose live places are at most 8 * NN * WC.
template <Format F, int NN, int WC, int Stages, bool Slots>
BOLT_DEV void sum_block(const LinearArgs& a, const Places<Slots>& places, int first_tile,
                        unsigned char* shared) {
  constexpr int kRows = 8 * NN * WC, kThreads = 128 * WC, kBlock = block_bytes(F);
  constexpr int kWarps = 4 * WC, kBlocksAWarp = kBlockTiles * kStageGroups / kWarps;
  constexpr int kCodeChunks = kRows * kStageGroups * 2;  // of 16 bytes, a stage
  constexpr int kChunksAThread = (kCodeChunks + kThreads - 1) / kThreads;
  using Layout = Stage<F, kRows>;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int g = lane >> 2, t = lane & 3, warp_tile = warp & 3, warp_rows = (warp >> 2) * 8 * NN;
  const int n_groups = a.n_groups, n_stages = (n_groups + kStageGroups - 1) / kStageGroups;
  const int last_tile = (a.n_out + kTileRows - 1) / kTileRows - 1;

  // What this thread copies of each stage: 16-byte chunks of kBlocksAWarp blocks, of rows' codes,
  // and one scale.
  const unsigned char* block_from[kBlocksAWarp];
#pragma unroll
  for (int i = 0; i < kBlocksAWarp; ++i) {
    const int block = warp * kBlocksAWarp + i;  // [tile][group]
    const int tile = min(first_tile + block / kStageGroups, last_tile);
    block_from[i] = places.weights + lane * 16 +
                    (static_cast<std::int64_t>(tile) * n_groups + block % kStageGroups) * kBlock;
  }
  const std::int8_t* code_from[kChunksAThread];
#pragma unroll
  for (int i = 0; i < kChunksAThread; ++i) {
    const int row = min((thread + i * kThreads) >> 2, kRows - 1);
    code_from[i] = Fragment<F>::rows(a.x) +
                   static_cast<std::int64_t>(places.in(a, row)) * n_groups * kGroupCols +
                   (thread & 3) * 16;
  }
  const int scale_row = min(thread >> 1, kRows - 1);
  const float* scale_from =
      a.x.scale + static_cast<std::int64_t>(places.in(a, scale_row)) * n_groups + (thread & 1);
  int loaded = 0, load_slot = 0;
  const auto load = [&] {
    if (loaded < n_stages) {
      unsigned char* stage = shared + load_slot * Layout::kBytes;
      const int left = n_groups - loaded * kStageGroups;  // groups past the last are zeros
#pragma unroll
      for (int i = 0; i < kBlocksAWarp; ++i) {
        const int block = warp * kBlocksAWarp + i;
        const int bytes = block % kStageGroups < left ? 16 : 0;
        unsigned char* to = stage + block * kBlock + lane * 16;
        copy_16(to, block_from[i], bytes);
        if (F == Format::q8) copy_16(to + 512, block_from[i] + 512, bytes);
        if (lane < 4) copy_16(to + kBlock - 64, block_from[i] + kBlock - 64, bytes);
        block_from[i] += kStageGroups * kBlock;
      }
      const int group = (thread >> 1) & 1;
#pragma unroll
      for (int i = 0; i < kChunksAThread; ++i) {
        const int chunk = thread + i * kThreads;
        if (kCodeChunks % kThreads == 0 || chunk < kCodeChunks) {
          copy_16(stage + Layout::kRowCodes + (group * kRows + (chunk >> 2)) * kGroupCols +
                      (thread & 1) * 16,
                  code_from[i], group < left ? 16 : 0);
        }
        code_from[i] += kStageGroups * kGroupCols;
      }
      if (thread < kStageGroups * kRows) {
        copy_4(stage + Layout::kRowScales + ((thread & 1) * kRows + scale_row) * 4, scale_from,
               (thread & 1) < left ? 4 : 0);
      }
      scale_from += kStageGroups;
      ++loaded;
      load_slot = load_slot + 1 == Stages ? 0 : load_slot + 1;
    }
    copies_commit();
  };

  float4* totals = reinterpret_cast<float4*>(shared + Stages * Layout::kBytes) + thread;
  float acc[NN][4][2];
#pragma unroll
  for (int n = 0; n < NN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i][0] = acc[n][i][1] = 0.0f;
    totals[2 * n * kThreads] = totals[(2 * n + 1) * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int s = 0; s < Stages - 1; ++s) load();

  int slot = 0;
#pragma unroll 1
  for (int s = 0; s < n_stages; ++s) {
    copies_wait<Stages - 2>();
    __syncthreads();  // everyone's copies of this stage are here, and the one before is read
    load();
    const unsigned char* stage = shared + slot * Layout::kBytes;
    slot = slot + 1 == Stages ? 0 : slot + 1;
#pragma unroll
    for (int u = 0; u < kStageGroups; ++u) {
      Fragment<F> weights;
      weights.load(stage + (warp_tile * kStageGroups + u) * kBlock, g, t);
      const unsigned char* codes =
          stage + Layout::kRowCodes + (u * kRows + warp_rows + g) * kGroupCols + t * 8;
      const unsigned char* scales =
          stage + Layout::kRowScales + (u * kRows + warp_rows + 2 * t) * 4;
      // The products of step j + 1 are under way while step j's are scaled; a step is one pair of
      // outputs and eight rows.
      typename Fragment<F>::Dots dots[2];
      uint2 b = *reinterpret_cast<const uint2*>(codes);
      weights.dot(0, b, dots[0]);
#pragma unroll
      for (int j = 0; j < 2 * NN; ++j) {
        const int n = j >> 1, m = j & 1;
        if (j + 1 < 2 * NN) {
          if (m == 1) b = *reinterpret_cast<const uint2*>(codes + (n + 1) * 8 * kGroupCols);
          weights.dot((j + 1) & 1, b, dots[(j + 1) & 1]);
        }
        const float2 sa = *reinterpret_cast<const float2*>(scales + n * 8 * 4);
        weights.add(m, dots[j & 1], sa, acc[n]);
      }
    }
    if (s % (kSegmentGroups / kStageGroups) == kSegmentGroups / kStageGroups - 1 ||
        s == n_stages - 1) {
#pragma unroll
      for (int n = 0; n < NN; ++n) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float4& total = totals[(2 * n + k) * kThreads];
          const float4 old = total;
          total = make_float4(add_rn(old.x, acc[n][0][k]), add_rn(old.y, acc[n][1][k]),
                              add_rn(old.z, acc[n][2][k]), add_rn(old.w, acc[n][3][k]));
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[n][i][k] = 0.0f;
        }
      }
    }
  }

  // A warp's totals are its rows' 32 outputs: now lane = output.
  const int tile = first_tile + warp_tile, n = tile * kTileRows + lane;
  if (tile > last_tile) return;
  __syncwarp();
  const float* outputs = reinterpret_cast<const float*>(shared + Stages * Layout::kBytes) +
                         (warp * 32 + (lane >> 2) * 4) * 4 + (lane & 3);
#pragma unroll 2
  for (int i = 0; i < 8 * NN; ++i) {
    const int place = warp_rows + i, out = places.out(a, place);
    if (out < 0 || n >= a.n_out) continue;
    // Row i of the warp is k = i % 2 of lanes with t = i / 2 % 4 in block i / 8.
    const float total = outputs[(2 * (i >> 3) + (i & 1)) * kThreads * 4 + ((i >> 1) & 3) * 4];
    finish_sum(a, total, places.gain, places.gained, out, places.mark(a, place), n);
  }
}

// Grid (row blocks, tiles / 4), or for slots (tiles / 4, slots): blocks that run together share the
// larger of weights and rows. A slot with few live places takes a narrower form.
template <Format F, int NN, int WC, int Stages, int Resident, bool Slots>
__global__ void __launch_bounds__(128 * WC, Resident) integer_chunk(LinearArgs a) {
  extern __shared__ __align__(16) unsigned char chunk_shared[];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  Places<Slots> places;
  if (!places.find(a, Slots ? blockIdx.y : blockIdx.x, 8 * NN * WC)) return;
  const int first_tile = kBlockTiles * (Slots ? blockIdx.x : blockIdx.y);
  if (Slots && NN > 2 && places.n_live <= 2 * NN * WC) {
    sum_block<F, NN / 4, WC, Stages, Slots>(a, places, first_tile, chunk_shared);
  } else if (Slots && NN > 2 && places.n_live <= 4 * NN * WC) {
    sum_block<F, NN / 2, WC, Stages, Slots>(a, places, first_tile, chunk_shared);
  } else if (Slots && NN > 2 && places.n_live <= 6 * NN * WC) {
    sum_block<F, NN * 3 / 4, WC, Stages, Slots>(a, places, first_tile, chunk_shared);
  } else {
    sum_block<F, NN, WC, Stages, Slots>(a, places, first_tile, chunk_shared);
  }
}

template <Format F, int NN, int WC, int Stages, int Resident, bool Slots>
void launch_integer(const LinearArgs& a, cudaStream_t stream) {
  constexpr int kRows = 8 * NN * WC;
  constexpr std::size_t kShared = shared_bytes<F, NN, WC, Stages>();
  const auto tiles = static_cast<unsigned>((n_tiles(a.n_out) + kBlockTiles - 1) / kBlockTiles);
  const dim3 grid = Slots ? dim3(tiles, static_cast<unsigned>(a.max_slots))
                          : dim3(static_cast<unsigned>((a.n_rows + kRows - 1) / kRows), tiles);
  const auto kernel = integer_chunk<F, NN, WC, Stages, Resident, Slots>;
  allow_shared(kernel, kShared);
  launch(kernel, grid, dim3(128 * WC), kShared, stream, a);
}

template <Format F>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  if (a.slot_expert != nullptr) {
    if (a.slot_rows == 32) return launch_integer<F, 4, 1, 3, 3, true>(a, stream);
    if (a.slot_rows == 64) return launch_integer<F, 8, 1, 3, 3, true>(a, stream);
    return launch_integer<F, 8, 2, 2, 2, true>(a, stream);
  }
  if (a.n_rows <= 64) return launch_integer<F, 8, 1, 3, 3, false>(a, stream);
  launch_integer<F, 8, 2, 2, 2, false>(a, stream);
}

}  // namespace

bool chunk_serves(const LinearArgs& a, Format format) {
  const bool integer = format == Format::q8 || format == Format::nvfp4;
  if (!integer) return false;
  if (a.slot_expert == nullptr) return a.n_rows > 32;
  return a.slot_rows == 32 || a.slot_rows == 64 || a.slot_rows == 128;
}

void launch_linear_chunk(const LinearArgs& args, Format format, cudaStream_t stream) {
  if (format == Format::q8) return launch_format<Format::q8>(args, stream);
  launch_format<Format::nvfp4>(args, stream);
}

}  // namespace bolt::cuda
