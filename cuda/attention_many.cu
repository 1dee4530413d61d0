// Integer attention (arithmetic.md §7) for many rows: the tensor-core form of attention.cu's
// attend_tiles, with the same partial results. A warp owns 16 slots, each a (row, head) of one kv
// head, and the block's warps share every tile in shared memory.
//
// Sums of codes are exact, so columns and depth of a product may be named freely. They are named so
// that a lane's four sums of a pair of products are neighbours, keys or dims 16 m + 4 t + c: then
// both products' codes are one 64-bit load, and the weights of four keys pack into the words that
// the second product takes.
#include <algorithm>

#include "cuda/attention.cuh"
#include "cuda/attention_parts.cuh"
#include "cuda/chunk_async.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

constexpr int kWarpsMax = 8;
constexpr int kSlots = 16;                  // of a warp
constexpr int kKeyStride = kPageKeys + 8;   // words; 8 mod 32: the rows that a load touches lie in
                                            // other banks
constexpr int kKeyGroups = kPageKeys / 16;  // of 16 keys

// d += A B for A of unsigned bytes; layout as mma_s8_k32.
BOLT_DEV void mma_u8(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
BOLT_DEV void mma_s8(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma_s8_k32(d, a[0], a[1], a[2], a[3], b0, b1);
}
BOLT_DEV uint2 load2(const std::uint32_t* p) { return *reinterpret_cast<const uint2*>(p); }

// W: words of a key's codes, a multiple of 8; a shorter head_dim meets zeros in q. More than 128
// dims are cut in two parts, each a block's, which work the weights out twice.
template <int W>
struct Shape {
  static constexpr int kParts = W > 32 ? 2 : 1;
  static constexpr int kDims = 4 * W / kParts;
  static constexpr int kDimStride = kDims + 8;
  static constexpr int kDepths = W / 8;  // of 32 dims
  static constexpr int kPlaneK = W * kKeyStride, kPlaneV = kPageKeys / 4 * kDimStride;
  static constexpr int kV = 2 * kPlaneK, kScales = kV + 2 * kPlaneV;
  static constexpr int kTileWords = kScales + 3 * kPageKeys;
  static constexpr int kQueryWords = kDepths * 2 * 32 * 4;  // of a warp
  static_assert(kDims % 32 == 0 && W % 8 == 0);

  static std::size_t shared_bytes(int n_warps, int n_stages) {
    return 4 * (static_cast<std::size_t>(n_warps) * kQueryWords +
                static_cast<std::size_t>(n_stages) * kTileWords);
  }
};

// One slot of a lane: it works on slots g and g + 8 of its warp.
struct Slot {
  int row, head;      // head: of all
  int last_position;  // that it sees; -1: no such slot
  float scale;        // c * 2^(eq + 8)
  float m, l;         // so far
};

// Where the tile's codes go; asynchronous, by the whole block.
template <int W>
BOLT_DEV void fetch_tile(const AttentionArgs& a, const std::uint32_t* page, int part,
                         std::uint32_t* to) {
  using S = Shape<W>;
  const int words = a.layout.words, dims = a.layout.dims();
  for (int i = threadIdx.x; i < 2 * words * (kPageKeys / 4); i += blockDim.x) {
    const int row = i / (kPageKeys / 4), chunk = i % (kPageKeys / 4);
    const int plane = row >= words, word = plane ? row - words : row;
    copy_16(to + plane * S::kPlaneK + word * kKeyStride + 4 * chunk, page + 4 * i, 16);
  }
  const int first_dim = part * S::kDims, chunks = (min(dims - first_dim, S::kDims)) / 4;
  const std::uint32_t* v = page + a.layout.v_word(0, 0, first_dim);
  constexpr int kRowChunks = S::kDims / 4;
  for (int i = threadIdx.x; i < 2 * (kPageKeys / 4) * kRowChunks; i += blockDim.x) {
    const int row = i / kRowChunks, chunk = i % kRowChunks;
    if (chunk >= chunks) continue;
    copy_16(to + S::kV + row * S::kDimStride + 4 * chunk, v + row * dims + 4 * chunk, 16);
  }
  const std::uint32_t* scales = page + a.layout.scale_word(0, 0);
  for (int i = threadIdx.x; i < 3 * kPageKeys / 4; i += blockDim.x) {
    copy_16(to + S::kScales + 4 * i, scales + 4 * i, 16);
  }
  copies_commit();
}

// Query codes of the warp's slots, as products take them.
template <int W>
BOLT_DEV void load_queries(const AttentionArgs& a, const Slot (&slots)[2], uint4* queries) {
  const int lane = threadIdx.x & 31, t = lane & 3, words = a.layout.words;
#pragma unroll
  for (int depth = 0; depth < Shape<W>::kDepths; ++depth) {
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      std::uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Slot& slot = slots[i & 1];
        const int word = 8 * depth + 4 * (i >> 1) + t;
        v[i] = slot.last_position >= 0 && word < words
                   ? a.q_codes[((static_cast<std::int64_t>(slot.row) * a.n_heads + slot.head) * 2 +
                                plane) *
                                   words +
                               word]
                   : 0;
      }
      queries[(depth * 2 + plane) * 32 + lane] = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

// One tile for a warp's slots. O: dims 16 n + 4 t + 2 (i & 1) + b of slot i >> 1 in O[n][b][i].
template <int W>
BOLT_DEV void attend_tile(const AttentionArgs& a, const std::uint32_t* tile, const uint4* queries,
                          int first_key, bool first, Slot (&slots)[2],
                          float (&O)[Shape<W>::kDims / 16][2][4]) {
  using S = Shape<W>;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  // Keys of the tile up to which each slot sees; negative: none.
  const int last[2] = {slots[0].last_position - first_key, slots[1].last_position - first_key};
  if (!__any_sync(kFullWarp, last[0] >= 0 || last[1] >= 0)) return;
  const bool whole = __all_sync(kFullWarp, min(last[0], last[1]) >= kPageKeys - 1);
  const auto* scales = reinterpret_cast<const float*>(tile + S::kScales);

  // u: keys 16 m + 4 t + 2 (i & 1) + b of slot i >> 1 in u[m][b][i].
  float u[kKeyGroups][2][4];
  {
    const std::uint32_t* keys = tile + t * kKeyStride + 2 * g;
    uint4 query[2][W > 32 ? 1 : S::kDepths];
    if constexpr (W <= 32) {
#pragma unroll
      for (int depth = 0; depth < S::kDepths; ++depth) {
        query[0][depth] = queries[depth * 64 + lane];
        query[1][depth] = queries[depth * 64 + 32 + lane];
      }
    }
#pragma unroll
    for (int m = 0; m < kKeyGroups; ++m) {
      int high[2][4] = {}, cross0[2][4] = {}, cross1[2][4] = {};
#pragma unroll
      for (int depth = 0; depth < S::kDepths; ++depth) {
        uint4 h, l;
        if constexpr (W <= 32) {
          h = query[0][depth], l = query[1][depth];
        } else {
          h = queries[depth * 64 + lane], l = queries[depth * 64 + 32 + lane];
        }
        const std::uint32_t qh[4] = {h.x, h.y, h.z, h.w}, ql[4] = {l.x, l.y, l.z, l.w};
        const std::uint32_t* k = keys + 8 * depth * kKeyStride + 16 * m;
        const uint2 kh0 = load2(k), kh1 = load2(k + 4 * kKeyStride);
        const uint2 kl0 = load2(k + S::kPlaneK), kl1 = load2(k + S::kPlaneK + 4 * kKeyStride);
        mma_s8(high[0], qh, kh0.x, kh1.x);
        mma_s8(high[1], qh, kh0.y, kh1.y);
        mma_s8(cross0[0], qh, kl0.x, kl1.x);
        mma_s8(cross0[1], qh, kl0.y, kl1.y);
        mma_s8(cross1[0], ql, kh0.x, kh1.x);
        mma_s8(cross1[1], ql, kh0.y, kh1.y);
      }
      const float4 s4 = *reinterpret_cast<const float4*>(scales + 16 * m + 4 * t);
      const float4 e4 = *reinterpret_cast<const float4*>(scales + kPageKeys + 16 * m + 4 * t);
      const float s[4] = {s4.x, s4.y, s4.z, s4.w}, e[4] = {e4.x, e4.y, e4.z, e4.w};
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int D = 256 * high[b][i] + (cross0[b][i] + cross1[b][i]), c = 2 * (i & 1) + b;
          u[m][b][i] = fma_rn(mul_rn(__int2float_rn(D), s[c]), slots[i >> 1].scale, e[c]);
        }
      }
    }
  }
  if (!whole) {
#pragma unroll
    for (int m = 0; m < kKeyGroups; ++m) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (16 * m + 4 * t + 2 * (i & 1) + b > last[i >> 1]) u[m][b][i] = -INFINITY;
        }
      }
    }
  }
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int m = 0; m < kKeyGroups; ++m) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i >> 1] = fmaxf(top[i >> 1], u[m][b][i]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(kFullWarp, top[h], 1));
    top[h] = ceilf(fmaxf(top[h], __shfl_xor_sync(kFullWarp, top[h], 2)));
    if (last[h] < 0) {
      top[h] = 0.0f;
    } else if (t == 0 && !(fabsf(top[h]) < 2097152.0f)) {
      a.batch.marked[slots[h].row] = 1;
    }
  }

  // Weights p; 2^15 p in two planes, and the leaves of l: keys 16 m + 4 t + c and the 64th after.
  std::uint32_t ph[kKeyGroups / 2][4], pl[kKeyGroups / 2][4];
  float leaf[4][4][2];
