// Linear layers for prompt chunks (arithmetic.md §4). A block owns 128 outputs (four tiles) and up
// to 64 rows; a warp owns one tile and all of the rows and of K. Codes come through a queue of
// stages in shared memory, two groups each; a segment's sums stay in registers, the totals in
// shared memory, where only the thread that owns them touches them. Blocks are small, so that those
// of a multiprocessor drift apart: while one waits at a stage's end, the others sum.
//
// Inside a warp, lane 4g + t holds outputs 4g..4g+3 of its tile for rows 2t, 2t + 1 of each block
// of eight, as in linear_mma.cu.
#include <algorithm>

#include "cuda/chunk.cuh"
#include "cuda/launch.cuh"
#include "cuda/linear_chunk.cuh"

namespace bolt::cuda {
namespace {

constexpr int kBlockTiles = 4;  // of a block: one a warp
constexpr int kResident = 3;    // blocks of a multiprocessor

// quantize_group for four rows at once: lane 4g + t has columns 4g..4g+3 of the group of its own
// row, `out`, -1 for none.
BOLT_DEV void quantize_four(const QuantOut& to, const float (&y)[4], int out, int group, int g) {
  // Magnitudes are ordered as their bits are; what is not finite comes last.
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, __float_as_uint(y[i]) & 0x7fffffffu);
#pragma unroll
  for (int m = 4; m <= 16; m <<= 1) most = max(most, __shfl_xor_sync(kFullWarp, most, m));
  if (out < 0) return;
  const bool bad = most >= 0x7f800000u;
  const float amax = __uint_as_float(most);
  const bool zero = bad || amax < 0x1p-120f;
  const float inverse = zero ? 0.0f : __fdiv_rn(127.0f, amax);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int q = zero ? 0 : __float2int_rn(mul_rn(y[i], inverse));
    codes |= (static_cast<std::uint32_t>(q) & 0xff) << (8 * i);
  }
  // Columns 4g, 4g + 1 are slots 2 (g / 4) and the next of lane g % 4, 4g + 2 and 4g + 3 four
  // later.
  const std::int64_t place = static_cast<std::int64_t>(out) * to.n_groups + group;
  std::int8_t* slots = to.slots + place * 32 + (g & 3) * 8 + (g >> 2) * 2;
  *reinterpret_cast<std::uint16_t*>(slots) = static_cast<std::uint16_t>(codes);
  *reinterpret_cast<std::uint16_t*>(slots + 4) = static_cast<std::uint16_t>(codes >> 16);
  *reinterpret_cast<std::uint32_t*>(to.halves + place * 32 + (g & 3) * 8 + (g >> 2) * 4) = codes;
  if (g == 0) {
    to.scale[place] = bad ? __uint_as_float(kExactNan) : zero ? 0.0f : __fdiv_rn(amax, 127.0f);
  }
}

// Four outputs of four rows at once: lane 4g + t has outputs 4g..4g+3 of the tile of its own row.
// Does what finish_tile does.
template <bool Slots>
BOLT_DEV void finish_row(const LinearArgs& a, float4 totals, const Places<Slots>& places, int place,
                         int tile, int lane) {
  const int g = lane >> 2, n = tile * kTileRows + 4 * g, out = places.out(a, place);
  const bool live = out >= 0;
  float y[4] = {totals.x, totals.y, totals.z, totals.w};
  if (places.gained) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = mul_rn(y[i], places.gain);
  }
  bool good = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) good = good && (finite(y[i]) || n + i >= a.n_out);
  if (live && !good) a.marked[places.mark(a, place)] = 1;
  float* to = a.y + static_cast<std::int64_t>(out) * a.y_stride + n;
  if (a.epilogue == Epilogue::add && live) {
    const float* plus = a.plus + static_cast<std::int64_t>(out) * a.plus_stride + n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n + i >= a.n_out) break;
      if (a.plus != nullptr) y[i] = add_rn(y[i], plus[i]);
      y[i] = add_rn(to[i], y[i]);
    }
  } else if (a.epilogue == Epilogue::relu2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float r = y[i] > 0.0f ? y[i] : 0.0f;
      y[i] = mul_rn(r, r);
    }
  }
  if (a.y != nullptr && live) {
    if (n + 4 <= a.n_out && (reinterpret_cast<std::uintptr_t>(to) & 15) == 0) {
      *reinterpret_cast<float4*>(to) = make_float4(y[0], y[1], y[2], y[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n + i < a.n_out) to[i] = y[i];
      }
    }
  }
  if (a.quantised.slots != nullptr) quantize_four(a.quantised, y, out, tile, g);
}

