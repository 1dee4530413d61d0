// Medians, and intervals that hold what they should and leave out what they should.
#include "cmd/bench_stats.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace bolt {
namespace {

// Ratios of two arms whose true ratio is `times`, under noise that prompts and passes share.
std::vector<std::vector<double>> made(double times, double noise, int n_prompts, int n_passes,
                                      unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<std::vector<double>> ratios(static_cast<std::size_t>(n_prompts));
  for (auto& passes : ratios) {
    for (int i = 0; i < n_passes; ++i) passes.push_back(times * std::exp(normal(random)));
  }
  return ratios;
}

TEST_CASE("bench stats: medians of odd and even counts, and nothing of nothing") {
  CHECK(spread_of({3, 1, 2}).median == 2);
  CHECK(spread_of({4, 1, 2, 3}).median == 2.5);
  CHECK(spread_of({4, 1, 2, 3}).low == 1);
  CHECK(spread_of({4, 1, 2, 3}).high == 4);
  CHECK(spread_of({}).n == 0);
  CHECK_FALSE(paired_ratio({}).known());
  CHECK_FALSE(paired_ratio({{}, {}}).known());
}

TEST_CASE("bench stats: an honest null is rarely called a difference, five percent are found") {
  int n_claims = 0, n_found = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    n_claims += paired_ratio(made(1.0, 0.05, 30, 4, seed)).differs();
    const Ratio slow = paired_ratio(made(0.95, 0.05, 30, 4, seed));
    n_found += slow.differs() && slow.high < 1.0;
    CHECK(slow.low <= slow.value);
    CHECK(slow.value <= slow.high);
    CHECK(slow.value == doctest::Approx(0.95).epsilon(0.03));
  }
  CHECK(n_claims <= 3);
  CHECK(n_found >= 38);
}

TEST_CASE("bench stats: few pairs claim nothing, equal input gives equal intervals") {
  CHECK_FALSE(paired_ratio({{2.0, 2.0}, {2.0, 2.0}}).differs());
  CHECK(paired_ratio({{2.0, 2.0}, {2.0, 2.0, 2.0}}).differs());
  const auto ratios = made(1.1, 0.2, 5, 3, 7);
  CHECK(paired_ratio(ratios).low == paired_ratio(ratios).low);
  CHECK(paired_ratio(ratios).high > paired_ratio(ratios).value);
}

}  // namespace
}  // namespace bolt