#pragma unroll
  for (int m = 0; m < kKeyGroups; ++m) {
    const float4 r4 = *reinterpret_cast<const float4*>(scales + 2 * kPageKeys + 16 * m + 4 * t);
    const float inverse[4] = {r4.x, r4.y, r4.z, r4.w};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t sum[4];  // 2^15 p + 128 in the low half
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float p = exp2_below(u[m][c & 1][2 * h + (c >> 1)], top[h]), r = inverse[c];
        if (!whole && 16 * m + 4 * t + c > last[h]) p = r = 0.0f;
        float& f = leaf[m & 3][c][h];
        f = m < 4 ? mul_rn(p, r) : fma_rn(p, r, f);
        sum[c] = __float_as_uint(fma_rn(p, 32768.0f, 8388736.0f));  // 2^23 + 128
      }
      const std::uint32_t low = __byte_perm(sum[0], sum[1], 0x5410);
      const std::uint32_t high = __byte_perm(sum[2], sum[3], 0x5410);
      ph[m / 2][h + 2 * (m & 1)] = __byte_perm(low, high, 0x7531);
      pl[m / 2][h + 2 * (m & 1)] = __byte_perm(low, high, 0x6420) ^ 0x80808080u;
    }
  }
  float keep[2], add[2];
  bool sees[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // The tree over leaves 16 m + 4 t + c: halves 32 and 16 apart lie in m, 8 and 4 in t, then c.
    float c4[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float x = add_rn(add_rn(leaf[0][c][h], leaf[2][c][h]), add_rn(leaf[1][c][h], leaf[3][c][h]));
      x = add_rn(x, __shfl_xor_sync(kFullWarp, x, 2));
      c4[c] = add_rn(x, __shfl_xor_sync(kFullWarp, x, 1));
    }
    const float l = add_rn(add_rn(c4[0], c4[2]), add_rn(c4[1], c4[3]));
    Slot& slot = slots[h];
    sees[h] = last[h] >= 0;
    if (first) {
      slot.m = top[h], slot.l = l;
      keep[h] = 0.0f, add[h] = 1.0f;
    } else {
      const float larger = fmaxf(slot.m, top[h]);
      keep[h] = power_down(add_rn(slot.m, -larger));
      add[h] = power_down(add_rn(top[h], -larger));
      if (sees[h]) {
        slot.m = larger;
        slot.l = fma_rn(slot.l, keep[h], mul_rn(l, add[h]));
      }
    }
  }

  const std::uint32_t* values = tile + S::kV + t * S::kDimStride + 2 * g;
