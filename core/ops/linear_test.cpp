// Linear layers (§4): the definition against float64, every fast form against it, rows alone
// against rows among others, marks, and wrong twins that the comparison must catch.
#include <algorithm>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/linear_kernels.h"
#include "core/ops/test_support.h"
#include "core/pack/tiles.h"

using namespace bolt;

namespace {

constexpr Format kFormats[] = {Format::f32, Format::bf16, Format::f16, Format::q8, Format::nvfp4};
std::string name_of(Format format) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "q8", "nvfp4"};
  return kNames[static_cast<int>(format)];
}

struct Result {
  std::vector<float> y;
  std::vector<std::uint8_t> marked;
};

Result run(HostOps& ops, const Weight& w, const float* x, int n_rows, Epilogue epilogue,
           float fill = 0.0f) {
  TestBatch rows(n_rows);
  Result result;
  result.y.assign(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(w.n_rows), fill);
  auto operand = ops.operand(n_rows, w.n_cols);
  ops.quantize({x, n_rows, w.n_cols}, is_integer(w.format), *operand);
  ops.linear(rows.batch, *operand, w, epilogue, {result.y.data(), n_rows, w.n_rows});
  result.marked = rows.marked;
  return result;
}

// Rows with planted extremes.
std::vector<float> planted_rows(int n_rows, int n_cols, std::uint64_t seed) {
  return planted_floats(seed, n_rows * n_cols);
}

struct Shape {
  int n, k;
};
constexpr Shape kShapes[] = {{32, 32},    {64, 256}, {33, 272}, {1, 7},
                             {100, 1000}, {40, 520}, {31, 31}};

}  // namespace

TEST_CASE("linear: the definition computes W x") {
  HostOps ops(1, Isa::scalar);
  for (Format format : kFormats) {
    const int n = 45, k = 600, n_rows = 3;
    const SyntheticWeight made = synthetic_weight(format, 1, n, k, 11);
    const auto x = even_floats(12, n_rows * k, 3.0f);
    const Result result = run(ops, made.weight, x.data(), n_rows, Epilogue::store);
    double worst = 0;
    for (int r = 0; r < n_rows; ++r) {
      for (int row = 0; row < n; ++row) {
        double sum = 0, size = 0;
        for (int c = 0; c < k; ++c) {
          const double term = weight_value(made.weight, 0, row, c) *
                              static_cast<double>(x[static_cast<std::size_t>(r * k + c)]);
          sum += term;
          size += std::fabs(term);
        }
        const double got = static_cast<double>(result.y[static_cast<std::size_t>(r * n + row)]);
        worst = std::max(worst, std::fabs(got - sum) / size);
      }
    }
    // Float formats round in binary32; integer ones also round x to 1/254 of its group's largest.
    const double bound = is_integer(format) ? 4e-3 : 5e-7;
    CHECK_MESSAGE(worst < bound, name_of(format), ": ", worst);
    CHECK(worst > 0);
  }
}

TEST_CASE("linear: integer formats compute exactly what the quantised rows mean") {
  HostOps ops(1, Isa::scalar);
  for (Format format : {Format::q8, Format::nvfp4}) {
    const int n = 35, k = 300;
    const SyntheticWeight made = synthetic_weight(format, 1, n, k, 21);
    const auto x = planted_rows(1, k, 22);
    const Result result = run(ops, made.weight, x.data(), 1, Epilogue::store);
    for (int row = 0; row < n; ++row) {
      double sum = 0, size = 0;
      for (int first = 0; first < k; first += 32) {
        float amax = 0;
        for (int c = first; c < std::min(first + 32, k); ++c) {
          amax = std::max(amax, std::fabs(x[static_cast<std::size_t>(c)]));
        }
        if (amax < 0x1p-120f) continue;
        for (int c = first; c < std::min(first + 32, k); ++c) {
          const float v = x[static_cast<std::size_t>(c)] * (127.0f / amax);
          const double q =
              std::nearbyint(static_cast<double>(v)) * static_cast<double>(amax / 127.0f);
          sum += weight_value(made.weight, 0, row, c) * q;
          size += std::fabs(weight_value(made.weight, 0, row, c) * q);
        }
      }
      CHECK(std::fabs(static_cast<double>(result.y[static_cast<std::size_t>(row)]) - sum) <=
            4e-7 * size);
    }
  }
}

