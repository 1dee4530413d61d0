// The resampling's random numbers are a fixed sequence, so that a table can be made again.
#include "cmd/bench_stats.h"

#include <algorithm>
#include <cmath>

namespace bolt {
namespace {

constexpr int kResamples = 4000;
constexpr std::size_t kPairsMin = 5;

double median_of(std::vector<double>& values) {
  const std::size_t half = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half),
                   values.end());
  if (values.size() % 2 != 0) return values[half];
  return (values[half] +
          *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half))) /
         2;
}

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  std::size_t below(std::size_t n) {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::size_t>((z ^ (z >> 31)) % n);
  }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Spread spread{0, *low, *high, values.size()};
  spread.median = median_of(values);
  return spread;
}

Ratio paired_ratio(const std::vector<std::vector<double>>& ratios) {
  std::vector<std::vector<double>> logs;
  std::size_t n_pairs = 0;
  for (const std::vector<double>& passes : ratios) {
    if (passes.empty()) continue;
    std::vector<double>& of = logs.emplace_back();
    for (const double ratio : passes) of.push_back(std::log(ratio));
    n_pairs += passes.size();
  }
  Ratio result;
  result.n_prompts = logs.size();
  result.enough = n_pairs >= kPairsMin;
  if (logs.empty()) return result;
  double sum = 0;
  for (std::vector<double> passes : logs) sum += median_of(passes);
  const auto n = static_cast<double>(logs.size());
  result.value = std::exp(sum / n);

  Random random;
  std::vector<double> means, sample;
  for (int i = 0; i < kResamples; ++i) {
    double total = 0;
    for (std::size_t k = 0; k < logs.size(); ++k) {
      const std::vector<double>& passes = logs[random.below(logs.size())];
      sample.clear();
      for (std::size_t p = 0; p < passes.size(); ++p) {
        sample.push_back(passes[random.below(passes.size())]);
      }
      total += median_of(sample);
    }
    means.push_back(total / n);
  }
  std::sort(means.begin(), means.end());
  const double tail = (1 - kConfidence) / 2 * (kResamples - 1);
  result.low = std::exp(means[static_cast<std::size_t>(tail)]);
  result.high = std::exp(means[static_cast<std::size_t>(kResamples - 1 - tail)]);
  return result;
}

}  // namespace bolt