#pragma unroll
  for (int n = 0; n < S::kDims / 16; ++n) {
    int high[2][4] = {}, cross0[2][4] = {}, cross1[2][4] = {};
#pragma unroll
    for (int depth = 0; depth < kPageKeys / 32; ++depth) {
      const std::uint32_t* v = values + 8 * depth * S::kDimStride + 16 * n;
      const uint2 vh0 = load2(v), vh1 = load2(v + 4 * S::kDimStride);
      const uint2 vl0 = load2(v + S::kPlaneV), vl1 = load2(v + S::kPlaneV + 4 * S::kDimStride);
      mma_u8(high[0], ph[depth], vh0.x, vh1.x);
      mma_u8(high[1], ph[depth], vh0.y, vh1.y);
      mma_u8(cross0[0], ph[depth], vl0.x, vl1.x);
      mma_u8(cross0[1], ph[depth], vl0.y, vl1.y);
      mma_s8(cross1[0], pl[depth], vh0.x, vh1.x);
      mma_s8(cross1[1], pl[depth], vh0.y, vh1.y);
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i >> 1;
        const float o = __int2float_rn(256 * high[b][i] + (cross0[b][i] + cross1[b][i]));
        const float joined = fma_rn(O[n][b][i], keep[h], mul_rn(o, add[h]));
        O[n][b][i] = sees[h] ? joined : O[n][b][i];
      }
    }
  }
}

