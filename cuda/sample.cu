// Choosing a token from a row of logits (arithmetic.md §9). The rules, their order and the limits
// of what matters are core/ops/sample.cpp's. A row is cut into blocks of columns, and the last
// block of a launch to arrive goes on alone:
//   scan_rows    the best logit and the largest noisy one: enough for a row without filters
//   count_bins   top-k, top-p: how many ids, of what weight, lie in each step below the best
//   choose_rows  lists the ids of the steps that a cut falls in, draws, computes the terms of the
//                probability; the last block makes the cuts
// Keys are a total order, so it does not matter in which order ids arrive.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/sample.cuh"

namespace bolt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kKeptKeys = 4096;  // listed keys held in shared memory; more are computed again
static_assert(kSmallColumns <= kKeptKeys && kSampleBins == 4 * kThreads &&
              kTermsStep == 8 * kThreads);

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

// The noise of each id; four ids share a block of words.
class Draws {
 public:
  BOLT_DEV explicit Draws(const SampleSpec& spec)
      : key_(make_uint2(static_cast<std::uint32_t>(spec.seed),
                        static_cast<std::uint32_t>(spec.seed >> 32))),
        low_(static_cast<std::uint32_t>(spec.position)),
        high_(static_cast<std::uint32_t>(spec.position >> 32)) {}
  BOLT_DEV float gumbel(int id) {
    if (id / 4 != block_) {
      block_ = id / 4;
      words_ = philox(make_uint4(static_cast<std::uint32_t>(block_), 0, low_, high_), key_);
    }
    const int which = id & 3;
    const std::uint32_t word = which == 0   ? words_.x
                               : which == 1 ? words_.y
                               : which == 2 ? words_.z
                                            : words_.w;
    const float u = mul_rn(add_rn(static_cast<float>(word >> 9), 0.5f), 0x1p-23f);
    return -exact_log(-exact_log(u));
  }

 private:
  uint2 key_;
  std::uint32_t low_, high_;
  uint4 words_ = make_uint4(0, 0, 0, 0);
  int block_ = -1;
};

// Larger keys come first in the contract's order: l descending (-0 equals +0), id ascending.
BOLT_DEV std::uint64_t order_key(float l, int id) {
  const std::uint32_t u = l == 0.0f ? 0u : __float_as_uint(l);
  const std::uint32_t rising = (u & 0x80000000u) ? ~u : u | 0x80000000u;
  return static_cast<std::uint64_t>(rising) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}
BOLT_DEV float value_of(std::uint64_t key) {
  const auto rising = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float((rising & 0x80000000u) ? rising ^ 0x80000000u : ~rising);
}
BOLT_DEV int id_of(std::uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(key));
}

BOLT_DEV void take(Ranked& best, std::uint64_t key, int column) {
  if (key > best.key) best = {key, column};
}

struct Row {
  const float* logits;
  const int* ids_of;
  int n;  // columns that may be chosen or count in the sum
  int n_vocab;
  float divisor;

  BOLT_DEV Row(const SampleArgs& a, int r, int vocab, float div)
      : logits(a.logits + r * a.stride),
        ids_of(a.ids_of),
        n(a.ids_of != nullptr ? a.n_cols : max(0, min(vocab, a.n_cols))),
        n_vocab(vocab),
        divisor(div) {}
  BOLT_DEV int id(int column) const { return ids_of != nullptr ? ids_of[column] : column; }
  BOLT_DEV float l_of(float x, int column) const {
    if (ids_of != nullptr && ids_of[column] >= n_vocab) return -INFINITY;
    return __fdiv_rn(x, divisor);
  }
  BOLT_DEV float l(int column) const { return l_of(logits[column], column); }
  // Logits of `column` and the three after it, -inf from `end` on.
  BOLT_DEV void load4(int column, int end, float (&x)[4]) const {
    const float* from = logits + column;
    if (column + 4 <= end && (reinterpret_cast<std::uintptr_t>(from) & 15) == 0) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = column + i < end ? from[i] : -INFINITY;
  }
};

