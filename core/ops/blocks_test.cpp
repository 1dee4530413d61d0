// Linears in fp8 and GGUF's blocks (§4): the definition against float64 over decoded values, every
// fast form against it, rows alone against rows among others, a digest that every machine must
// give, and wrong twins that the comparison must catch.
#include <algorithm>

#include "core/base/bits.h"
#include "core/base/sha256.h"
#include "core/ops/test_support.h"
#include "core/pack/block_values.h"
#include "core/pack/tile_codec.h"

using namespace bolt;

namespace {

constexpr Format kBlocks[] = {Format::fp8,     Format::q4_0, Format::q4_1,   Format::q5_0,
                              Format::q5_1,    Format::q2_k, Format::q3_k,   Format::q4_k,
                              Format::q5_k,    Format::q6_k, Format::iq4_nl, Format::iq4_xs,
                              Format::iq2_xxs, Format::mxfp4};

struct Result {
  std::vector<float> y;
  std::vector<std::uint8_t> marked;
};

Result run(HostOps& ops, const Weight& w, const float* x, int n_rows) {
  TestBatch rows(n_rows);
  Result result;
  result.y.assign(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(w.n_rows), 0.0f);
  auto operand = ops.operand(n_rows, w.n_cols);
  ops.quantize({x, n_rows, w.n_cols}, true, *operand);
  ops.linear(rows.batch, *operand, w, Epilogue::store, {result.y.data(), n_rows, w.n_rows});
  result.marked = rows.marked;
  return result;
}

struct Shape {
  int n, k;
};
// Widths that the format's blocks divide; fp8 takes any.
std::vector<Shape> shapes_of(Format format) {
  if (format == Format::fp8) return {{33, 272}, {1, 7}, {64, 600}, {31, 31}};
  if (block_cols(format) == 256) return {{33, 256}, {70, 768}};
  return {{33, 288}, {64, 512}, {5, 32}};
}

// What the row means once it is quantised (§3).
std::vector<double> meant(const float* x, int k) {
  std::vector<double> q(static_cast<std::size_t>(k));
  for (int first = 0; first < k; first += 32) {
    const int end = std::min(first + 32, k);
    float amax = 0;
    for (int c = first; c < end; ++c) amax = std::max(amax, std::fabs(x[c]));
    for (int c = first; c < end && amax >= 0x1p-120f; ++c) {
      q[static_cast<std::size_t>(c)] = std::nearbyint(static_cast<double>(x[c] * (127.0f / amax))) *
                                       static_cast<double>(amax / 127.0f);
    }
  }
  return q;
}

}  // namespace

TEST_CASE("blocks: the definition computes exactly what codes, scales and quantised rows mean") {
  HostOps ops(1, Isa::scalar);
  for (Format format : kBlocks) {
    for (const Shape& shape : shapes_of(format)) {
      const SyntheticWeight made = synthetic_weight(format, 1, shape.n, shape.k, 21);
      const auto x = planted_floats(22, shape.k);
      const Result result = run(ops, made.weight, x.data(), 1);
      const auto q = meant(x.data(), shape.k);
      for (int row = 0; row < shape.n; ++row) {
        double sum = 0, size = 0;
        for (int c = 0; c < shape.k; ++c) {
          const double v = weight_value(made.weight, 0, row, c), t = q[static_cast<std::size_t>(c)];
          sum += v * t;
          size += std::fabs(v * t);
          // Offsets round apart from the products, so their own sizes count too.
          if (has_offset(format)) size += 40.0 * std::fabs(t) * 0x1p-8;
        }
        const double y = static_cast<double>(result.y[static_cast<std::size_t>(row)]);
        CHECK_MESSAGE(std::fabs(y - sum) <= 1e-6 * size, format_name(format), " row ", row, ": ", y,
                      " against ", sum);
      }
    }
  }
}

TEST_CASE("blocks: every instruction set and thread count gives the definition's bits") {
  HostOps reference(1, Isa::scalar);
  for (Isa isa : isas_here()) {
    for (int n_threads : {1, 2}) {
      HostOps ops(n_threads, isa);
      for (Format format : kBlocks) {
        for (const Shape& shape : shapes_of(format)) {
          const SyntheticWeight made = synthetic_weight(format, 1, shape.n, shape.k, 31);
          const auto x = planted_floats(32, 9 * shape.k);
          const Result a = run(reference, made.weight, x.data(), 9);
          const Result b = run(ops, made.weight, x.data(), 9);
          CHECK_MESSAGE(same_bits(a.y, b.y), std::string(isa_name(isa)), " ", format_name(format),
                        " ", shape.n, "x", shape.k);
          CHECK(a.marked == b.marked);
        }
      }
    }
  }
}

