// log softmax over the ids that can be sampled: (l - max) - log(sum of exp(l - max)).
#include "cmd/logprobs.h"

#include <algorithm>
#include <numeric>

#include "core/base/exact_math.h"

namespace bolt {

Logprobs logprobs_of(int id, std::span<const float> logits, int n_vocab, int n_top) {
  const auto row = logits.first(std::min(logits.size(), static_cast<std::size_t>(n_vocab)));
  const float best = *std::max_element(row.begin(), row.end());
  double sum = 0.0;  // ascending ids: one order
  for (const float l : row) sum += static_cast<double>(exact_exp(l - best));
  const float log_sum = exact_log(static_cast<float>(sum));
  const auto entry = [&](int i) {
    return TokenLogprob{i, (row[static_cast<std::size_t>(i)] - best) - log_sum};
  };
  Logprobs out{entry(id), {}};
  std::vector<int> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto n = std::min(ids.size(), static_cast<std::size_t>(n_top));
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(), [&](int a, int b) {
        const float x = row[static_cast<std::size_t>(a)], y = row[static_cast<std::size_t>(b)];
        return x > y || (x == y && a < b);
      });
  for (std::size_t i = 0; i < n; ++i) out.top.push_back(entry(ids[i]));
  return out;
}

}  // namespace bolt