BOLT_DEV bool has_filter(const SampleSpec& spec) { return has_cut(spec) || spec.min_p > 0.0f; }

BOLT_DEV std::uint64_t weight_of(float l, float top) {
  return static_cast<std::uint64_t>(mul_rn(exact_exp(add_rn(l, -top)), 0x1p28f));
}

// Steps below the best; larger l, no larger bin.
BOLT_DEV int bin_of(float l, float top, float least) {
  const float step = __fdiv_rn(static_cast<float>(kSampleBins), add_rn(top, -least));
  return min(static_cast<int>(mul_rn(add_rn(top, -l), step)), kSampleBins - 1);
}

// The first of the order over the block, in every thread.
BOLT_DEV Ranked block_first(Ranked v) {
  __shared__ Ranked parts[kWarps];
  const auto fold = [&](int m) {
    const Ranked other{__shfl_xor_sync(kFullWarp, v.key, m),
                       __shfl_xor_sync(kFullWarp, v.column, m)};
    if (other.key > v.key) v = other;
  };
  for (int m = 16; m; m >>= 1) fold(m);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
  __syncthreads();
  v = parts[threadIdx.x & (kWarps - 1)];
  for (int m = kWarps / 2; m; m >>= 1) fold(m);
  return v;
}

// Sum of v over the block's threads up to this one.
BOLT_DEV std::uint64_t block_running_sum(std::uint64_t v) {
  __shared__ std::uint64_t parts[kWarps];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int m = 1; m < 32; m *= 2) {
    const std::uint64_t other = __shfl_up_sync(kFullWarp, v, m);
    if (lane >= m) v += other;
  }
  __syncthreads();
  if (lane == 31) parts[warp] = v;
  __syncthreads();
  for (int w = 0; w < warp; ++w) v += parts[w];
  return v;
}

// True in the block of a row that arrives last: it sees what the others wrote.
BOLT_DEV bool arrived_last(unsigned* arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;  // back to 0 by the last
    __threadfence();
  }
  __syncthreads();
  return last;
}

// The listed ids of a row; for a small row, or where no bins were counted, all of its columns.
class Listed {
 public:
  BOLT_DEV Listed(const Row& row, const int* columns, int n, float least, std::uint64_t* kept)
      : row_(row), columns_(columns), kept_(kept), n_(n), least_(least) {
    for (int i = threadIdx.x; i < min(n, kKeptKeys); i += kThreads) kept[i] = compute(i);
    __syncthreads();
  }
  BOLT_DEV int size() const { return n_; }
  BOLT_DEV int column(int i) const { return columns_ != nullptr ? __ldcg(columns_ + i) : i; }
  BOLT_DEV std::uint64_t key(int i) const { return i < kKeptKeys ? kept_[i] : compute(i); }

 private:
  // 0 for an id that cannot matter.
  BOLT_DEV std::uint64_t compute(int i) const {
    const int c = column(i);
    const float l = row_.l(c);
    return l >= least_ ? order_key(l, row_.id(c)) : 0;
  }
  const Row& row_;
  const int* columns_;
  std::uint64_t* kept_;
  int n_;
  float least_;
};

