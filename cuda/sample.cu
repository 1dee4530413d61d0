// Choosing a token from a row of logits (arithmetic.md §9), a block a row. The rules, their order
// and the limits of what matters are core/ops/sample.cpp's; here selection is by radix descent over
// keys whose integer order is the contract's order, so no sort and no host is needed.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/sample.cuh"

namespace bolt::cuda {
namespace {

constexpr int kThreads = 1024;

// Philox4x32-10; the host's is core/ops/philox.h.
BOLT_DEV uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t a_high = __umulhi(0xD2511F53u, counter.x), a_low = 0xD2511F53u * counter.x;
    const std::uint32_t b_high = __umulhi(0xCD9E8D57u, counter.z), b_low = 0xCD9E8D57u * counter.z;
    counter = make_uint4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

BOLT_DEV float gumbel(const SampleSpec& spec, int id) {
  const uint4 words = philox(
      make_uint4(static_cast<std::uint32_t>(id) / 4, 0, static_cast<std::uint32_t>(spec.position),
                 static_cast<std::uint32_t>(spec.position >> 32)),
      make_uint2(static_cast<std::uint32_t>(spec.seed),
                 static_cast<std::uint32_t>(spec.seed >> 32)));
  const int which = id & 3;
  const std::uint32_t word = which == 0   ? words.x
                             : which == 1 ? words.y
                             : which == 2 ? words.z
                                          : words.w;
  const float u = mul_rn(add_rn(static_cast<float>(word >> 9), 0.5f), 0x1p-23f);
  return -exact_log(-exact_log(u));
}

// Larger keys come first in the contract's order: l descending (-0 equals +0), column ascending.
BOLT_DEV std::uint64_t order_key(float l, int column) {
  const std::uint32_t u = l == 0.0f ? 0u : __float_as_uint(l);
  const std::uint32_t rising = (u & 0x80000000u) ? ~u : u | 0x80000000u;
  return static_cast<std::uint64_t>(rising) << 32 |
         (0xffffffffu - static_cast<std::uint32_t>(column));
}

struct Row {
  const float* logits;
  const int* ids_of;
  int n;  // columns that may be chosen or count in the sum
  int n_vocab;
  float divisor;  // 1 for a greedy row: x / 1 is x

