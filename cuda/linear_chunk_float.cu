// Float linear layers for prompt chunks (arithmetic.md §4): fp32 fma in the contract's four chains
// a segment. A block owns a tile of 32 outputs and 8 R rows; 64 threads work on each chain, a
// thread on four outputs and R rows. Weights and rows come through a queue of stages in shared
// memory, a group each; a segment's chains meet in shared memory and enter the totals in their
// order.
#include "cuda/chunk.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

constexpr int kChains = 4, kThreads = 256, kStages = 4;
constexpr int kRowFloats = kGroupCols + 4;  // four against bank conflicts

constexpr int stage_bytes(Format format, int n_rows) {
  return block_bytes(format) + n_rows * kRowFloats * 4;
}
constexpr int shared_bytes(Format format, int n_rows) {
  return kStages * stage_bytes(format, n_rows) + kChains * n_rows * kTileRows * 4;
}

// Columns 8 i + 2 t and 8 i + 2 t + 1 of outputs 4 o..4 o + 3.
template <Format F>
BOLT_DEV void load_pairs(const unsigned char* block, int i, int t, int o, float2 (&w)[4]) {
  const int chunk = t * 8 + (o ^ (2 * t));
  if constexpr (F == Format::f32) {
    const auto* pairs = reinterpret_cast<const float4*>(block + i * 1024 + chunk * 32);
    const float4 first = pairs[0], second = pairs[1];
    w[0] = make_float2(first.x, first.y), w[1] = make_float2(first.z, first.w);
    w[2] = make_float2(second.x, second.y), w[3] = make_float2(second.z, second.w);
  } else {
    const uint4 four = *reinterpret_cast<const uint4*>(block + i * 512 + chunk * 16);
    const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (F == Format::bf16) {
        w[k] =
            make_float2(__uint_as_float(words[k] << 16), __uint_as_float(words[k] & 0xffff0000u));
      } else {
        w[k] = __half22float2(*reinterpret_cast<const __half2*>(&words[k]));
      }
    }
  }
}

// Grid (row blocks, tiles), or for slots (tiles, slots). Aligned: rows can be copied 16 bytes at a
// time.
template <Format F, int R, bool Aligned, bool Slots>
__global__ void __launch_bounds__(kThreads, 2) float_chunk(LinearArgs a) {
  extern __shared__ __align__(16) unsigned char chunk_shared[];
  constexpr int kRows = 8 * R, kBlock = block_bytes(F), kStage = stage_bytes(F, kRows);
  enter(a.order);
  wait_for_rows(a.order);
  Places<Slots> places;
  if (!places.find(a, Slots ? blockIdx.y : blockIdx.x, kRows)) return leave(a.order);
  const int thread = threadIdx.x, lane = thread & 31, tile = Slots ? blockIdx.x : blockIdx.y;
  const int n_groups = a.n_groups;
  const std::uint8_t* blocks = places.weights + static_cast<std::int64_t>(tile) * n_groups * kBlock;

  // What this thread copies: `kCopies` pieces of rows, of Piece bytes.
  constexpr int kPiece = Aligned ? 16 : 4, kPieces = kGroupCols * 4 / kPiece;
  constexpr int kCopies = kRows * kPieces / kThreads;
  const int piece_col = thread % kPieces * (kPiece / 4);
  const float* row_from[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int row = thread / kPieces + i * (kThreads / kPieces);
    row_from[i] = a.x.x + static_cast<std::int64_t>(places.in(a, row)) * a.x.x_stride + piece_col;
  }
  int loaded = 0;
  const auto load = [&] {
    if (loaded < n_groups) {
      unsigned char* stage = chunk_shared + loaded % kStages * kStage;
#pragma unroll
      for (int i = 0; i < kBlock / 16; i += kThreads) {
        if (i + kThreads <= kBlock / 16 || thread + i < kBlock / 16) {
          copy_16(stage + (thread + i) * 16,
                  blocks + static_cast<std::int64_t>(loaded) * kBlock + (thread + i) * 16, 16);
        }
      }
      // Columns past the last are zeros.
      const int col = loaded * kGroupCols, left = (a.n_cols - col - piece_col) * 4;
      const int bytes = max(0, min(left, kPiece));
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = thread / kPieces + i * (kThreads / kPieces);
        unsigned char* to = stage + kBlock + (row * kRowFloats + piece_col) * 4;
        const float* from = bytes > 0 ? row_from[i] + col : a.x.x;
        if constexpr (Aligned) {
          copy_16(to, from, bytes);
        } else {
          copy_4(to, from, bytes);
        }
      }
      ++loaded;
    }
    copies_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) load();

  const int t = thread >> 6, o = lane & 7, first_row = (thread >> 3) & 7;   // rows first_row + 8 j
  float* sums = reinterpret_cast<float*>(chunk_shared + kStages * kStage);  // [chain][row][output]
  float acc[R][4], totals[R];