// The key at which the keys of [floor_key, inf), taken in falling order, first reach `wanted`:
// counted (`before` and `wanted` are keys) or weighed ((before + weights) << 16 >= wanted, at least
// one key). By radix descent; fewer than kThreads * 2^24 keys.
template <bool Weighted>
BOLT_DEV std::uint64_t cut_key(const Listed& listed, float top, std::uint64_t floor_key,
                               std::uint64_t before, std::uint64_t wanted) {
  __shared__ unsigned count[256];
  __shared__ unsigned long long weight[256];
  __shared__ std::uint64_t reached_before;
  __shared__ unsigned chosen;
  __shared__ bool alone;
  static_assert(kThreads == 256);
  const int digit_here = 255 - static_cast<int>(threadIdx.x);
  std::uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    count[threadIdx.x] = 0, weight[threadIdx.x] = 0;
    if (threadIdx.x == 0) chosen = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < listed.size(); i += kThreads) {
      const std::uint64_t key = listed.key(i);
      if (key == 0 || key < floor_key ||
          (shift < 56 && (key >> (shift + 8)) != (prefix >> (shift + 8)))) {
        continue;
      }
      const int digit = static_cast<int>(key >> shift) & 255;
      atomicAdd(&count[digit], 1u);
      if (Weighted) {
        atomicAdd(&weight[digit], static_cast<unsigned long long>(weight_of(value_of(key), top)));
      }
    }
    __syncthreads();
    const std::uint64_t amount = Weighted ? weight[digit_here] : count[digit_here];
    const std::uint64_t through = before + block_running_sum(amount);
    if (count[digit_here] != 0 && (Weighted ? through << 16 : through) >= wanted) {
      atomicMax(&chosen, static_cast<unsigned>(digit_here));
    }
    __syncthreads();
    if (static_cast<unsigned>(digit_here) == chosen) {
      reached_before = through - amount;
      alone = count[digit_here] == 1;
    }
    __syncthreads();
    prefix |= static_cast<std::uint64_t>(chosen) << shift;
    before = reached_before;
    if (alone) break;  // the prefix tells this key from those that follow
  }
  return prefix > floor_key ? prefix : floor_key;
}