// Grid (kv heads * parts, blocks of rows_a_block rows, units). Rows of several sequences take turns
// within a block.
template <int W>
__global__ void __launch_bounds__(32 * kWarpsMax, 1)
    attend_rows(AttentionArgs a, int n, int rows_a_block, int n_stages) {
  using S = Shape<W>;
  extern __shared__ __align__(16) std::uint32_t attend_memory[];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int kv_head = blockIdx.x / S::kParts, part = blockIdx.x % S::kParts, unit = blockIdx.z;
  const int group = a.n_heads / a.n_kv_heads;
  const int first_tile = unit * a.tiles_a_unit;
  auto* queries = reinterpret_cast<uint4*>(attend_memory + warp * S::kQueryWords);
  std::uint32_t* stages = attend_memory + static_cast<int>(blockDim.x >> 5) * S::kQueryWords;

  // The last rows, which see most keys, start first.
  const int rows_from = static_cast<int>(gridDim.y - 1 - blockIdx.y) * rows_a_block;
  const int end_row = a.row0 + min(n, rows_from + rows_a_block);
  for (int row = a.row0 + rows_from; row < end_row;) {
    const SegmentView segment = a.batch.segments[a.batch.row_segment[row]];
    const int run_row = row, run_end = min(end_row, segment.first_row + segment.n_rows);
    row = run_end;
    // A padding row reads what is there: up to the segment's last live position.
    const auto position_of = [&](int r) {
      return segment.first_position + min(r - segment.first_row, segment.n_live - 1);
    };
    const int end_tile = min(first_tile + a.tiles_a_unit, position_of(run_end - 1) / kPageKeys + 1);
    if (first_tile >= end_tile) continue;

    Slot slots[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int s = kSlots * warp + 8 * h + g;
      Slot& slot = slots[h];
      slot.row = min(run_row + s / group, run_end - 1);
      slot.head = kv_head * group + s % group;
      slot.last_position = run_row + s / group < run_end ? position_of(slot.row) : -1;
      slot.scale = a.q_scale[slot.row * a.n_heads + slot.head];
      slot.m = slot.l = 0.0f;
    }
    load_queries<W>(a, slots, queries);
    float O[S::kDims / 16][2][4] = {};

    const auto page_of = [&](int tile) {
      return a.pages +
             (static_cast<std::int64_t>(a.batch.pages[segment.first_page + tile]) * a.n_kv_heads +
              kv_head) *
                 (a.layout.bytes() / 4);
    };
    fetch_tile<W>(a, page_of(first_tile), part, stages);
    for (int tile = first_tile; tile < end_tile; ++tile) {
      const int stage = (tile - first_tile) % n_stages;
      copies_wait<0>();
      __syncthreads();
      const bool more = tile + 1 < end_tile;
      if (more && n_stages > 1) {
        fetch_tile<W>(a, page_of(tile + 1), part, stages + (stage ^ 1) * S::kTileWords);
      }
      attend_tile<W>(a, stages + stage * S::kTileWords, queries, tile * kPageKeys,
                     tile == first_tile, slots, O);
      if (n_stages > 1) continue;
      __syncthreads();
      if (more) fetch_tile<W>(a, page_of(tile + 1), part, stages);
    }
    __syncthreads();  // the next run fetches into what this one reads

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Slot& slot = slots[h];
      if (slot.last_position < first_tile * kPageKeys) continue;
      float* out =
          a.partial +
          ((static_cast<std::int64_t>(slot.row - a.row0) * a.n_heads + slot.head) * a.max_units +
           unit) *
              (a.head_dim + 2);
      if (t == 0 && part == 0) out[0] = slot.m, out[1] = slot.l;
#pragma unroll
      for (int n16 = 0; n16 < S::kDims / 16; ++n16) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int dim = part * S::kDims + 16 * n16 + 4 * t + c;
          if (dim < a.head_dim) out[2 + dim] = O[n16][c & 1][2 * h + (c >> 1)];
        }
      }
    }
  }
}