// Constants in registers. `zero` is one the compiler does not know: an operand of a product needs
// four registers in a row, and plain copies into them would be made anew for each product.
struct Constants {
  std::uint32_t zero, positive[2], negative[2];

  BOLT_DEV explicit Constants(int n_groups)
      : zero(static_cast<std::uint32_t>(n_groups) >> 31),
        positive{0x0f0e0d0cu ^ zero, 0x18141210u ^ zero},
        negative{0x090a0b0cu ^ zero, 0x00040608u ^ zero} {}
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
  static constexpr int kScales = 1024;  // where they start in a block
  std::uint32_t codes[2][4];            // [m][slots 0..3 of two outputs, slots 4..7 of the two]
  float scale[4], base[4];

  BOLT_DEV void load(const unsigned char* chunk, const unsigned char* scales,
                     const Constants& known) {
    const std::uint32_t zero = known.zero;
    const uint4 low = *reinterpret_cast<const uint4*>(chunk);
    const uint4 high = *reinterpret_cast<const uint4*>(chunk + 512);
    codes[0][0] = low.x ^ zero, codes[0][1] = low.y ^ zero;
    codes[0][2] = high.x ^ zero, codes[0][3] = high.y ^ zero;
    codes[1][0] = low.z ^ zero, codes[1][1] = low.w ^ zero;
    codes[1][2] = high.z ^ zero, codes[1][3] = high.w ^ zero;
    const uint2 halves = *reinterpret_cast<const uint2*>(scales);
    const float2 s01 = __half22float2(*reinterpret_cast<const __half2*>(&halves.x));
    const float2 s23 = __half22float2(*reinterpret_cast<const __half2*>(&halves.y));
    scale[0] = s01.x, scale[1] = s01.y, scale[2] = s23.x, scale[3] = s23.y;
#pragma unroll
    for (int i = 0; i < 4; ++i) base[i] = mul_rn(-kSumBase, scale[i]);
  }
  BOLT_DEV void dot(int m, uint2 b, Dots& dots) const { mma_sum_k32(dots.d, codes[m], b); }
  BOLT_DEV void add(int m, const Dots& dots, float sa0, float sa1, float (&acc)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int o = 2 * m + (i >> 1);
      const float term = fma_rn(__int_as_float(dots.d[i]), scale[o], base[o]);
      acc[o][i & 1] = fma_rn(term, i & 1 ? sa1 : sa0, acc[o][i & 1]);
    }
  }
  BOLT_DEV static const std::int8_t* rows(const QuantView& x) { return x.slots; }
};

template <>
struct Fragment<Format::nvfp4> {
  struct Dots {
    int d0[4], d1[4];
  };
  static constexpr int kScales = 512;
  std::uint32_t half0[2][2], half1[2][2];  // [m][output]
  float scale0[4], base0[4], scale1[4];