  BOLT_DEV int id(int column) const { return ids_of != nullptr ? ids_of[column] : column; }
  BOLT_DEV float l(int column) const {
    const float x = logits[column];
    if (ids_of != nullptr && ids_of[column] >= n_vocab) return -INFINITY;
    return __fdiv_rn(x, divisor);
  }
};

// The largest value over the block, in every thread.
BOLT_DEV float block_max(float v, float* shared) {
  v = warp_max(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  return warp_max(shared[threadIdx.x & 31]);
}
BOLT_DEV std::uint64_t block_max_key(std::uint64_t v, std::uint64_t* shared) {
  for (int m = 16; m; m >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, v, m);
    v = other > v ? other : v;
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  v = shared[threadIdx.x & 31];
  for (int m = 16; m; m >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, v, m);
    v = other > v ? other : v;
  }
  return v;
}

struct Histogram {
  unsigned long long weight[256];
  unsigned int count[256];
  unsigned long long before;  // weight (or count) of the keys above the chosen bucket
  unsigned int digit;
};

BOLT_DEV std::uint64_t weight_of(float l, float top) {
  return static_cast<std::uint64_t>(mul_rn(exact_exp(add_rn(l, -top)), 0x1p28f));
}

// The key at which the keys of [floor, inf), taken in falling order, first reach `wanted`: counted
// (Weighted false: `wanted` keys) or weighed (sum of weights << 16 >= wanted, at least one key).
template <bool Weighted>
BOLT_DEV std::uint64_t cut_key(const Row& row, float least, float top, std::uint64_t floor_key,
                               unsigned long long wanted, Histogram& h) {
  std::uint64_t prefix = 0;
  if (threadIdx.x == 0) h.before = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += kThreads) h.weight[i] = h.count[i] = 0;
    __syncthreads();
    for (int column = threadIdx.x; column < row.n; column += kThreads) {
      const float l = row.l(column);
      if (!(l >= least)) continue;
      const std::uint64_t key = order_key(l, column);
      if (key < floor_key || (shift < 56 && (key >> (shift + 8)) != (prefix >> (shift + 8))))
        continue;
      const int digit = static_cast<int>(key >> shift) & 255;
      atomicAdd(&h.count[digit], 1u);
      if (Weighted) {
        atomicAdd(&h.weight[digit], static_cast<unsigned long long>(weight_of(l, top)));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long sum = h.before;
      unsigned int last = 0;
      for (int digit = 255; digit >= 0; --digit) {
        if (h.count[digit] == 0) continue;
        last = static_cast<unsigned int>(digit);
        h.before = sum;
        sum += Weighted ? h.weight[digit] : h.count[digit];
        if (Weighted ? (sum << 16) >= wanted : sum >= wanted) break;
      }
      h.digit = last;
    }
    __syncthreads();
    prefix |= static_cast<std::uint64_t>(h.digit) << shift;
  }
  __syncthreads();
  return prefix;
}

__global__ void __launch_bounds__(kThreads) sample_rows(SampleArgs a) {
  __shared__ float float_parts[32];
  __shared__ std::uint64_t key_parts[32];
  __shared__ Histogram histogram;
  __shared__ unsigned long long total;
  __shared__ float terms[2][kThreads];
  __shared__ float chains[64];
  __shared__ int n_found;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int r = blockIdx.x;
  if (a.marked[r]) {
    if (threadIdx.x == 0) a.out[r] = Sampled{};
    return;
  }
  const SampleSpec spec = a.specs[r];
  Row row{a.logits + r * a.stride, a.ids_of, a.n_cols, spec.n_vocab, 1.0f};
  if (a.ids_of == nullptr) row.n = max(0, min(spec.n_vocab, a.n_cols));

  bool bad = false;
  float best = -INFINITY;
  for (int column = threadIdx.x; column < a.n_cols; column += kThreads) {
    const float x = row.logits[column];
    bad = bad || !(x < INFINITY);
    if (column < row.n && row.id(column) < spec.n_vocab) best = x > best ? x : best;
  }
  bad = __syncthreads_or(bad);
  best = block_max(best, float_parts);
  if (bad || !finite(best)) {
    if (threadIdx.x == 0) a.out[r] = Sampled{};
    return;
  }
  const float l_max = spec.temperature > 0.0f ? __fdiv_rn(best, spec.temperature) : best;
  const bool greedy = spec.temperature == 0.0f || !finite(l_max);
  row.divisor = greedy ? 1.0f : spec.temperature;
  const float top = greedy ? best : l_max;
  const float least = greedy ? top : add_rn(top, -add_rn(19.5f, mul_rn(fabsf(top), 0x1p-20f)));

  std::uint64_t floor_key = 0;
  if (!greedy && spec.top_k > 0) {
    int found = 0;
    for (int column = threadIdx.x; column < row.n; column += kThreads)
      found += row.l(column) >= least;
    if (threadIdx.x == 0) n_found = 0;
    __syncthreads();
    atomicAdd(&n_found, found);
    __syncthreads();
    if (spec.top_k < n_found) {
      floor_key = cut_key<false>(row, least, top, 0, static_cast<unsigned long long>(spec.top_k),
                                 histogram);
    }
  }
  if (!greedy && spec.top_p < 1.0f) {
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned long long sum = 0;
    for (int column = threadIdx.x; column < row.n; column += kThreads) {
      const float l = row.l(column);
      if (l >= least && order_key(l, column) >= floor_key) sum += weight_of(l, top);
    }
    atomicAdd(&total, sum);
    __syncthreads();
    const float p = spec.top_p > 0.0f ? spec.top_p : 0.0f;
    const unsigned long long wanted =
        total * static_cast<unsigned long long>(__float2int_rn(mul_rn(p, 65536.0f)));
    floor_key = cut_key<true>(row, least, top, floor_key, wanted, histogram);
  }

  // Greedy: the first of the order. Else the largest l + noise, ties to the lower column: the key
  // of the sum, whose column part falls with the column.
  std::uint64_t winner = 0;
  for (int column = threadIdx.x; column < row.n; column += kThreads) {
    const float l = row.l(column);
    if (!(l >= least)) continue;
    if (greedy) {
      winner = max(winner, order_key(l, column));
      continue;
    }
    if (order_key(l, column) < floor_key) continue;
    if (spec.min_p > 0.0f && exact_exp(add_rn(l, -top)) < spec.min_p) continue;
    winner = max(winner, order_key(add_rn(l, gumbel(spec, row.id(column))), column));
  }
  winner = block_max_key(winner, key_parts);
  const int chosen = static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(winner));

  // The lane sum of exp(l - top): column c in chain c mod 64.
  float chain = 0.0f;
  int buffer = 0;
  for (int first = 0; first < row.n; first += kThreads, buffer ^= 1) {
    const int column = first + threadIdx.x;
    if (column < row.n) terms[buffer][threadIdx.x] = exact_exp(add_rn(row.l(column), -top));
    __syncthreads();
    if (threadIdx.x < 64) {
      for (int i = threadIdx.x; i < min(kThreads, row.n - first); i += 64) {
        chain = add_rn(chain, terms[buffer][i]);
      }
    }
  }
  if (threadIdx.x < 64) chains[threadIdx.x] = chain;
  __syncthreads();
  if (threadIdx.x < 32) {
    float c = add_rn(chains[threadIdx.x], chains[threadIdx.x + 32]);
#pragma unroll
    for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
    if (threadIdx.x == 0) {
      a.out[r].id = row.id(chosen);
      a.out[r].probability = __fdiv_rn(exact_exp(add_rn(row.l(chosen), -top)), c);
    }
  }
}

}  // namespace

void launch_sample(const SampleArgs& a, cudaStream_t stream) {
  launch(sample_rows, dim3(static_cast<unsigned>(a.n_rows)), dim3(kThreads), 0, stream, a);
}

}  // namespace bolt::cuda