// The lane sum of §1 in thread 0: 64 chains over terms that others computed, four steps of loads
// ahead. The zeros of the padding change no chain.
BOLT_DEV float lane_sum(const float* terms, int n, float* buffers) {
  constexpr int kAhead = 4;
  const int n_steps = (n + kTermsStep - 1) / kTermsStep;
  float4 ahead[kAhead][2];
  const auto load = [&](int step, float4(&to)[2]) {
    if (step >= n_steps) return;
    const auto* from =
        reinterpret_cast<const float4*>(terms + static_cast<std::int64_t>(step) * kTermsStep);
    to[0] = __ldcg(from + threadIdx.x), to[1] = __ldcg(from + kThreads + threadIdx.x);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, ahead[i]);
  float chain = 0.0f;
  for (int first = 0; first < n_steps; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = first + i;
      if (step >= n_steps) break;
      float* buffer = buffers + (step & 1) * kTermsStep;
      auto* to = reinterpret_cast<float4*>(buffer);
      to[threadIdx.x] = ahead[i][0], to[kThreads + threadIdx.x] = ahead[i][1];
      load(step + kAhead, ahead[i]);
      __syncthreads();
      if (threadIdx.x < 64) {
#pragma unroll
        for (int k = 0; k < kTermsStep / 64; ++k) {
          chain = add_rn(chain, buffer[64 * k + threadIdx.x]);
        }
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < 64) buffers[threadIdx.x] = chain;
  __syncthreads();
  if (threadIdx.x >= 32) return 0.0f;
  float c = add_rn(buffers[threadIdx.x], buffers[threadIdx.x + 32]);
#pragma unroll
  for (int m = 16; m; m >>= 1) c = add_rn(c, __shfl_xor_sync(kFullWarp, c, m));
  return c;
}

// exp(l - top) of four columns; 0 past the row.
BOLT_DEV void store_terms(const Row& row, float top, int column, const float (&x)[4],
                          float* terms) {
  float term[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    term[i] = column + i < row.n ? exact_exp(add_rn(row.l_of(x[i], column + i), -top)) : 0.0f;
  }
  *reinterpret_cast<float4*>(terms + column) = make_float4(term[0], term[1], term[2], term[3]);
}

// l plus noise, if the id passes min-p.
BOLT_DEV void try_id(const SampleSpec& spec, Draws& draws, float l, float top, int id, int column,
                     Ranked& best) {
  if (spec.min_p > 0.0f && exact_exp(add_rn(l, -top)) < spec.min_p) return;
  take(best, order_key(add_rn(l, draws.gumbel(id)), id), column);
}

// 2^16 times top_p, rounded.
BOLT_DEV std::uint64_t p_of(const SampleSpec& spec) {
  const float p = spec.top_p > 0.0f ? spec.top_p : 0.0f;
  return static_cast<std::uint64_t>(__float2int_rn(mul_rn(p, 65536.0f)));
}

union FinishShared {
  std::uint64_t kept[kKeptKeys];
  float4 steps[2 * kTermsStep / 4];
};

// What is left to one block: the cuts among the listed ids (columns null: all of the row), the draw
// among them, the probability. winner: the first of the ids that were decided before.
BOLT_DEV void finish_row(const SampleArgs& a, int r, const SampleSpec& spec,
                         const SampleRowState& state, const int* columns, int n_listed,
                         Ranked winner, FinishShared& shared) {
  __shared__ std::uint64_t total;
  const auto sum_over_block = [&](std::uint64_t v) {
    v = block_running_sum(v);
    if (threadIdx.x == kThreads - 1) total = v;
    __syncthreads();
    return total;
  };
  const Row row(a, r, spec.n_vocab, state.divisor);
  if (n_listed > 0) {
    const Listed listed(row, columns, n_listed, state.least, shared.kept);
    std::uint64_t floor_key = 0;
    if (spec.top_k > 0) {
      std::uint64_t found = 0;
      for (int i = threadIdx.x; i < n_listed; i += kThreads) found += listed.key(i) != 0;
      found = sum_over_block(found);
      const auto k = static_cast<std::uint64_t>(spec.top_k);
      if (k < state.n_before + found) {
        floor_key = cut_key<false>(listed, state.top, 0, state.n_before, k);
      }
    }
    if (spec.top_p < 1.0f) {
      std::uint64_t all = state.weight_all;
      if (all == 0) {
        for (int i = threadIdx.x; i < n_listed; i += kThreads) {
          const std::uint64_t key = listed.key(i);
          if (key != 0 && key >= floor_key) all += weight_of(value_of(key), state.top);
        }
        all = state.weight_before + sum_over_block(all);
      }
      floor_key =
          cut_key<true>(listed, state.top, floor_key, state.weight_before, all * p_of(spec));
    }
    Draws draws(spec);
    for (int i = threadIdx.x; i < n_listed; i += kThreads) {
      const std::uint64_t key = listed.key(i);
      if (key == 0 || key < floor_key) continue;
      try_id(spec, draws, value_of(key), state.top, id_of(key), listed.column(i), winner);
    }
    winner = block_first(winner);
  }
  float probability = 0.0f;
  if (spec.want_probability) {
    const float* terms = a.scratch.terms + static_cast<std::int64_t>(r) * a.scratch.terms_stride;
    const float sum = lane_sum(terms, row.n, reinterpret_cast<float*>(shared.steps));
    probability = __fdiv_rn(exact_exp(add_rn(row.l(winner.column), -state.top)), sum);
  }
  if (threadIdx.x == 0) a.out[r] = {id_of(winner.key), probability};
}

// Block = block_columns columns of row blockIdx.y; thread = four neighbouring columns at a time.
// Small: the row is one block's, which finishes it.
template <bool Small>
__global__ void __launch_bounds__(kThreads) scan_rows(SampleArgs a) {
  __shared__ FinishShared shared;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int r = blockIdx.y;
  if (r == 0 && blockIdx.x == 0) {
    for (int i = threadIdx.x; i < a.n_marks; i += kThreads) a.marks_out[i] = a.marks[i];
  }
  if (a.marked[r]) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    a.scratch.states[r].active = false;
    a.out[r] = Sampled{};
    return;
  }
  if (a.scratch.bin_count != nullptr) {
    for (int i = blockIdx.x * kThreads + threadIdx.x; i < kSampleBins; i += gridDim.x * kThreads) {
      a.scratch.bin_count[r * kSampleBins + i] = 0;
      a.scratch.bin_weight[r * kSampleBins + i] = 0;
    }
  }
  const SampleSpec spec = a.specs[r];
  const Row row(a, r, spec.n_vocab, 1.0f);
  const bool noisy = spec.temperature > 0.0f && !has_filter(spec);
  const int first = blockIdx.x * a.block_columns;
  const int end = Small ? a.n_cols : min(first + a.block_columns, a.n_cols);
  SamplePartial part{};
  Draws draws(spec);
  bool bad = false;
  for (int column = first + 4 * threadIdx.x; column < end; column += 4 * kThreads) {
    float x[4];
    row.load4(column, end, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i >= end) break;
      bad = bad || !(x[i] < INFINITY);
      const int id = row.id(column + i);
      if (id >= spec.n_vocab) continue;
      take(part.best, order_key(x[i], id), column + i);
      if (noisy) {
        const float l = __fdiv_rn(x[i], spec.temperature);
        take(part.noisy, order_key(add_rn(l, draws.gumbel(id)), id), column + i);
      }
    }
  }
  part.bad = __syncthreads_or(bad);
  part.best = block_first(part.best);
  if (noisy) part.noisy = block_first(part.noisy);
  if (!Small) {
    SamplePartial* parts = a.scratch.partials + static_cast<std::int64_t>(r) * gridDim.x;
    if (threadIdx.x == 0) parts[blockIdx.x] = part;
    if (!arrived_last(a.scratch.arrived + 3 * r)) return;
    part = SamplePartial{};
    bad = false;
    for (int i = threadIdx.x; i < gridDim.x; i += kThreads) {
      bad = bad || parts[i].bad;
      take(part.best, parts[i].best.key, parts[i].best.column);
      take(part.noisy, parts[i].noisy.key, parts[i].noisy.column);
    }
    part.bad = __syncthreads_or(bad);
    part.best = block_first(part.best);
    if (noisy) part.noisy = block_first(part.noisy);
  }

  // The same in every thread.
  const float best = value_of(part.best.key);
  if (part.bad || part.best.key == 0 || !finite(best)) {
    if (threadIdx.x != 0) return;
    a.scratch.states[r].active = false;
    a.out[r] = Sampled{};
    return;
  }
  const float l_max = spec.temperature > 0.0f ? __fdiv_rn(best, spec.temperature) : best;
  SampleRowState state{};
  state.greedy = spec.temperature == 0.0f || !finite(l_max);
  state.divisor = state.greedy ? 1.0f : spec.temperature;
  state.top = state.greedy ? best : l_max;
  state.least = state.greedy ? best : add_rn(l_max, -add_rn(19.5f, mul_rn(fabsf(l_max), 0x1p-20f)));
  state.winner = state.greedy ? part.best : part.noisy;
  state.filtered = !state.greedy && has_filter(spec);
  state.active = state.filtered || spec.want_probability;
  if (state.filtered) state.winner = Ranked{};
  // Until count_bins knows better: min-p alone lists nothing, a cut lists all.
  const bool lists_all = state.filtered && (Small || has_cut(spec));
  state.first_bin = lists_all ? 0 : kSampleBins;
  state.last_bin = lists_all ? kSampleBins - 1 : -1;
  if (!state.active) {
    if (threadIdx.x != 0) return;
    a.scratch.states[r].active = false;
    a.out[r] = {id_of(state.winner.key), 0.0f};
    return;
  }
  if (!Small) {
    if (threadIdx.x == 0) a.scratch.states[r] = state;
    return;
  }
  if (spec.want_probability) {
    const Row scaled(a, r, spec.n_vocab, state.divisor);
    float* terms = a.scratch.terms + static_cast<std::int64_t>(r) * a.scratch.terms_stride;
    for (int column = 4 * threadIdx.x; column < a.scratch.terms_stride; column += 4 * kThreads) {
      float x[4];
      scaled.load4(column, a.n_cols, x);
      store_terms(scaled, state.top, column, x, terms);
    }
    __threadfence_block();
    __syncthreads();
  }
  finish_row(a, r, spec, state, nullptr, lists_all ? row.n : 0, state.winner, shared);
}

