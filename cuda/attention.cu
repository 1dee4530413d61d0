// Integer attention (arithmetic.md §7). `put_rows` quantises and writes keys; `attend_tiles`
// computes a unit (a tile, or a span of eight) for some heads of one kv head; `merge_units` folds
// units in order. Dots are exact in int32 (dp4a), so their order is free; everything else is in the
// contract's order.
#include <algorithm>

#include "cuda/attention.cuh"
#include "cuda/attention_parts.cuh"
#include "cuda/launch.cuh"

namespace bolt::cuda {
namespace {

// u8 x s8 dot.
BOLT_DEV int dot_us(std::uint32_t a, std::uint32_t b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
BOLT_DEV int dot_ss(std::uint32_t a, std::uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

// Warp = one row of q (a head), k or v (a kv head); lane l holds words l, l + 32, ...
__global__ void __launch_bounds__(128) put_rows(AttentionArgs a, int items, int first_item) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int lane = threadIdx.x & 31;
  const int item = first_item + blockIdx.x * 4 + (threadIdx.x >> 5), row = blockIdx.y;
  if (item >= items) return;
  const RowPlace place = place_of(a.batch, row);
  // Items: kv heads of k, kv heads of v, heads of q.
  const bool is_q = item >= 2 * a.n_kv_heads, is_v = !is_q && item >= a.n_kv_heads;
  const int head = is_q ? item - 2 * a.n_kv_heads : item % a.n_kv_heads;
  if (!is_q && !place.live) return;
  const float* x = (is_q   ? a.q + row * a.q_stride
                    : is_v ? a.v + row * a.v_stride
                           : a.k + row * a.k_stride) +
                   head * a.head_dim;
  float amax = 0.0f;
  bool bad = false;
  for (int d = lane; d < a.head_dim; d += 32) {
    amax = fmaxf(amax, fabsf(x[d]));
    bad = bad || !finite(x[d]);
  }
  bad = __any_sync(kFullWarp, bad);
  amax = bad ? 0.0f : warp_max(amax);
  if (bad && lane == 0) a.batch.marked[row] = 1;
  const int exponent = static_cast<int>(__float_as_uint(amax) >> 23) - 127;
  const int e = (exponent < -100 ? -100 : exponent) - 14;
  const float scale = power_of_two(-e);

  const int key = place.position % kPageKeys;
  std::uint32_t* page = nullptr;
  if (!is_q) {
    const int tile = place.position / kPageKeys;
    page = a.pages + (static_cast<std::int64_t>(a.batch.pages[place.segment->first_page + tile]) *
                          a.n_kv_heads +
                      head) *
                         (a.layout.bytes() / 4);
  }
  std::uint32_t* codes =
      a.q_codes + (static_cast<std::int64_t>(row) * a.n_heads + head) * 2 * a.layout.words;
  for (int word = lane; word < a.layout.words; word += 32) {
    std::uint32_t high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = word * 4 + i;
      int code = 0;
      if (d < a.head_dim && !bad) {
        code = __float2int_rn(mul_rn(x[d], scale));
        code = code > 32639 ? 32639 : (code < -32639 ? -32639 : code);
      }
      const int h = (code + 128) >> 8, l = code - 256 * h;
      high |= static_cast<std::uint32_t>(h & 255) << (8 * i);
      low |= static_cast<std::uint32_t>(l & 255) << (8 * i);
    }
    if (is_q) {
      codes[word] = high;
      codes[a.layout.words + word] = low;
    } else if (!is_v) {
      page[a.layout.k_word(0, word, key)] = high;
      page[a.layout.k_word(1, word, key)] = low;
    } else {
      auto* bytes = reinterpret_cast<std::uint8_t*>(page);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bytes[a.layout.v_word(0, key / 4, word * 4 + i) * 4 + key % 4] =
            static_cast<std::uint8_t>(high >> (8 * i));
        bytes[a.layout.v_word(1, key / 4, word * 4 + i) * 4 + key % 4] =
            static_cast<std::uint8_t>(low >> (8 * i));
      }
    }
  }
  if (lane == 0) {
    if (is_q) {
      a.q_scale[row * a.n_heads + head] = mul_rn(a.c, power_of_two(e + 8));
    } else if (!is_v) {
      page[a.layout.scale_word(0, key)] = __float_as_uint(power_of_two(e));
    } else {
      page[a.layout.scale_word(1, key)] = __float_as_uint(static_cast<float>(e));
      page[a.layout.scale_word(2, key)] = __float_as_uint(power_of_two(-e));
    }
  }
}

// Grid (kv heads * blocks of HB heads, rows, units), 128 threads: thread j is key j of the tile,
// then dims j, j + 128. W: words of a key's codes kept in registers.
template <int W, int HB>
__global__ void __launch_bounds__(128) attend_tiles(AttentionArgs a) {
  __shared__ std::uint32_t q_codes[HB][2][W];
  __shared__ float q_scale[HB];
  __shared__ float maxima[HB][4];
  __shared__ __align__(16) std::uint8_t p_high[HB][kPageKeys], p_low[HB][kPageKeys];
  __shared__ float leaves[HB][64];
  __shared__ float sums[HB];
  constexpr int kDimPasses = W > 32 ? 2 : 1;  // head_dim up to 128 a pass

  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int j = threadIdx.x, lane = j & 31, warp = j >> 5;
  const int group = a.n_heads / a.n_kv_heads, blocks = (group + HB - 1) / HB;
  const int kv_head = blockIdx.x / blocks, head0 = (blockIdx.x % blocks) * HB;
  const int n_heads = min(HB, group - head0);  // of this block
  const int row = a.row0 + blockIdx.y, unit = blockIdx.z;
  const RowPlace place = place_of(a.batch, row);
  // A padding row reads what is there: up to the segment's last live position.
  const int position =
      min(place.position, place.segment->first_position + place.segment->n_live - 1);
  const int first_tile = unit * a.tiles_a_unit;
  const int last_tile = min(first_tile + a.tiles_a_unit, position / kPageKeys + 1);
  if (first_tile >= last_tile) return;

  const int words = a.layout.words;
  const int first_head = kv_head * group + head0;
  for (int i = j; i < n_heads * 2 * W; i += 128) {
    const int h = i / (2 * W), plane = (i / W) & 1, word = i % W;
    q_codes[h][plane][word] =
        word < words
            ? a.q_codes[((static_cast<std::int64_t>(row) * a.n_heads + first_head + h) * 2 +
                         plane) *
                            words +
                        word]
            : 0;
  }
  if (j < n_heads) q_scale[j] = a.q_scale[row * a.n_heads + first_head + j];
  __syncthreads();

  float M[HB], L[HB], O[kDimPasses][HB];
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const std::uint32_t* page =
        a.pages +
        (static_cast<std::int64_t>(a.batch.pages[place.segment->first_page + tile]) * a.n_kv_heads +
         kv_head) *
            (a.layout.bytes() / 4);
    const bool visible = tile * kPageKeys + j <= position;
    float u[HB];
    {
      std::uint32_t k_high[W], k_low[W];
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const bool in = w < words;
        k_high[w] = in ? page[a.layout.k_word(0, w, j)] : 0;
        k_low[w] = in ? page[a.layout.k_word(1, w, j)] : 0;
      }
      const float k_scale = visible ? __uint_as_float(page[a.layout.scale_word(0, j)]) : 0.0f;
      const float v_exponent = visible ? __uint_as_float(page[a.layout.scale_word(1, j)]) : 0.0f;
#pragma unroll
      for (int h = 0; h < HB; ++h) {
        if (h < n_heads) {
          int high = 0, cross = 0;
#pragma unroll
          for (int w = 0; w < W; ++w) {
            const std::uint32_t qh = q_codes[h][0][w], ql = q_codes[h][1][w];
            high = dot_ss(qh, k_high[w], high);
            cross = dot_ss(qh, k_low[w], cross);
            cross = dot_ss(ql, k_high[w], cross);
          }
          const int D = 256 * high + cross;
          u[h] = fma_rn(mul_rn(__int2float_rn(D), k_scale), q_scale[h], v_exponent);
          const float best = warp_max(visible ? u[h] : -INFINITY);
          if (lane == 0) maxima[h][warp] = best;
        }
      }
    }
    __syncthreads();
    const float v_inverse = visible ? __uint_as_float(page[a.layout.scale_word(2, j)]) : 0.0f;
    float p_keep[HB], m_tile[HB];
#pragma unroll
    for (int h = 0; h < HB; ++h) {
      if (h < n_heads) {
        const float m =
            ceilf(fmaxf(fmaxf(maxima[h][0], maxima[h][1]), fmaxf(maxima[h][2], maxima[h][3])));
        m_tile[h] = m;
        if (j == 0 && !(fabsf(m) < 2097152.0f)) a.batch.marked[row] = 1;
        const float p = visible ? exp2_below(u[h], m) : 0.0f;
        p_keep[h] = p;
        const int P = __float2int_rn(mul_rn(p, 32768.0f));
        const int high = (P + 128) >> 8;
        p_high[h][j] = static_cast<std::uint8_t>(high);
        p_low[h][j] = static_cast<std::uint8_t>(P - 256 * high);
        if (j < 64) leaves[h][j] = mul_rn(p, v_inverse);
      }
    }
    __syncthreads();
    if (j >= 64) {
#pragma unroll
      for (int h = 0; h < HB; ++h) {
        if (h < n_heads) leaves[h][j - 64] = fma_rn(p_keep[h], v_inverse, leaves[h][j - 64]);
      }
    }
    __syncthreads();
    // Leaf 8w + t: the tree over w, then over t, is the tree over 64.
    for (int h = warp; h < n_heads; h += 4) {
      float c = add_rn(leaves[h][lane], leaves[h][lane + 32]);
#pragma unroll
      for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
      if (lane == 0) sums[h] = c;
    }
    float o[kDimPasses][HB];
#pragma unroll
    for (int pass = 0; pass < kDimPasses; ++pass) {
      const int dim = pass * 128 + j;
      if (dim < a.layout.dims()) {
        int high[HB], cross[HB];
#pragma unroll
        for (int h = 0; h < HB; ++h) high[h] = cross[h] = 0;
#pragma unroll 8
        for (int key4 = 0; key4 < kPageKeys / 4; ++key4) {
          const std::uint32_t v_high = page[a.layout.v_word(0, key4, dim)];
          const std::uint32_t v_low = page[a.layout.v_word(1, key4, dim)];
#pragma unroll
          for (int h = 0; h < HB; ++h) {
            if (h < n_heads) {
              const std::uint32_t ph = reinterpret_cast<const std::uint32_t*>(p_high[h])[key4];
              const std::uint32_t pl = reinterpret_cast<const std::uint32_t*>(p_low[h])[key4];
              high[h] = dot_us(ph, v_high, high[h]);
              cross[h] = dot_us(ph, v_low, cross[h]);
              cross[h] = dot_ss(pl, v_high, cross[h]);
            }
          }
        }
#pragma unroll
        for (int h = 0; h < HB; ++h) o[pass][h] = __int2float_rn(256 * high[h] + cross[h]);
      } else {
#pragma unroll
        for (int h = 0; h < HB; ++h) o[pass][h] = 0.0f;
      }
    }
    __syncthreads();  // sums are there; the tile's shared arrays may be written again
#pragma unroll
    for (int h = 0; h < HB; ++h) {
      if (h < n_heads) {
        const float m = m_tile[h], l = sums[h];
        if (tile == first_tile) {
          M[h] = m;
          L[h] = l;
#pragma unroll
          for (int pass = 0; pass < kDimPasses; ++pass) O[pass][h] = o[pass][h];
        } else {
          const float top = fmaxf(M[h], m);
          const float x = power_down(add_rn(M[h], -top)), y = power_down(add_rn(m, -top));
          M[h] = top;
          L[h] = fma_rn(L[h], x, mul_rn(l, y));
#pragma unroll
          for (int pass = 0; pass < kDimPasses; ++pass) {
            O[pass][h] = fma_rn(O[pass][h], x, mul_rn(o[pass][h], y));
          }
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < HB; ++h) {
    if (h < n_heads) {
      float* out =
          a.partial +
          ((static_cast<std::int64_t>(blockIdx.y) * a.n_heads + first_head + h) * a.max_units +
           unit) *
              (a.head_dim + 2);
      if (j == 0) {
        out[0] = M[h];
        out[1] = L[h];
      }
#pragma unroll
      for (int pass = 0; pass < kDimPasses; ++pass) {
        if (pass * 128 + j < a.head_dim) out[2 + pass * 128 + j] = O[pass][h];
      }
    }
  }
}

struct Fold {
  float m, l, o;
  BOLT_DEV void merge(bool first, float m2, float l2, float o2) {
    if (first) {
      m = m2, l = l2, o = o2;
      return;
    }
    const float top = fmaxf(m, m2);
    const float x = power_down(add_rn(m, -top)), y = power_down(add_rn(m2, -top));
    m = top;
    l = fma_rn(l, x, mul_rn(l2, y));
    o = fma_rn(o, x, mul_rn(o2, y));
  }
};

// Block = one (row, head); thread = dim. Tiles ascending in a span, spans ascending.
__global__ void __launch_bounds__(256) merge_units(AttentionArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int head = blockIdx.x, row = a.row0 + blockIdx.y, dim = threadIdx.x;
  if (dim >= a.head_dim) return;
  const RowPlace place = place_of(a.batch, row);
  const int position =
      min(place.position, place.segment->first_position + place.segment->n_live - 1);
  const int n_tiles_row = position / kPageKeys + 1;
  const int n_units = (n_tiles_row + a.tiles_a_unit - 1) / a.tiles_a_unit;
  const int units_a_span = kSpanTiles / a.tiles_a_unit;
  const float* partial = a.partial + (static_cast<std::int64_t>(blockIdx.y) * a.n_heads + head) *
                                         a.max_units * (a.head_dim + 2);
  Fold whole{};
  for (int first = 0; first < n_units; first += units_a_span) {
    Fold span{};
    for (int u = first; u < min(first + units_a_span, n_units); ++u) {
      const float* p = partial + static_cast<std::int64_t>(u) * (a.head_dim + 2);
      span.merge(u == first, p[0], p[1], p[2 + dim]);
    }
    whole.merge(first == 0, span.m, span.l, span.o);
  }
  const float y = __fdiv_rn(mul_rn(whole.o, 0.0078125f), whole.l);
  const int column = head * a.head_dim + dim;
  a.y[row * a.y_stride + column] = y;
  if (a.quantised.slots != nullptr) {
    a.quantised.put(y, row, column / kGroupCols, threadIdx.x & 31);
  }
}

template <int W, int HB>
void launch_tiles(const AttentionArgs& a, int n, cudaStream_t stream) {
  const int group = a.n_heads / a.n_kv_heads;
  const dim3 grid(static_cast<unsigned>(a.n_kv_heads * ((group + HB - 1) / HB)),
                  static_cast<unsigned>(n), static_cast<unsigned>(a.max_units));
  launch(attend_tiles<W, HB>, grid, dim3(128), 0, stream, a);
}

template <int W>
void launch_heads(const AttentionArgs& a, int n, cudaStream_t stream) {
  // Few rows: more blocks, so that short contexts fill the device. Many: a tile is read for more
  // heads.
  const int group = a.n_heads / a.n_kv_heads;
  if (n <= 2 || group < 4) return launch_tiles<W, 2>(a, n, stream);
  if (n <= 8 || group < 8) return launch_tiles<W, 4>(a, n, stream);
  launch_tiles<W, 8>(a, n, stream);
}

void launch_few(const AttentionArgs& a, int n, cudaStream_t stream) {
  if (a.layout.words <= 16) return launch_heads<16>(a, n, stream);
  if (a.layout.words <= 32) return launch_heads<32>(a, n, stream);
  launch_heads<64>(a, n, stream);
}

// attend_tiles reads a tile for every row and few heads at a time, which the second-level cache
// bears for few rows and short contexts.
bool prefers_many(const AttentionArgs& a, int n) {
  const int shared_rows = a.max_segment_rows > 0 ? std::min(n, a.max_segment_rows) : n;
  return shared_rows >= kManyRows || a.max_units * a.tiles_a_unit >= kManyTiles;
}

}  // namespace

void launch_put(const AttentionArgs& a, bool queries, cudaStream_t stream) {
  const int items = 2 * a.n_kv_heads + (queries ? a.n_heads : 0);
  const dim3 grid(static_cast<unsigned>((items + 3) / 4), static_cast<unsigned>(a.n_rows));
  launch(put_rows, grid, dim3(128), 0, stream, a, items, 0);
}

void launch_attend(const AttentionArgs& a, int n, cudaStream_t stream) {
  if (!prefers_many(a, n) || !launch_attend_many(a, n, stream)) launch_few(a, n, stream);
  const dim3 grid(static_cast<unsigned>(a.n_heads), static_cast<unsigned>(n));
  const unsigned threads = static_cast<unsigned>((a.head_dim + 31) / 32 * 32);
  launch(merge_units, grid, dim3(threads), 0, stream, a);
}

}  // namespace bolt::cuda
