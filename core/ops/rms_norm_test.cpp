// RMSNorm (§5): against float64, every form against the definition, rows alone against rows among
// others, marks, and a wrong order of sums that the comparison must catch.
#include "core/ops/rms_norm.h"

#include "core/base/exact_math.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

constexpr float kEps = 1e-5f;

// Magnitudes from subnormal to large, and zeros of both signs.
std::vector<float> planted(std::uint64_t seed, int n) {
  std::vector<float> x = even_floats(seed, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint64_t h = mix64(seed * 131 + i);
    if (h % 23 == 0) x[i] = std::ldexp(x[i], static_cast<int>(h >> 8) % 30);
    if (h % 29 == 0) x[i] = std::ldexp(x[i], -static_cast<int>((h >> 8) % 145));
    if (h % 31 == 0) x[i] = h & 256 ? 0.0f : -0.0f;
  }
  return x;
}

std::vector<float> run(Isa isa, int n_threads, const std::vector<float>& x, const float* w,
                       int n_rows, int group, std::vector<std::uint8_t>* marked = nullptr) {
  HostOps ops(n_threads, isa);
  TestBatch rows(n_rows);
  std::vector<float> y = x;  // in place
  const int n_cols = static_cast<int>(x.size()) / n_rows;
  ops.rms_norm(rows.batch, {y.data(), n_rows, n_cols}, w, kEps, group, {y.data(), n_rows, n_cols});
  if (marked != nullptr) *marked = rows.marked;
  return y;
}

}  // namespace

TEST_CASE("rms_norm: the definition computes the formula") {
  for (int group : {96, 48}) {
    const std::vector<float> x = even_floats(1, 4 * 96, 3.0f), w = even_floats(2, 96);
    const std::vector<float> y = run(Isa::scalar, 1, x, w.data(), 4, group);
    for (int i = 0; i < 4 * 96; ++i) {
      const int first = i / group * group;
      double sum = 0;
      for (int k = first; k < first + group; ++k)
        sum += static_cast<double>(x[k]) * static_cast<double>(x[k]);
      const double expected = static_cast<double>(x[i]) /
                              std::sqrt(sum / group + static_cast<double>(kEps)) *
                              static_cast<double>(w[i % 96]);
      CHECK(std::fabs(static_cast<double>(y[i]) - expected) <= 1e-6 * std::fabs(expected));
    }
  }
}

TEST_CASE("rms_norm: every form gives the definition's bits") {
  for (int n : {1, 2, 7, 15, 16, 17, 63, 64, 65, 96, 127, 130, 336, 512, 2688, 3137}) {
    const std::vector<float> x = planted(3 + n, 3 * n), w = even_floats(4, n);
    const std::vector<float> expected = run(Isa::scalar, 1, x, w.data(), 3, n);
    for (Isa isa : isas_here()) {
      CAPTURE(isa_name(isa));
      CAPTURE(n);
      CHECK(same_bits(run(isa, 1, x, w.data(), 3, n), expected));
    }
    std::vector<float> portable(x.size());
    for (int r = 0; r < 3; ++r) norm_group_portable(&x[r * n], w.data(), n, kEps, &portable[r * n]);
    CHECK(same_bits(portable, expected));
  }
}

TEST_CASE("rms_norm: a row's bits do not depend on the rows beside it, nor on threads") {
  constexpr int kRows = 40, kCols = 640;
  const std::vector<float> x = planted(5, kRows * kCols), w = even_floats(6, kCols);
  for (Isa isa : isas_here()) {
    const std::vector<float> together = run(isa, 3, x, w.data(), kRows, 160);
    for (int r = 0; r < kRows; ++r) {
      const std::vector<float> row(x.begin() + r * kCols, x.begin() + (r + 1) * kCols);
      CHECK(same_bits(run(isa, 1, row, w.data(), 1, 160).data(), &together[r * kCols], kCols));
    }
  }
}

TEST_CASE("rms_norm: rows whose sum of squares is not finite are marked, the others untouched") {
  constexpr int kRows = 6, kCols = 200;
  const std::vector<float> w = even_floats(8, kCols);
  const std::vector<float> clean = planted(7, kRows * kCols);
  std::vector<float> x = clean;
  x[1 * kCols + 199] = std::nanf("");
  x[3 * kCols + 0] = -HUGE_VALF;
  x[4 * kCols + 70] = 3e38f;  // finite, its square is not
  const std::vector<float> expected = run(Isa::scalar, 1, x, w.data(), kRows, 100);
  const std::vector<float> undisturbed = run(Isa::scalar, 1, clean, w.data(), kRows, 100);
  for (Isa isa : isas_here()) {
    std::vector<std::uint8_t> marked;
    const std::vector<float> y = run(isa, 2, x, w.data(), kRows, 100, &marked);
    CHECK(marked == std::vector<std::uint8_t>{0, 1, 0, 1, 1, 0});
    CHECK(same_bits(y, expected));
    for (int r : {0, 2, 5}) CHECK(same_bits(&y[r * kCols], &undisturbed[r * kCols], kCols));
  }
}

TEST_CASE("rms_norm: the comparison catches 32 chains in place of 64") {
  const int n = 640;
  int caught = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> x = even_floats(20 + seed, n), w(n, 1.0f);
    float chain[32] = {};
    for (int k = 0; k < n; ++k) chain[k % 32] = exact_fma(x[k], x[k], chain[k % 32]);
    for (int half = 16; half >= 1; half /= 2) {
      for (int lane = 0; lane < half; ++lane) chain[lane] += chain[lane + half];
    }
    const float scale = exact_rsqrt(chain[0] / static_cast<float>(n) + kEps);
    std::vector<float> wrong(n);
    for (int i = 0; i < n; ++i) wrong[i] = x[i] * scale * w[i];
    caught += same_bits(wrong, run(Isa::scalar, 1, x, w.data(), 1, n)) ? 0 : 1;
  }
  CHECK(caught > 5);
}
