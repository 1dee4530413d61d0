// Choosing a token, §9: filters, weights and the draw. The loops over a vocabulary are
// sample_definition.inc and x86/sample_*.cpp.
#include "core/ops/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/host.h"
#include "core/ops/philox.h"

namespace bolt {
namespace {

struct Candidate {
  float l;
  float e;  // exp(l - l_max), where a filter asks for it
  int id;
};

// The contract's order: l descending, id ascending.
bool before(const Candidate& a, const Candidate& b) {
  return a.l > b.l || (a.l == b.l && a.id < b.id);
}

// Buffers of one thread, grown to the largest vocabulary.
struct Buffers {
  std::vector<float> l;
  std::vector<int> columns;
  std::vector<Candidate> candidates, hopeful;
  std::vector<float> values, exps;
  std::vector<std::uint32_t> bits;
};
thread_local Buffers t_buffers;

// How far below the best an id can lie and still matter.
//   Noise lies in (-2.82, 16.64), so an id more than 19.46 below the best loses to it whatever is
//   drawn, if rounding l + g cannot make them equal; and exp(-19.49) < 2^-28, so its top-p weight
//   is 0. The second term is at least 8 units in the last place of l_max: more than the roundings
//   of l_max - reach, l + g and l_max + g move anything together.
float reach(float l_max) { return 19.5f + std::fabs(l_max) * 0x1p-20f; }

std::uint64_t weight(const Candidate& c) {
  return static_cast<std::uint64_t>(c.e * 0x1p28f);  // exact product, floor
}

// Keeps the shortest prefix of the order whose weights reach top_p of all; at least one id. Halves
// the range instead of sorting it: a high temperature leaves a whole vocabulary.
void keep_top_p(std::vector<Candidate>& ids, float top_p) {
  std::uint64_t all = 0;
  for (const Candidate& c : ids) all += weight(c);
  const std::uint64_t wanted = all * static_cast<std::uint64_t>(std::lrintf(top_p * 65536.0f));
  std::uint64_t reached = 0;  // weights of the order's ids before `low`
  std::ptrdiff_t low = 0, high = std::ssize(ids);
  while (high - low > 32) {
    const std::ptrdiff_t middle = low + (high - low) / 2;
    std::nth_element(ids.begin() + low, ids.begin() + middle, ids.begin() + high, before);
    std::uint64_t sum = reached;
    for (std::ptrdiff_t i = low; i < middle; ++i) sum += weight(ids[i]);
    if (sum << 16 >= wanted) {
      high = middle;
    } else {
      low = middle, reached = sum;
    }
  }
  std::sort(ids.begin() + low, ids.begin() + high, before);
  std::ptrdiff_t n = low;
  do {
    reached += weight(ids[n++]);
  } while (reached << 16 < wanted && n < high);
  ids.resize(static_cast<std::size_t>(n));
}

// The 23-bit draw of each id, for one seed and position; four ids share a block of words.
class Draws {
 public:
  explicit Draws(const SampleSpec& spec)
      : key_{static_cast<std::uint32_t>(spec.seed), static_cast<std::uint32_t>(spec.seed >> 32)},
        low_(static_cast<std::uint32_t>(spec.position)),
        high_(static_cast<std::uint32_t>(spec.position >> 32)) {}
  std::uint32_t operator()(int id) {
    const int block = id / 4;
    if (block != block_) {
      block_ = block;
      words_ = philox4x32_10({static_cast<std::uint32_t>(block), 0, low_, high_}, key_);
    }
    return words_[static_cast<std::size_t>(id % 4)] >> 9;
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t low_, high_;
  std::array<std::uint32_t, 4> words_{};
  int block_ = -1;
};

// least_draws()[k]: draws below it give noise below k. -log(u) >= 1 - u, so noise of at least k
// needs 1 - u <= exp(-k); two draws of slack cover the roundings.
const std::array<std::uint32_t, 17>& least_draws() {
  static const auto table = [] {
    std::array<std::uint32_t, 17> least{};
    for (std::size_t k = 1; k < least.size(); ++k) {
      least[k] = static_cast<std::uint32_t>(0x1p23 * (1.0 - std::exp(-static_cast<double>(k)))) - 2;
    }
    return least;
  }();
  return table;
}

// The candidate whose l plus its own noise is largest, ties to the lower id. `best` is one of them:
// who would need more noise than its draw can hold to reach best's sum is passed over.
Candidate draw(const SampleKernels& kernels, const SampleSpec& spec, const Candidate& best,
               Buffers& buffers) {
  Draws draws(spec);
  auto value_of = [&](const Candidate& c) {
    const std::uint32_t bits = draws(c.id);
    float noise;
    kernels.gumbel(&bits, 1, &noise);
    return c.l + noise;
  };
  const float to_reach = value_of(best);
  const float lowered = to_reach - 0.01f - std::fabs(to_reach) * 0x1p-20f;  // more than roundings
  buffers.hopeful.clear(), buffers.bits.clear();
  for (const Candidate& c : buffers.candidates) {
    const std::uint32_t bits = draws(c.id);
    const float needed = lowered - c.l;
    if (needed > 0.0f && bits < least_draws()[static_cast<std::size_t>(std::min(needed, 16.0f))]) {
      continue;
    }
    buffers.hopeful.push_back(c), buffers.bits.push_back(bits);
  }
  const std::size_t n = buffers.hopeful.size();
  if (buffers.values.size() < n) buffers.values.resize(n);
  kernels.gumbel(buffers.bits.data(), static_cast<int>(n), buffers.values.data());
  Candidate chosen = best;
  float largest = to_reach;
  for (std::size_t i = 0; i < n; ++i) {
    const Candidate& c = buffers.hopeful[i];
    const float value = c.l + buffers.values[i];
    if (value > largest || (value == largest && c.id < chosen.id)) chosen = c, largest = value;
  }
  return chosen;
}

Sampled choose(const SampleKernels& kernels, const float* logits, int n_cols, const int* ids_of,
               const SampleSpec& spec) {
  require(spec.temperature >= 0.0f && is_finite(spec.temperature), "a temperature is finite, >= 0");
  require(spec.top_p == spec.top_p && spec.min_p >= 0.0f && spec.min_p <= 1.0f,
          "top_p is a number, min_p in 0..1");
  Buffers& buffers = t_buffers;
  if (buffers.l.size() < static_cast<std::size_t>(n_cols)) {
    buffers.l.resize(n_cols), buffers.columns.resize(n_cols);
  }
  bool bad = false;
  int n = n_cols;
  const float* x = logits;
  float best;
  if (ids_of != nullptr) {  // ids that may not be chosen count as -inf
    kernels.largest(logits, n_cols, &bad);
    for (int c = 0; c < n_cols; ++c) {
      buffers.l[c] = ids_of[c] < spec.n_vocab ? logits[c] : -std::numeric_limits<float>::infinity();
    }
    x = buffers.l.data();
    best = kernels.largest(x, n_cols, &bad);
  } else {
    n = std::clamp(spec.n_vocab, 0, n_cols);
    best = kernels.largest(logits, n, &bad);
    if (n < n_cols) kernels.largest(logits + n, n_cols - n, &bad);
  }
  if (bad || !is_finite(best)) return {};

  auto id_of = [&](int column) { return ids_of != nullptr ? ids_of[column] : column; };
  // A temperature so small that the best quotient overflows is 0.
  const float l_max = spec.temperature > 0.0f ? best / spec.temperature : best;
  const bool greedy = spec.temperature == 0.0f || !is_finite(l_max);
  const float* l = x;
  const float top = greedy ? best : l_max;
  if (!greedy) {
    kernels.divide(x, n, spec.temperature, buffers.l.data());
    l = buffers.l.data();
  }
  const int n_found =
      kernels.collect(l, n, greedy ? top : top - reach(top), buffers.columns.data());
  std::vector<Candidate>& ids = buffers.candidates;
  ids.clear();
  for (int i = 0; i < n_found; ++i) {
    const int column = buffers.columns[i];
    ids.push_back({l[column], 0.0f, id_of(column)});
  }
  Candidate chosen = *std::min_element(ids.begin(), ids.end(), before);
  if (!greedy) {
    if (spec.top_k > 0 && static_cast<std::size_t>(spec.top_k) < ids.size()) {
      std::nth_element(ids.begin(), ids.begin() + spec.top_k, ids.end(), before);
      ids.resize(static_cast<std::size_t>(spec.top_k));
    }
    if (spec.top_p < 1.0f || spec.min_p > 0.0f) {
      buffers.exps.resize(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) buffers.exps[i] = ids[i].l;
      kernels.exp_below(buffers.exps.data(), static_cast<int>(ids.size()), top,
                        buffers.exps.data());
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i].e = buffers.exps[i];
    }
    if (spec.top_p < 1.0f) keep_top_p(ids, std::max(spec.top_p, 0.0f));
    if (spec.min_p > 0.0f) {
      std::erase_if(ids, [&](const Candidate& c) { return c.e < spec.min_p; });
    }
    chosen = draw(kernels, spec, chosen, buffers);
  }
  if (!spec.want_probability) return {chosen.id, 0.0f};
  return {chosen.id, exact_exp(chosen.l - top) / kernels.sum_exp(l, n, top)};
}

}  // namespace

const SampleKernels& sample_kernels_for(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return kSampleAvx2;
    case Isa::avx512:
      return kSampleAvx512;
    default:
      return cpu_has_fma() ? kSampleFma : kSamplePortable;
  }
}

void HostOps::sample(Rows<const float> logits, std::span<const SampleSpec> specs,
                     std::span<const std::uint8_t> marked, const int* ids_of,
                     std::span<Sampled> out) {
  const auto n_rows = static_cast<std::size_t>(logits.n_rows);
  require(
      specs.size() >= n_rows && out.size() >= n_rows && (marked.empty() || marked.size() >= n_rows),
      "every row has its spec and place");
  const SampleKernels& kernels = sample_kernels_for(isa_);
  pool_.parallel_for(logits.n_rows, 1, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const bool skip = !marked.empty() && marked[r] != 0;
      out[r] = skip ? Sampled{} : choose(kernels, logits.row(r), logits.n_cols, ids_of, specs[r]);
    }
  });
}

}  // namespace bolt