  BOLT_DEV void load(const unsigned char* chunk, const unsigned char* scales,
                     const Constants& known) {
    const uint4 words = *reinterpret_cast<const uint4*>(chunk);
    const uint2 codes = *reinterpret_cast<const uint2*>(scales);
    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Bytes 0 and 2 hold the codes of the first half (slots 0, 1, 4, 5), 1 and 3 the second's.
      const std::uint32_t selectors = __byte_perm(w[i], 0, 0x3120);
      half0[i >> 1][i & 1] = decode(selectors, selectors ^ 0x88888888u, known);
      half1[i >> 1][i & 1] = decode(selectors >> 16, (selectors ^ 0x88888888u) >> 16, known);
    }
    four_scales(codes.x, scale0);
    four_scales(codes.y, scale1);
#pragma unroll
    for (int i = 0; i < 4; ++i) base0[i] = mul_rn(-kSumBase, scale0[i]);
  }
  // Four e2m1 codes to twice their values as int8: one table gives v + 12, the other 0, and adding
  // 116 more carries into no neighbour.
  BOLT_DEV static std::uint32_t decode(std::uint32_t codes, std::uint32_t flipped,
                                       const Constants& known) {
    return (prmt_raw(known.positive[0], known.positive[1], codes) +
            prmt_raw(known.negative[0], known.negative[1], flipped) + 0x74747474u) ^
           0x80808080u;
  }
  BOLT_DEV static void four_scales(std::uint32_t codes, float (&scale)[4]) {
    const std::uint32_t even = (codes << 7) & 0x3f803f80u, odd = (codes >> 1) & 0x3f803f80u;
    const float2 s02 = __half22float2(*reinterpret_cast<const __half2*>(&even));
    const float2 s13 = __half22float2(*reinterpret_cast<const __half2*>(&odd));
    scale[0] = s02.x, scale[1] = s13.x, scale[2] = s02.y, scale[3] = s13.y;
  }
  BOLT_DEV void dot(int m, uint2 b, Dots& dots) const {
    mma_sum_k16(dots.d0, half0[m], b.x);
    mma_sum_k16(dots.d1, half1[m], b.y);
  }
  BOLT_DEV void add(int m, const Dots& dots, float sa0, float sa1, float (&acc)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int o = 2 * m + (i >> 1);
      const float first = fma_rn(__int_as_float(dots.d0[i]), scale0[o], base0[o]);  // exact
      const float second = add_rn(__int_as_float(dots.d1[i]), -kSumBase);           // exact
      acc[o][i & 1] = fma_rn(fma_rn(second, scale1[o], first), i & 1 ? sa1 : sa0, acc[o][i & 1]);
    }
  }
  BOLT_DEV static const std::int8_t* rows(const QuantView& x) { return x.halves; }
};

// What a block works on at once: NN blocks of eight rows. A stage in shared memory is [tile][group]
// blocks, [group][row] codes, [group][row] scales; G divides kSegmentGroups, so that no stage
// crosses a segment.
template <Format F_, int NN_>
struct Shape {
  static constexpr Format F = F_;
  static constexpr int NN = NN_;
  static constexpr int G = 2;  // groups a stage
  static constexpr int Stages = 3;
  static constexpr int kRows = 8 * NN, kThreads = 32 * kBlockTiles;
  static constexpr int kBlock = block_bytes(F);
  static constexpr int kRowCodes = kBlockTiles * G * kBlock;
  static constexpr int kRowScales = kRowCodes + G * kRows * kGroupCols;
  // Scales of two blocks of eight rows lie together, so that one load gives a lane its four.
  static constexpr int kScaleRows = (NN + 1) / 2 * 16;
  static constexpr int kStage = kRowScales + G * kScaleRows * 4;
  BOLT_DEV static constexpr int scale_place(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
  }
  static constexpr int shared_bytes() {
    return Stages * kStage + kRows * kBlockTiles * kTileRows * 4;
  }
  template <int N>
  using WithNN = Shape<F, N>;
};

// A thread's part in copying stages. Offsets stay, the bases move on: they are the same for all
// threads.
template <class S>
struct StageCopies {
  const std::uint8_t *block_base, *code_base, *scale_base;
  std::uint32_t block_at, code_at, scale_at;  // from the bases
  std::uint32_t block_to, code_to, scale_to;  // in a stage
  int left;                                   // groups to come
  bool copies_row;

  template <bool Slots>
  BOLT_DEV StageCopies(const LinearArgs& a, const Places<Slots>& places, int first_tile) {
    constexpr int kTileThreads = S::kThreads / kBlockTiles;
    const int thread = threadIdx.x, n_groups = a.n_groups, last_tile = n_tiles(a.n_out) - 1;
    left = n_groups;
    // Blocks: a quarter of the threads for each tile, whose blocks follow each other.
    const int own_tile = thread / kTileThreads, at = thread % kTileThreads * 16;
    block_base = places.weights;
    block_at = pinned(static_cast<std::uint32_t>(min(first_tile + own_tile, last_tile) * n_groups) *
                          S::kBlock +
                      at);
    block_to = pinned(own_tile * S::G * S::kBlock + at);
    // Rows: two threads each.
    const int row = min(thread >> 1, S::kRows - 1), half = thread & 1;
    copies_row = S::kThreads == 2 * S::kRows || (thread >> 1) < S::kRows;
    const auto first_group = static_cast<std::uint32_t>(places.in(a, row) * n_groups);
    code_base = reinterpret_cast<const std::uint8_t*>(Fragment<S::F>::rows(a.x));
    code_at = pinned(first_group * kGroupCols + half * 16);
    code_to = pinned(S::kRowCodes + row * kGroupCols + half * 16);
    scale_base = reinterpret_cast<const std::uint8_t*>(a.x.scale);
    scale_at = pinned((first_group + half) * 4);
    scale_to = pinned(S::kRowScales + (half * S::kScaleRows + S::scale_place(row)) * 4);
  }