// Grid as scan_rows.
__global__ void __launch_bounds__(kThreads) count_bins(SampleArgs a) {
  // A weight is at most 2^28: two halves of at most 16 and 13 bits, so that sums fit 32-bit
  // atomics.
  __shared__ unsigned count[kSampleBins], low[kSampleBins], high[kSampleBins];
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int r = blockIdx.y;
  SampleRowState& state = a.scratch.states[r];
  const SampleSpec spec = a.specs[r];
  if (!state.active || state.greedy || !has_cut(spec)) return;
  for (int i = threadIdx.x; i < kSampleBins; i += kThreads) count[i] = low[i] = high[i] = 0;
  __syncthreads();
  const Row row(a, r, spec.n_vocab, state.divisor);
  const float top = state.top, least = state.least;
  const int first = blockIdx.x * a.block_columns, end = min(first + a.block_columns, row.n);
  for (int column = first + 4 * threadIdx.x; column < end; column += 4 * kThreads) {
    float x[4];
    row.load4(column, end, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i >= end) break;
      const float l = row.l_of(x[i], column + i);
      if (!(l >= least)) continue;
      const int bin = bin_of(l, top, least);
      const auto weight = static_cast<unsigned>(weight_of(l, top));
      atomicAdd(&count[bin], 1u);
      if ((weight & 0xffffu) != 0) atomicAdd(&low[bin], weight & 0xffffu);
      if (weight >> 16 != 0) atomicAdd(&high[bin], weight >> 16);
    }
  }
  __syncthreads();
  unsigned* counts = a.scratch.bin_count + r * kSampleBins;
  unsigned long long* weights = a.scratch.bin_weight + r * kSampleBins;
  for (int i = threadIdx.x; i < kSampleBins; i += kThreads) {
    if (count[i] == 0) continue;
    atomicAdd(counts + i, count[i]);
    const unsigned long long weight = (static_cast<unsigned long long>(high[i]) << 16) + low[i];
    if (weight != 0) atomicAdd(weights + i, weight);
  }
  if (!arrived_last(a.scratch.arrived + 3 * r + 1)) return;

  // Thread = four bins. In the order's terms: where the k-th key lies, then, between the least and
  // the most that top-k can keep, where the cut of top-p can lie.
  constexpr int kMine = kSampleBins / kThreads;
  __shared__ std::uint64_t n_found, weight_least, weight_most;
  __shared__ int k_bin, p_first, p_last;
  std::uint64_t n_mine[kMine], weight_mine[kMine], n_sum = 0, weight_sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    n_mine[i] = __ldcg(counts + kMine * threadIdx.x + i);
    weight_mine[i] = __ldcg(weights + kMine * threadIdx.x + i);
    n_sum += n_mine[i], weight_sum += weight_mine[i];
  }
  const std::uint64_t n_first = block_running_sum(n_sum) - n_sum;
  const std::uint64_t weight_first = block_running_sum(weight_sum) - weight_sum;
  if (threadIdx.x == kThreads - 1) {
    n_found = n_first + n_sum;
    weight_least = weight_most = weight_first + weight_sum;
    k_bin = -1, p_first = kSampleBins - 1, p_last = 0;
  }
  __syncthreads();
  const bool cut_k = spec.top_k > 0 && static_cast<std::uint64_t>(spec.top_k) < n_found;
  const bool cut_p = spec.top_p < 1.0f;
  if (cut_k) {
    const auto k = static_cast<std::uint64_t>(spec.top_k);
    std::uint64_t n = n_first, weight = weight_first;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (n < k && k <= n + n_mine[i]) {
        k_bin = kMine * static_cast<int>(threadIdx.x) + i;
        weight_least = weight, weight_most = weight + weight_mine[i];
      }
      n += n_mine[i], weight += weight_mine[i];
    }
  }
  __syncthreads();
  if (cut_p) {
    const std::uint64_t p = p_of(spec);
    std::uint64_t n = n_first, weight = weight_first;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int bin = kMine * static_cast<int>(threadIdx.x) + i;
      if ((weight + weight_mine[i]) << 16 >= weight_least * p) atomicMin(&p_first, bin);
      if (n == 0 || weight << 16 < weight_most * p) atomicMax(&p_last, bin);
      n += n_mine[i], weight += weight_mine[i];
    }
  }
  __syncthreads();
  // Behind top-k the weight of what it keeps is known once the ids of its step are.
  const int first_bin = cut_p ? p_first : (cut_k ? k_bin : kSampleBins);
  const int last_bin = cut_k ? k_bin : (cut_p ? p_last : -1);
  if (threadIdx.x == 0) {
    state.first_bin = first_bin, state.last_bin = last_bin;
    state.weight_all = cut_k ? 0 : weight_most;
  }
  std::uint64_t n = n_first, weight = weight_first;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (kMine * static_cast<int>(threadIdx.x) + i == first_bin) {
      state.n_before = n, state.weight_before = weight;
    }
    n += n_mine[i], weight += weight_mine[i];
  }
}

