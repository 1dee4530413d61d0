// Medians and paired ratios, with what can be said of them: bootstrap intervals (Efron 1979) over
// prompts and, within each, over passes.
#pragma once

#include <cstdint>
#include <vector>

namespace bolt {

struct Spread {
  double median = 0, low = 0, high = 0;
  std::size_t n = 0;
};
Spread spread_of(std::vector<double> values);  // zeros where there are none

// How many times as fast: the geometric mean over prompts of each prompt's median ratio, and the
// percentile interval of kConfidence.
inline constexpr double kConfidence = 0.99;
struct Ratio {
  double value = 0, low = 0, high = 0;
  std::size_t n_prompts = 0;
  bool known() const { return n_prompts > 0; }
  // The interval leaves out 1. Never from fewer than five pairs: too few to say.
  bool differs() const { return enough && (low > 1.0 || high < 1.0); }
  bool enough = false;
};
// ratios[prompt][pass], each of two runs that met the machine one after the other. The same input
// gives the same interval.
Ratio paired_ratio(const std::vector<std::vector<double>>& ratios);

}  // namespace bolt
