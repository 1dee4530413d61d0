// Quantised rows (§3): the rule itself, its threshold, padding and layouts, and rows that are not
// finite.
#include "core/base/bits.h"
#include "core/ops/operand.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

struct Group {
  std::int8_t codes[32], slots[32];
  float scale;
  std::int32_t q8_bias, nvfp4_bias[2], nvfp4_bias16[2], half_sums[2];
  bool finite;

  Group(const float* x, int n) {
    finite =
        quantize_group(x, n, {codes, slots, &scale, &q8_bias, nvfp4_bias, nvfp4_bias16, half_sums});
  }
};

}  // namespace

TEST_CASE("quantize: q = rint(x * (127 / amax)), ties to even, scale amax / 127") {
  int n_ties = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    std::vector<float> x = planted_floats(seed, 32);
    if (seed % 4 == 0) {  // halves of 127ths: exact ties after the multiplication by one
      for (std::size_t i = 0; i < 32; ++i) {
        x[i] = static_cast<float>(static_cast<int>(mix64(seed + i) % 253) - 126) * 0.5f;
      }
      x[3] = 127.0f;
    }
    const Group group(x.data(), 32);
    float amax = 0;
    for (float v : x) amax = std::max(amax, std::fabs(v));
    const bool zero = amax < 0x1p-120f;
    CHECK(group.finite);
    CHECK(float_bits(group.scale) == float_bits(zero ? 0.0f : amax / 127.0f));
    int sums[2] = {};
    for (int i = 0; i < 32; ++i) {
      const float v = zero ? 0.0f : x[static_cast<std::size_t>(i)] * (127.0f / amax);
      n_ties += std::fabs(v - std::trunc(v)) == 0.5f;
      CHECK(group.codes[i] == static_cast<int>(std::nearbyint(v)));
      sums[i / 16] += group.codes[i];
      CHECK(group.slots[(column_slot(i) / 4) * 16 + column_lane(i) * 4 + column_slot(i) % 4] ==
            group.codes[i]);
    }
    CHECK(group.q8_bias == -128 * (sums[0] + sums[1]));
    for (int half = 0; half < 2; ++half) {
      CHECK(group.half_sums[half] == sums[half]);
      CHECK(group.nvfp4_bias[half] == -12 * sums[half]);
      CHECK(group.nvfp4_bias16[half] == (group.nvfp4_bias[half] & 0xffff));
    }
  }
  CHECK(n_ties > 100);  // else the rule for ties was not tested
}

TEST_CASE("quantize: the threshold is 2^-120, and the largest number does not overflow") {
  float x[32] = {};
  x[7] = -0x1p-120f;
  CHECK(Group(x, 32).codes[7] == -127);
  CHECK(Group(x, 32).scale == 0x1p-120f / 127.0f);
  x[7] = std::nextafter(-0x1p-120f, 0.0f);
  CHECK(Group(x, 32).codes[7] == 0);
  CHECK(Group(x, 32).scale == 0.0f);
  x[7] = 3.4028235e38f;
  x[8] = -3.4028235e38f;
  const Group largest(x, 32);
  CHECK(largest.codes[7] == 127);
  CHECK(largest.codes[8] == -127);
  CHECK(largest.finite);
}

TEST_CASE("quantize: a group that is not finite is zero and says so, whatever hides the NaN") {
  for (const std::uint32_t bad : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xff800001u}) {
    for (int at : {0, 15, 31}) {
      float x[32] = {1.0f, -2.0f, 3.4028235e38f};
      x[at] = bits_float(bad);
      const Group group(x, 32);
      CHECK_FALSE(group.finite);
      CHECK(float_bits(group.scale) == 0u);
      for (std::int8_t code : group.codes) CHECK(code == 0);
    }
  }
}

TEST_CASE("quantize: rows are padded with zeros, whatever lies behind them") {
  for (int n_cols : {1, 31, 33, 95}) {
    const int stride = n_cols + 40, n_rows = 3;
    std::vector<float> clean(static_cast<std::size_t>(n_rows * stride));
    for (std::size_t i = 0; i < clean.size(); ++i) clean[i] = even_float(9, i);
    auto dirty = clean;
    for (int r = 0; r < n_rows; ++r) {
      for (int c = n_cols; c < stride; ++c)
        dirty[static_cast<std::size_t>(r * stride + c)] = bits_float(0x7fc00000u);
    }
    for (Isa isa : isas_here()) {
      HostOps ops(1, isa);
      for (Format format : {Format::q8, Format::bf16}) {
        const SyntheticWeight made = synthetic_weight(format, 1, 32, n_cols, 5);
        std::vector<float> y[2];
        for (int which = 0; which < 2; ++which) {
          TestBatch batch(n_rows);
          y[which].resize(static_cast<std::size_t>(n_rows * 32));
          auto operand = ops.operand(n_rows, n_cols);
          const auto& x = which ? dirty : clean;
          ops.quantize({x.data(), n_rows, n_cols, stride}, format == Format::q8, *operand);
          ops.linear(batch.batch, *operand, made.weight, Epilogue::store,
                     {y[which].data(), n_rows, 32});
          CHECK(batch.marked == std::vector<std::uint8_t>(3));
        }
        CHECK(same_bits(y[0], y[1]));
      }
    }
  }
}
