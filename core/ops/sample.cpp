// Choosing a token, §9: filters, weights and the draw. The loops over a vocabulary are
// sample_definition.inc and x86/sample_*.cpp.
#include "core/ops/sample.h"

#include <algorithm>
#include <cmath>
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
  int id;
};

// The contract's order: l descending, id ascending.
bool before(const Candidate& a, const Candidate& b) {
  return a.l > b.l || (a.l == b.l && a.id < b.id);
}

// Buffers of one thread, grown to the largest vocabulary.
struct Buffers {
  std::vector<float> l, noise;
  std::vector<int> columns;
  std::vector<Candidate> candidates;
  std::vector<std::uint32_t> bits;
};
thread_local Buffers t_buffers;

// How far below the best an id can lie and still matter.
//   Noise lies in (-2.82, 16.64), so an id more than 19.46 below the best loses to it whatever is
//   drawn, if rounding l + g cannot make them equal; and exp(-19.49) < 2^-28, so its top-p weight
//   is 0. The second term is at least 8 units in the last place of l_max: more than the roundings
//   of l_max - reach, l + g and l_max + g move anything together.
float reach(float l_max) { return 19.5f + std::fabs(l_max) * 0x1p-20f; }

std::uint64_t weight(float l, float l_max) {
  return static_cast<std::uint64_t>(exact_exp(l - l_max) * 0x1p28f);  // exact product, floor
}

// Keeps the shortest prefix of the order whose weights reach top_p of all; at least one id. Halves
// the range instead of sorting it: a high temperature leaves a whole vocabulary.
void keep_top_p(std::vector<Candidate>& ids, float l_max, float top_p) {
  std::uint64_t all = 0;
  for (const Candidate& c : ids) all += weight(c.l, l_max);
  const std::uint64_t wanted = all * static_cast<std::uint64_t>(std::lrintf(top_p * 65536.0f));
  std::uint64_t before_low = 0;  // weights of the order's ids before `low`
  std::size_t low = 0, high = ids.size();
  while (high - low > 32) {
    const std::size_t middle = low + (high - low) / 2;
    std::nth_element(ids.begin() + low, ids.begin() + middle, ids.begin() + high, before);
    std::uint64_t sum = before_low;
    for (std::size_t i = low; i < middle; ++i) sum += weight(ids[i].l, l_max);
    if (sum << 16 >= wanted) {
      high = middle;
    } else {
      low = middle, before_low = sum;
    }
  }
  std::sort(ids.begin() + low, ids.begin() + high, before);
  std::size_t n = low;
  do {
    before_low += weight(ids[n++].l, l_max);
  } while (before_low << 16 < wanted && n < high);
  ids.resize(n);
}

// The id whose l plus its own noise is largest, ties to the lower id.
int draw(const SampleKernels& kernels, const SampleSpec& spec, Buffers& buffers) {
  std::vector<Candidate>& ids = buffers.candidates;
  std::sort(ids.begin(), ids.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  const int n = static_cast<int>(ids.size());
  if (buffers.bits.size() < ids.size()) buffers.bits.resize(n), buffers.noise.resize(n);
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(spec.seed),
                                            static_cast<std::uint32_t>(spec.seed >> 32)};
  std::array<std::uint32_t, 4> words{};
  int block = -1;  // whose words those are
  for (int i = 0; i < n; ++i) {
    if (ids[i].id / 4 != block) {
      block = ids[i].id / 4;
      words = philox4x32_10(
          {static_cast<std::uint32_t>(block), 0, static_cast<std::uint32_t>(spec.position),
           static_cast<std::uint32_t>(spec.position >> 32)},
          key);
    }
    buffers.bits[i] = words[ids[i].id % 4] >> 9;
  }
  kernels.gumbel(buffers.bits.data(), n, buffers.noise.data());
  int best = 0;
  for (int i = 1; i < n; ++i) {
    if (ids[i].l + buffers.noise[i] > ids[best].l + buffers.noise[best]) best = i;
  }
  return ids[best].id;
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
    ids.push_back({l[buffers.columns[i]], id_of(buffers.columns[i])});
  }
  Candidate chosen = *std::min_element(ids.begin(), ids.end(), before);
  if (!greedy) {
    if (spec.top_k > 0 && static_cast<std::size_t>(spec.top_k) < ids.size()) {
      std::nth_element(ids.begin(), ids.begin() + spec.top_k, ids.end(), before);
      ids.resize(spec.top_k);
    }
    if (spec.top_p < 1.0f) keep_top_p(ids, top, std::max(spec.top_p, 0.0f));
    if (spec.min_p > 0.0f) {
      std::erase_if(ids, [&](const Candidate& c) { return exact_exp(c.l - top) < spec.min_p; });
    }
    const int id = draw(kernels, spec, buffers);
    chosen = *std::find_if(ids.begin(), ids.end(), [&](const Candidate& c) { return c.id == id; });
  }
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