  // Part `u` of the copies of a stage, which its G parts make whole: groups past the last are
  // zeros, whose sums change nothing. Apart, so that they stand between sums: all at once they fill
  // the queue that the sums' own loads wait in.
  BOLT_DEV void part(unsigned char* stage, int u) const {
    constexpr int kTileThreads = S::kThreads / kBlockTiles;
    constexpr int kTileChunks = S::G * S::kBlock / 16;
    const int thread = threadIdx.x, at = thread % kTileThreads;
#pragma unroll
    for (int i = u; i < (kTileChunks + kTileThreads - 1) / kTileThreads; i += S::G) {
      const int chunk = at + i * kTileThreads;
      if ((i + 1) * kTileThreads > kTileChunks && chunk >= kTileChunks) break;
      copy_16(stage + block_to + i * kTileThreads * 16,
              block_base + block_at + i * kTileThreads * 16,
              chunk * 16 < left * S::kBlock ? 16 : 0);
    }
    if (!copies_row) return;
    copy_16(stage + code_to + u * S::kRows * kGroupCols, code_base + code_at + u * kGroupCols,
            u < left ? 16 : 0);
    if (u % 2 == 0) {
      copy_4(stage + scale_to + u * S::kScaleRows * 4, scale_base + scale_at + u * 4,
             u + (thread & 1) < left ? 4 : 0);
    }
  }
  BOLT_DEV void next() {
    copies_commit();
    block_base += S::G * S::kBlock;
    code_base += S::G * kGroupCols;
    scale_base += S::G * 4;
    left -= S::G;
  }
};