TEST_CASE("linear: every instruction set and thread count gives the definition's bits") {
  std::string ran;
  for (Isa isa : isas_here()) ran += std::string(" ") + isa_name(isa);
  MESSAGE("instruction sets that ran:", ran);
  HostOps reference(1, Isa::scalar);
  for (Isa isa : isas_here()) {
    for (int n_threads : {1, 2, 3}) {
      HostOps ops(n_threads, isa);
      for (Format format : kFormats) {
        for (const Shape& shape : kShapes) {
          const SyntheticWeight made = synthetic_weight(format, 1, shape.n, shape.k, 31);
          const auto x = planted_rows(9, shape.k, 32);
          for (Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::relu2}) {
            const Result a = run(reference, made.weight, x.data(), 9, epilogue, 0.3f);
            const Result b = run(ops, made.weight, x.data(), 9, epilogue, 0.3f);
            CHECK_MESSAGE(same_bits(a.y, b.y), std::string(isa_name(isa)), " ", n_threads,
                          " threads ", name_of(format), " ", shape.n, "x", shape.k);
            CHECK(a.marked == b.marked);
          }
        }
      }
    }
  }
}

TEST_CASE("linear: a row's bits do not depend on the rows beside it") {
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa);
    for (Format format : kFormats) {
      const int n = 40, k = 300, most = 300;
      const SyntheticWeight made = synthetic_weight(format, 1, n, k, 41);
      const auto x = planted_rows(most, k, 42);
      const Result all = run(ops, made.weight, x.data(), most, Epilogue::store);
      std::vector<int> counts = {100, 127, 128, 129, 257};
      for (int r = 1; r <= 33; ++r) counts.push_back(r);
      for (int n_rows : counts) {
        const int first = (n_rows * 7) % (most - n_rows + 1);
        const Result some =
            run(ops, made.weight, &x[static_cast<std::size_t>(first * k)], n_rows, Epilogue::store);
        CHECK_MESSAGE(
            same_bits(some.y.data(), &all.y[static_cast<std::size_t>(first * n)], some.y.size()),
            std::string(isa_name(isa)), " ", name_of(format), " ", n_rows, " rows");
      }
    }
  }
}

TEST_CASE("linear: NaN, infinity and overflow mark their rows alone, the same everywhere") {
  const float nan = bits_float(0xffc12345u), inf = bits_float(0x7f800000u);
  for (Format format : kFormats) {
    const int n = 33, k = 270, n_rows = 6;
    const SyntheticWeight made = synthetic_weight(format, 1, n, k, 51, 100.0f);
    auto x = even_floats(52, n_rows * k);
    x[static_cast<std::size_t>(1 * k + 269)] = nan;
    x[static_cast<std::size_t>(2 * k + 5)] = inf;
    x[static_cast<std::size_t>(3 * k + 64)] = -inf;
    for (int c = 0; c < k; ++c)
      x[static_cast<std::size_t>(4 * k + c)] = c % 2 ? 3.4028235e38f : -3.4028235e38f;
    std::vector<Result> results;
    for (Isa isa : isas_here()) {
      HostOps ops(1, isa);
      results.push_back(run(ops, made.weight, x.data(), n_rows, Epilogue::store));
      CHECK(same_bits(results[0].y, results.back().y));
      CHECK(results[0].marked == results.back().marked);
    }
    const auto& marked = results[0].marked;
    CHECK(marked[0] == 0);
    CHECK(marked[1] == 1);
    CHECK(marked[2] == 1);
    CHECK(marked[3] == 1);
    CHECK(marked[4] == 1);
    CHECK(marked[5] == 0);
    for (float v : results[0].y) {
      if (v != v) CHECK(float_bits(v) == kExactNan);
    }
  }
}

