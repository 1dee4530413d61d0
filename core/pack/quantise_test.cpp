#include "core/pack/quantise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/base/bits.h"
#include "core/pack/generated.h"

namespace bolt {
namespace {

// The quantiser from its text, in double and by search: the f16 nearest to amax / 127 rounded to
// float, then for each value the integer in [-127, 127] nearest to RN(w / s), ties to even.
double nearest_f16(double x) {
  if (x == 0.0) return 0.0;
  const int e = std::max(std::ilogb(x), -14);
  const double ulp = std::ldexp(1.0, e - 10);
  const double below = std::floor(x / ulp) * ulp, above = below + ulp;
  double best = below;
  if (above - x < x - below) best = above;
  if (above - x == x - below && std::fmod(below / ulp, 2.0) != 0.0) best = above;
  return best >= 65536.0 ? HUGE_VAL : best;
}
int nearest_code(float w, double s) {
  if (s == 0.0) return 0;
  const double q = static_cast<double>(static_cast<float>(static_cast<double>(w) / s));
  int best = -127;
  for (int c = -127; c <= 127; ++c) {
    const double d = std::fabs(q - c), b = std::fabs(q - best);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best;
}

int count_wrong(const std::vector<float>& w) {
  std::vector<std::int8_t> codes(w.size());
  std::vector<std::uint16_t> scales((w.size() + 31) / 32);
  CHECK(quantise_q8(w.data(), static_cast<int>(w.size()), codes.data(), scales.data()));
  int wrong = 0;
  for (std::size_t g = 0; g < scales.size(); ++g) {
    float amax = 0.0f;
    for (std::size_t k = 32 * g; k < std::min(w.size(), 32 * g + 32); ++k)
      amax = std::fmax(amax, std::fabs(w[k]));
    const double s =
        nearest_f16(static_cast<double>(static_cast<float>(static_cast<double>(amax) / 127.0)));
    wrong += static_cast<double>(f16_to_float(scales[g])) != s;
    for (std::size_t k = 32 * g; k < std::min(w.size(), 32 * g + 32); ++k)
      wrong += codes[k] != nearest_code(w[k], s);
  }
  return wrong;
}

TEST_CASE("q8: codes and scales equal an independent quantiser's") {
  std::vector<float> w;
  for (int i = 0; i < 20000; ++i) {
    const int exponent =
        static_cast<int>(random_bits(5, static_cast<std::uint64_t>(i / 32)) % 34) - 22;
    w.push_back(std::ldexp(random_unit(6, static_cast<std::uint64_t>(i)) - 0.5f, exponent));
  }
  CHECK(count_wrong(w) == 0);
}

TEST_CASE("q8: extremes") {
  CHECK(count_wrong(std::vector<float>(40, 0.0f)) == 0);
  CHECK(count_wrong({1e-30f, -1e-38f, 0.0f, 1e-45f}) == 0);             // the scale rounds to 0
  CHECK(count_wrong({127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -127.0f}) == 0);  // ties to even
  CHECK(count_wrong({0x1p-17f, 0x1p-18f, -0x1p-24f}) == 0);             // subnormal scales
  CHECK(count_wrong({8.0e6f, -8.3e6f}) == 0);                           // the largest f16 scales
  std::int8_t code;
  std::uint16_t scale;
  const float huge = 1e7f;
  CHECK(!quantise_q8(&huge, 1, &code, &scale));  // no finite f16 scale
}

TEST_CASE("q8: a wrong twin that truncates instead of rounding is caught") {
  const std::vector<float> w = {1.0f, 0.7f, -0.3f};
  std::vector<std::int8_t> codes(3);
  std::uint16_t scale;
  quantise_q8(w.data(), 3, codes.data(), &scale);
  const double s = static_cast<double>(f16_to_float(scale));
  CHECK(codes[1] == nearest_code(w[1], s));
  CHECK(static_cast<int>(static_cast<double>(w[1]) / s) != nearest_code(w[1], s));
}

}  // namespace
}  // namespace bolt