TEST_CASE("blocks: a row's bits do not depend on the rows beside it") {
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa);
    for (Format format : kBlocks) {
      const int n = 40, k = 512, most = 140;
      const SyntheticWeight made = synthetic_weight(format, 1, n, k, 41);
      const auto x = planted_floats(42, most * k);
      const Result all = run(ops, made.weight, x.data(), most);
      for (int n_rows : {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 127, 129}) {
        const int first = (n_rows * 7) % (most - n_rows + 1);
        const Result some = run(ops, made.weight, &x[static_cast<std::size_t>(first * k)], n_rows);
        CHECK_MESSAGE(
            same_bits(some.y.data(), &all.y[static_cast<std::size_t>(first * n)], some.y.size()),
            std::string(isa_name(isa)), " ", format_name(format), " ", n_rows, " rows");
      }
    }
  }
}

TEST_CASE("blocks: codes at their bounds do not overflow a fast form") {
  // Raw codes all ones (fp8: the largest finite), rows at +-127 throughout.
  for (Format format : kBlocks) {
    for (const unsigned raw : {0u, 0xffu}) {
      SyntheticWeight made = synthetic_weight(format, 1, 32, 256, 5);
      RowCodes rows;
      rows.resize(format, 32, 256);
      unsigned code = raw;
      if (format == Format::fp8) code = raw ? 0xfe : 0x7e;
      if (format == Format::iq2_xxs) code = raw ? 0x06 : 0x02;
      std::fill(rows.codes.begin(), rows.codes.end(), static_cast<std::byte>(code));
      const std::uint16_t one = float_to_f16(1.0f);
      const BlockForm form = block_form(format);
      for (std::size_t i = 0; i < rows.scales.size(); ++i) {
        const auto at = static_cast<int>(i % static_cast<std::size_t>(form.scale_bytes()));
        rows.scales[i] = at < 2 * form.n_halves
                             ? static_cast<std::byte>(at % 2 ? one >> 8 : one & 255)
                             : std::byte{127};
      }
      pack_tile(rows, 0, made.storage.data() + (made.weight.data - made.storage.data()));
      std::vector<float> x(2 * 256, 1.0f);
      for (std::size_t i = 256; i < x.size(); ++i) x[i] = i % 2 ? -1.0f : 1.0f;
      HostOps reference(1, Isa::scalar);
      const Result right = run(reference, made.weight, x.data(), 2);
      CHECK(right.marked[0] == 0);
      for (Isa isa : isas_here()) {
        HostOps ops(1, isa);
        CHECK_MESSAGE(same_bits(right.y, run(ops, made.weight, x.data(), 2).y),
                      std::string(isa_name(isa)), " ", format_name(format), " ", raw);
      }
    }
  }
}

TEST_CASE("blocks: every instruction set gives the digest that is written here") {
  constexpr const char* kDigest =
      "3a2a667b562cdcfc195c34ae30625ffce50082c5894c9cb29807a1bfdc421a32";
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa);
    Sha256 sha;
    for (Format format : kBlocks) {
      for (const Shape& shape : shapes_of(format)) {
        const SyntheticWeight made = synthetic_weight(format, 1, shape.n, shape.k, 71);
        const Result result = run(ops, made.weight, planted_floats(72, 6 * shape.k).data(), 6);
        sha.update(result.y.data(), result.y.size() * sizeof(float));
      }
    }
    CHECK_MESSAGE(sha.hex() == kDigest, std::string(isa_name(isa)));
  }
}