// Grid as scan_rows.
__global__ void __launch_bounds__(kThreads) choose_rows(SampleArgs a) {
  __shared__ FinishShared shared;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int r = blockIdx.y;
  SampleRowState& shared_state = a.scratch.states[r];
  if (!shared_state.active) return;
  SampleRowState state = shared_state;  // n_listed moves
  const SampleSpec spec = a.specs[r];
  const Row row(a, r, spec.n_vocab, state.divisor);
  int* listed = a.scratch.listed + static_cast<std::int64_t>(r) * a.n_cols;
  float* terms = a.scratch.terms + static_cast<std::int64_t>(r) * a.scratch.terms_stride;
  // To the end of the padding, which is zeroed.
  const int first = blockIdx.x * a.block_columns;
  const int end = blockIdx.x + 1 == gridDim.x ? a.scratch.terms_stride : first + a.block_columns;
  Ranked best{};
  Draws draws(spec);
  for (int column = first + 4 * threadIdx.x; column < end; column += 4 * kThreads) {
    float x[4];
    row.load4(column, a.n_cols, x);
    if (spec.want_probability) store_terms(row, state.top, column, x, terms);
    if (!state.filtered) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i >= row.n) break;
      const float l = row.l_of(x[i], column + i);
      if (!(l >= state.least)) continue;
      const int bin = bin_of(l, state.top, state.least);
      if (bin < state.first_bin) {
        try_id(spec, draws, l, state.top, row.id(column + i), column + i, best);
      } else if (bin <= state.last_bin) {
        listed[atomicAdd(&shared_state.n_listed, 1)] = column + i;
      }
    }
  }
  SamplePartial* partials = a.scratch.partials + static_cast<std::int64_t>(r) * gridDim.x;
  if (state.filtered) best = block_first(best);
  if (threadIdx.x == 0) partials[blockIdx.x].noisy = best;
  if (!arrived_last(a.scratch.arrived + 3 * r + 2)) return;
  Ranked winner = state.winner;
  if (state.filtered) {
    for (int i = threadIdx.x; i < gridDim.x; i += kThreads) {
      take(winner, partials[i].noisy.key, partials[i].noisy.column);
    }
    winner = block_first(winner);
  }
  finish_row(a, r, spec, state, listed, __ldcg(&shared_state.n_listed), winner, shared);
}

}  // namespace

int sample_block_columns(int n_rows, int n_cols) {
  // Blocks for every multiprocessor a few times over, no more.
  int columns = kTermsStep / 2;
  while (columns<8 * kTermsStep&& static_cast<std::int64_t>(n_rows) * n_cols / columns> 1024) {
    columns *= 2;
  }
  return columns;
}

void launch_sample(const SampleArgs& a, cudaStream_t stream) {
  const dim3 block(kThreads);
  if (a.n_cols <= kSmallColumns) {
    const dim3 grid(1, static_cast<unsigned>(a.n_rows));
    launch(scan_rows<true>, grid, block, 0, stream, a);
    return;
  }
  const dim3 grid(static_cast<unsigned>(a.n_blocks), static_cast<unsigned>(a.n_rows));
  launch(scan_rows<false>, grid, block, 0, stream, a);
  if (a.scratch.bin_count != nullptr) launch(count_bins, grid, block, 0, stream, a);
  if (a.choose_later) launch(choose_rows, grid, block, 0, stream, a);
}

}  // namespace bolt::cuda