template <int W>
bool launch_rows(const AttentionArgs& a, int n, cudaStream_t stream) {
  using S = Shape<W>;
  const int group = a.n_heads / a.n_kv_heads;
  const int longest = a.max_segment_rows > 0 ? std::min(n, a.max_segment_rows) : n;
  const auto fits = [&](int warps, int stages) {
    return S::shared_bytes(warps, stages) <= shared_limit();
  };
  // A block's rows share a tile, but rows of another sequence would have to wait for their turn.
  const auto rows_of = [&](int warps) { return std::min(warps * kSlots / group, longest); };
  const auto blocks_of = [&](int warps) {
    return (n + rows_of(warps) - 1) / rows_of(warps) * a.n_kv_heads * S::kParts * a.max_units;
  };
  // Fewer warps where they suffice, or where eight would leave most of a device idle: four still
  // have a scheduler each.
  int warps = kWarpsMax;
  while (
      warps > 1 && rows_of(warps / 2) >= 1 &&
      (!fits(warps, 1) || rows_of(warps / 2) >= longest || (warps > 4 && blocks_of(warps) < 100))) {
    warps /= 2;
  }
  if (rows_of(warps) < 1 || !fits(warps, 1)) return false;
  const int stages = a.tiles_a_unit > 1 && fits(warps, 2) ? 2 : 1;
  const std::size_t bytes = S::shared_bytes(warps, stages);
  allow_shared(attend_rows<W>, bytes);
  const dim3 grid(static_cast<unsigned>(a.n_kv_heads * S::kParts),
                  static_cast<unsigned>((n + rows_of(warps) - 1) / rows_of(warps)),
                  static_cast<unsigned>(a.max_units));
  launch(attend_rows<W>, grid, dim3(static_cast<unsigned>(32 * warps)), bytes, stream, a, n,
         rows_of(warps), stages);
  return true;
}

}  // namespace

bool launch_attend_many(const AttentionArgs& a, int n, cudaStream_t stream) {
  const int words = a.layout.words;
  if (words <= 16) return launch_rows<16>(a, n, stream);
  if (words <= 24) return launch_rows<24>(a, n, stream);
  if (words <= 32) return launch_rows<32>(a, n, stream);
  if (words <= 48) return launch_rows<48>(a, n, stream);
  if (words <= 64) return launch_rows<64>(a, n, stream);
  return false;
}

}  // namespace bolt::cuda