#pragma unroll
  for (int j = 0; j < R; ++j) totals[j] = acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.0f;

#pragma unroll 1
  for (int group = 0; group < n_groups; ++group) {
    copies_wait<kStages - 2>();
    __syncthreads();  // everyone's copies of this stage are here, and the one before is read
    load();
    const unsigned char* stage = chunk_shared + group % kStages * kStage;
    const float* x =
        reinterpret_cast<const float*>(stage + kBlock) + first_row * kRowFloats + 2 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 w[4];
      load_pairs<F>(stage, i, t, o, w);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float2 v = *reinterpret_cast<const float2*>(x + j * 8 * kRowFloats + 8 * i);
#pragma unroll
        for (int k = 0; k < 4; ++k) acc[j][k] = fma_rn(w[k].y, v.y, fma_rn(w[k].x, v.x, acc[j][k]));
      }
    }
    if (group % kSegmentGroups == kSegmentGroups - 1 || group == n_groups - 1) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        *reinterpret_cast<float4*>(sums + (t * kRows + first_row + 8 * j) * kTileRows + 4 * o) =
            make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
        acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < R; ++j) {
#pragma unroll
        for (int chain = 0; chain < kChains; ++chain) {
          totals[j] = add_rn(totals[j], sums[chain * kRows * kTileRows + thread + j * kThreads]);
        }
      }
      // The barrier of the next group stands before the next segment's sums.
    }
  }
#pragma unroll
  for (int j = 0; j < R; ++j) {
    const int place = (thread >> 5) + 8 * j, out = places.out(a, place);
    if (out < 0) continue;
    finish_tile(a, totals[j], places.gain, places.gained, out, places.mark(a, place), tile, lane);
  }
  leave(a.order);
}

template <Format F, int R, bool Aligned, bool Slots>
void launch_shape(const LinearArgs& a, cudaStream_t stream) {
  constexpr int kRows = 8 * R, kShared = shared_bytes(F, kRows);
  const auto tiles = static_cast<unsigned>(n_tiles(a.n_out));
  const dim3 grid = Slots ? dim3(tiles, static_cast<unsigned>(a.max_slots))
                          : dim3(static_cast<unsigned>((a.n_rows + kRows - 1) / kRows), tiles);
  const auto kernel = float_chunk<F, R, Aligned, Slots>;
  allow_shared(kernel, kShared);
  launch(kernel, grid, dim3(kThreads), kShared, stream, a);
}

template <Format F, bool Aligned>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  if (a.slot_expert != nullptr) {
    if (a.slot_rows == 32) return launch_shape<F, 4, Aligned, true>(a, stream);
    return launch_shape<F, 8, Aligned, true>(a, stream);
  }
  // Few outputs (a router's): more blocks.
  const std::int64_t blocks = static_cast<std::int64_t>(n_tiles(a.n_out)) * ((a.n_rows + 63) / 64);
  if (blocks < 2 * n_multiprocessors()) return launch_shape<F, 4, Aligned, false>(a, stream);
  launch_shape<F, 8, Aligned, false>(a, stream);
}

template <Format F>
void launch_aligned(const LinearArgs& a, cudaStream_t stream) {
  if ((reinterpret_cast<std::uintptr_t>(a.x.x) & 15) == 0 && a.x.x_stride % 4 == 0) {
    return launch_format<F, true>(a, stream);
  }
  launch_format<F, false>(a, stream);
}

}  // namespace

void launch_float_chunk(const LinearArgs& a, Format format, cudaStream_t stream) {
  if (format == Format::f32) return launch_aligned<Format::f32>(a, stream);
  if (format == Format::bf16) return launch_aligned<Format::bf16>(a, stream);
  launch_aligned<Format::f16>(a, stream);
}

}  // namespace bolt::cuda
