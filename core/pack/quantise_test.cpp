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

// nvfp4 from its text: numbers by search, the even code where two are as near.
double e4m3(int code) {
  const int e = code >> 3, m = code & 7;
  return e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
}
double e2m1(int code) {
  constexpr double kNumbers[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return kNumbers[code];
}
int nearest(double x, int least, int most, double (*number)(int)) {
  int best = least;
  for (int c = least; c <= most; ++c) {
    const double d = std::fabs(number(c) - x), b = std::fabs(number(best) - x);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return best;
}
float rn(double x) { return static_cast<float>(x); }

int count_wrong_nvfp4(const std::vector<float>& w, float g0) {
  const int n = static_cast<int>(w.size());
  std::vector<std::uint8_t> codes(w.size()), scales((w.size() + 15) / 16);
  quantise_nvfp4(w.data(), n, g0, codes.data(), scales.data());
  int wrong = 0;
  for (int first = 0; first < n; first += 16) {
    double amax = 0.0;
    for (int k = first; k < std::min(n, first + 16); ++k)
      amax = std::max(amax, std::fabs(static_cast<double>(w[static_cast<std::size_t>(k)])));
    const double g = static_cast<double>(g0);
    const double wanted =
        g0 == 0.0f ? 0.0 : static_cast<double>(rn(static_cast<double>(rn(amax / 6.0)) / g));
    const int scale = nearest(wanted, 1, 126, e4m3);
    wrong += scales[static_cast<std::size_t>(first / 16)] != scale;
    const double s = static_cast<double>(rn(e4m3(scale) * g));
    for (int k = first; k < std::min(n, first + 16); ++k) {
      const double x = static_cast<double>(w[static_cast<std::size_t>(k)]);
      int code = s == 0.0 ? 0 : nearest(static_cast<double>(rn(std::fabs(x) / s)), 0, 7, e2m1);
      if (code != 0 && x < 0.0) code |= 8;
      wrong += codes[static_cast<std::size_t>(k)] != code;
    }
  }
  return wrong;
}

TEST_CASE("nvfp4: scales and codes are the nearest, ties to even, as the contract says") {
  std::vector<float> w;
  float amax = 0.0f;
  for (int i = 0; i < 16 * 500 + 7; ++i) {
    const int exponent =
        static_cast<int>(random_bits(7, static_cast<std::uint64_t>(i / 16)) % 24) - 20;
    w.push_back(std::ldexp(random_unit(8, static_cast<std::uint64_t>(i)) - 0.5f, exponent));
    amax = std::max(amax, std::fabs(w.back()));
  }
  CHECK(count_wrong_nvfp4(w, nvfp4_g0(amax)) == 0);
  CHECK(count_wrong_nvfp4(std::vector<float>(40, 0.0f), 0.0f) == 0);
  CHECK(count_wrong_nvfp4(std::vector<float>(40, 0.0f), 1e-3f) == 0);
  // Ties of e2m1 under scale 1: halfway values go to the even code; -0 and small negatives to 0.
  const std::vector<float> ties = {6.0f,  0.25f,  0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f,
                                   -0.0f, -0.25f, -0.1f, -5.0f, -6.0f, 0.0f, 4.9f, 5.1f};
  CHECK(count_wrong_nvfp4(ties, 1.0f) == 0);
  // Ties of e4m3: amax / 6 halfway between two codes, subnormal and normal.
  for (int code = 1; code < 126; ++code) {
    const auto between = static_cast<float>((e4m3(code) + e4m3(code + 1)) / 2);
    CHECK(count_wrong_nvfp4(std::vector<float>(16, between * 6.0f), 1.0f) == 0);
  }
  CHECK(count_wrong_nvfp4({1e-40f, 3e-42f}, nvfp4_g0(1e-40f)) == 0);
}

TEST_CASE("nvfp4: a wrong twin that rounds halves up is caught") {
  const std::vector<float> w = {6.0f, 0.25f, 1.25f, 2.5f, 5.0f};
  std::vector<std::uint8_t> codes(w.size());
  std::uint8_t scale = 0;
  quantise_nvfp4(w.data(), static_cast<int>(w.size()), 1.0f, codes.data(), &scale);
  CHECK(scale == 0x38);                                      // 1
  CHECK(codes == std::vector<std::uint8_t>{7, 0, 2, 4, 6});  // up would be 7 1 3 5 7
}

}  // namespace
}  // namespace bolt