namespace {

// The sums once more, from decoded codes, with one rule that may be broken.
enum class Wrong { nothing, offset_fused, halves_swapped, rounded_apart, sum_first, low_bits_lost };

float twin(const Weight& w, const float* x, int row, Wrong wrong) {
  float total = 0.0f, acc = 0.0f;
  const BlockForm form = block_form(w.format);
  const int groups = n_groups(w.n_cols), per_block = form.n_cols / 32;
  for (int g = 0; g < groups; ++g) {
    float amax = 0;
    for (int c = g * 32; c < std::min(g * 32 + 32, w.n_cols); ++c)
      amax = std::max(amax, std::fabs(x[c]));
    const float sa = amax < 0x1p-120f ? 0.0f : amax / 127.0f;
    const std::byte* block = w.data +
                             static_cast<std::uint64_t>(row / 32) * tile_bytes(w.format, w.n_cols) +
                             static_cast<std::ptrdiff_t>(g / per_block) * form.block_bytes();
    int dot[2] = {}, sum[2] = {};
    for (int c = 0; c < 32 && g * 32 + c < w.n_cols && sa > 0.0f; ++c) {
      const int q = static_cast<int>(std::nearbyint(x[g * 32 + c] * (127.0f / amax)));
      dot[c / 16] +=
          q * block_code(w.format,
                         plane_code(form, block + g % per_block * form.group_bytes(), row % 32, c));
      sum[c / 16] += q;
    }
    const GroupScale s = packed_group_scale(w.format, block, row % 32, g % per_block);
    const auto f = [](int i) { return static_cast<float>(i); };
    float product = f(dot[0] + dot[1]) * s.s[0];
    if (w.format == Format::fp8) {
      product = f(dot[0] + dot[1]);
      if (wrong == Wrong::rounded_apart) product = f(dot[0]) + f(dot[1]);
      if (wrong == Wrong::low_bits_lost) product = f((dot[0] + dot[1]) & ~255);
    } else if (w.format == Format::q2_k) {
      const float t = std::fma(f(dot[1]), s.s[1], f(dot[0]) * s.s[0]);
      const float u = std::fma(f(sum[1]), s.m[1], f(sum[0]) * s.m[0]);
      product = t + u;
      if (wrong == Wrong::rounded_apart)
        product = std::fma(f(dot[1]), s.s[1], f(dot[0]) * s.s[0] + u);
    } else if (has_half_scales(w.format)) {
      product = std::fma(f(dot[1]), s.s[1], f(dot[0]) * s.s[0]);
      if (wrong == Wrong::halves_swapped) product = std::fma(f(dot[0]), s.s[1], f(dot[1]) * s.s[0]);
    } else if (has_offset(w.format)) {
      product = std::fma(f(dot[0] + dot[1]), s.s[0], s.m[0] * f(sum[0] + sum[1]));
      if (wrong == Wrong::offset_fused)
        product = std::fma(f(sum[0] + sum[1]), s.m[0], f(dot[0] + dot[1]) * s.s[0]);
    }
    acc = std::fma(product, sa, acc);
    if (wrong == Wrong::sum_first) acc = std::fma(product, sa, acc) - product * sa;
    if (g % 8 == 7 || g == groups - 1) total = total + acc, acc = 0.0f;
  }
  return w.gains != nullptr ? total * w.gains[0] : total;
}

}  // namespace

TEST_CASE("blocks: wrong twins are caught") {
  HostOps ops(1, Isa::scalar);
  const auto differs = [&](Format format, Wrong wrong) {
    const int n = 64, k = 1024;
    const SyntheticWeight made = synthetic_weight(format, 1, n, k, 61);
    auto x = even_floats(62, k);
    for (float& v : x) v = std::fabs(v);  // so that sums are long enough to round
    const Result right = run(ops, made.weight, x.data(), 1);
    for (int i = 0; i < n; ++i) {
      if (float_bits(right.y[static_cast<std::size_t>(i)]) !=
          float_bits(twin(made.weight, x.data(), i, wrong)))
        return true;
    }
    return false;
  };
  for (Format format : kBlocks) {
    CHECK_MESSAGE(!differs(format, Wrong::nothing), format_name(format));
    CHECK_MESSAGE(differs(format, Wrong::sum_first), format_name(format));
  }
  for (Format format : {Format::q4_1, Format::q5_1, Format::q4_k, Format::q5_k})
    CHECK(differs(format, Wrong::offset_fused));
  for (Format format : {Format::q3_k, Format::q6_k}) CHECK(differs(format, Wrong::halves_swapped));
  CHECK(differs(Format::q2_k, Wrong::rounded_apart));
  CHECK(differs(Format::fp8, Wrong::rounded_apart));
  CHECK(differs(Format::fp8, Wrong::low_bits_lost));
}