namespace {

// Wrong twins of a q8 linear over the definition's own operands. Each is a rule that a fast form
// might break; the comparison above must tell every one of them from the definition.
enum class Wrong { nothing, segment_512, groups_backwards, one_sum, no_threshold, fused_scale };

float wrong_q8(const Weight& w, const float* x, int row, Wrong wrong) {
  float total = 0.0f, acc = 0.0f;
  const int groups = n_groups(w.n_cols);
  const int per_segment = wrong == Wrong::segment_512 ? 16 : wrong == Wrong::one_sum ? groups : 8;
  for (int step = 0; step < groups; ++step) {
    const int in = step % per_segment, first = step - in;
    const int last = std::min(groups, first + per_segment) - 1;
    const int group = wrong == Wrong::groups_backwards ? last - in : step;
    float amax = 0;
    for (int c = group * 32; c < std::min(group * 32 + 32, w.n_cols); ++c)
      amax = std::max(amax, std::fabs(x[c]));
    const bool zero = wrong != Wrong::no_threshold && amax < 0x1p-120f;
    const float sa = zero ? 0.0f : amax / 127.0f, inverse = amax > 0 ? 127.0f / amax : 0.0f;
    int dot = 0;
    for (int c = group * 32; c < std::min(group * 32 + 32, w.n_cols); ++c) {
      const int q = zero ? 0 : static_cast<int>(std::nearbyint(x[c] * inverse));
      dot += q * static_cast<int>(static_cast<std::int8_t>(w.data[static_cast<std::size_t>(
                     (row / 32 * groups + group) * 1088 + (column_slot(c % 32) / 4) * 512 +
                     word_index(column_lane(c % 32), row % 32) * 4 + column_slot(c % 32) % 4)]));
    }
    std::uint16_t half = 0;
    std::memcpy(&half, w.data + (row / 32 * groups + group) * 1088 + 1024 + 2 * (row % 32), 2);
    const float s = f16_to_float(half);
    acc = wrong == Wrong::fused_scale ? std::fma(static_cast<float>(dot), s * sa, acc)
                                      : std::fma(static_cast<float>(dot) * s, sa, acc);
    if (in == per_segment - 1 || step == groups - 1) {
      total = total + acc;
      acc = 0.0f;
    }
  }
  return total;
}

}  // namespace

TEST_CASE("linear: wrong twins are caught") {
  HostOps ops(1, Isa::scalar);
  const int n = 64, k = 1100;
  const SyntheticWeight made = synthetic_weight(Format::q8, 1, n, k, 61);
  auto x = even_floats(62, k);
  for (std::size_t c = 0; c < 32; ++c) x[c] = std::ldexp(x[c], -130);
  auto tiny = x;
  for (float& v : tiny) v *= 0x1.6p-121f;  // below the threshold, though 127 / amax is still finite
  const auto differs = [&](const std::vector<float>& row, Wrong wrong) {
    const Result right = run(ops, made.weight, row.data(), 1, Epilogue::store);
    for (int i = 0; i < n; ++i) {
      if (float_bits(right.y[static_cast<std::size_t>(i)]) !=
          float_bits(wrong_q8(made.weight, row.data(), i, wrong))) {
        return true;
      }
    }
    return false;
  };
  CHECK_FALSE(differs(x, Wrong::nothing));
  CHECK_FALSE(differs(tiny, Wrong::nothing));
  CHECK(differs(x, Wrong::segment_512));
  CHECK(differs(x, Wrong::groups_backwards));
  CHECK(differs(x, Wrong::one_sum));
  CHECK(differs(x, Wrong::fused_scale));
  CHECK(differs(tiny, Wrong::no_threshold));
}