// The work of a block whose live places are at most S::kRows.
template <class S, bool Slots>
BOLT_DEV void sum_block(const LinearArgs& a, const Places<Slots>& places, int first_tile,
                        unsigned char* shared) {
  constexpr int NN = S::NN, kThreads = S::kThreads;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int g = lane >> 2, t = lane & 3, warp_tile = warp;
  const int n_groups = a.n_groups, n_stages = (n_groups + S::G - 1) / S::G;

  float4* totals = reinterpret_cast<float4*>(shared + S::Stages * S::kStage) + thread;
  float acc[NN][4][2];
#pragma unroll
  for (int n = 0; n < NN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i][0] = acc[n][i][1] = 0.0f;
    totals[2 * n * kThreads] = totals[(2 * n + 1) * kThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  StageCopies<S> copies(a, places, first_tile);
#pragma unroll
  for (int s = 0; s < S::Stages - 1; ++s) {
#pragma unroll
    for (int u = 0; u < S::G; ++u) copies.part(shared + s * S::kStage, u);
    copies.next();
  }

  const std::uint32_t words_at =
      pinned(warp_tile * S::G * S::kBlock + t * 128 + ((g ^ (2 * t)) << 4));
  const std::uint32_t word_scales_at =
      pinned(warp_tile * S::G * S::kBlock + Fragment<S::F>::kScales + g * 8);
  const std::uint32_t codes_at = pinned(S::kRowCodes + g * kGroupCols + t * 8);
  const std::uint32_t scales_at = pinned(S::kRowScales + 4 * t * 4);
  const Constants known(n_groups);
  int slot = 0, load_slot = S::Stages - 1;
#pragma unroll 1
  for (int s = 0; s < n_stages; ++s) {
    copies_wait<S::Stages - 2>();
    __syncthreads();  // everyone's copies of this stage are here, and the one before is read
    unsigned char* later = shared + load_slot * S::kStage;
    load_slot = slot;
    const unsigned char* stage = shared + slot * S::kStage;
    slot = slot + 1 == S::Stages ? 0 : slot + 1;
#pragma unroll
    for (int u = 0; u < S::G; ++u) {
      Fragment<S::F> weights;
      weights.load(stage + words_at + u * S::kBlock, stage + word_scales_at + u * S::kBlock, known);
      const unsigned char* codes = stage + codes_at + u * S::kRows * kGroupCols;
      const unsigned char* scales = stage + scales_at + u * S::kScaleRows * 4;
      // The products of step j + 1 are under way while step j's are scaled; a step is one pair of
      // outputs and eight rows.
      typename Fragment<S::F>::Dots dots[2];
      uint2 b = *reinterpret_cast<const uint2*>(codes);
      weights.dot(0, b, dots[0]);
      copies.part(later, u);
      float4 sa;
#pragma unroll
      for (int j = 0; j < 2 * NN; ++j) {
        const int n = j >> 1, m = j & 1;
        if (j + 1 < 2 * NN) {
          if (m == 1) b = *reinterpret_cast<const uint2*>(codes + (n + 1) * 8 * kGroupCols);
          weights.dot((j + 1) & 1, b, dots[(j + 1) & 1]);
        }
        if (j % 4 == 0) sa = *reinterpret_cast<const float4*>(scales + n * 8 * 4);
        weights.add(m, dots[j & 1], n % 2 == 0 ? sa.x : sa.z, n % 2 == 0 ? sa.y : sa.w, acc[n]);
      }
    }
    copies.next();
    if (s % (kSegmentGroups / S::G) == kSegmentGroups / S::G - 1 || s == n_stages - 1) {
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

  if (first_tile + warp_tile >= n_tiles(a.n_out)) return;
#pragma unroll 1
  for (int i = 0; i < 2 * NN; ++i) {
    const int place = (i >> 1) * 8 + 2 * t + (i & 1);
    finish_row(a, totals[i * kThreads], places, place, first_tile + warp_tile, lane);
  }
}

// The narrowest of the forms with N blocks of eight rows a warp that holds the live places, if any.
template <class S, int... N, bool Slots>
BOLT_DEV bool sum_narrow(const LinearArgs& a, const Places<Slots>& places, int first_tile,
                         unsigned char* shared) {
  const auto fits = [&](auto shape) {
    using Narrow = decltype(shape);
    if constexpr (Narrow::NN < S::NN) {
      if (places.n_live <= Narrow::kRows) {
        sum_block<Narrow>(a, places, first_tile, shared);
        return true;
      }
    }
    return false;
  };
  return (fits(typename S::template WithNN<N>{}) || ...);
}

// Grid (row blocks, tiles / 4), or for slots (tiles / 4, slots): blocks that run together share the
// larger of weights and rows. A slot with few live places takes a narrower form.
template <class S, bool Slots>
__global__ void __launch_bounds__(S::kThreads, kResident) integer_chunk(LinearArgs a) {
  extern __shared__ __align__(16) unsigned char chunk_shared[];
  enter(a.order);
  wait_for_rows(a.order);
  Places<Slots> places;
  const int first_tile = kBlockTiles * (Slots ? blockIdx.x : blockIdx.y);
  if (places.find(a, Slots ? blockIdx.y : blockIdx.x, S::kRows)) {
    if (!Slots || !sum_narrow<S, 2, 3, 4, 5, 6, 7>(a, places, first_tile, chunk_shared)) {
      sum_block<S>(a, places, first_tile, chunk_shared);
    }
  }
  leave(a.order);
}

template <class S, bool Slots>
void launch_integer(const LinearArgs& a, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>((n_tiles(a.n_out) + kBlockTiles - 1) / kBlockTiles);
  const dim3 grid = Slots
                        ? dim3(tiles, static_cast<unsigned>(a.max_slots))
                        : dim3(static_cast<unsigned>((a.n_rows + S::kRows - 1) / S::kRows), tiles);
  const auto kernel = integer_chunk<S, Slots>;
  allow_shared(kernel, S::shared_bytes());
  launch(kernel, grid, dim3(S::kThreads), S::shared_bytes(), stream, a);
}

template <Format F>
void launch_format(const LinearArgs& a, cudaStream_t stream) {
  if (a.slot_expert == nullptr) return launch_integer<Shape<F, 8>, false>(a, stream);
  if (a.slot_rows == 32) return launch_integer<Shape<F, 4>, true>(a, stream);
  launch_integer<Shape<F, 8>, true>(a, stream);
}

}  // namespace

bool chunk_serves(const LinearArgs& a) {
  if (a.slot_expert == nullptr) return a.n_rows > 32;
  return a.slot_rows == 32 || a.slot_rows == 64;
}

void launch_linear_chunk(const LinearArgs& args, Format format, cudaStream_t stream) {
  if (format == Format::q8) return launch_format<Format::q8>(args, stream);
  if (format == Format::nvfp4) return launch_format<Format::nvfp4>(args, stream);
  launch_float_chunk(args, format, stream);
}

}  // namespace bolt::cuda
