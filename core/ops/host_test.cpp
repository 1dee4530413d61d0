// The small ops of the host: embedding, sums, memory, marks.
#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/ops/test_support.h"

using namespace bolt;

TEST_CASE("embed: every value of every format is widened exactly") {
  HostOps ops(1, Isa::scalar);
  for (Format format : {Format::bf16, Format::f16}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    Weight table;
    table.format = format;
    table.n_rows = 256, table.n_cols = 256;
    table.data = reinterpret_cast<const std::byte*>(halves.data());
    std::vector<int> ids;
    for (int i = 0; i < 256; ++i) ids.push_back(255 - i);
    std::vector<float> x(65536);
    ops.embed(table, ids, {x.data(), 256, 256});
    for (int row = 0; row < 256; ++row) {
      for (int i = 0; i < 256; ++i) {
        const auto half = static_cast<std::uint16_t>((255 - row) * 256 + i);
        const float want = format == Format::bf16 ? bf16_to_float(half) : f16_to_float(half);
        REQUIRE(float_bits(x[static_cast<std::size_t>(row * 256 + i)]) == float_bits(want));
      }
    }
    CHECK_THROWS_AS(ops.embed(table, std::vector<int>{256}, {x.data(), 1, 256}), Error);
    CHECK_THROWS_AS(ops.embed(table, std::vector<int>{-1}, {x.data(), 1, 256}), Error);
  }
}

TEST_CASE("add: rounded once, NaN results canonical, other rows of a wider buffer untouched") {
  for (Isa isa : isas_here()) {
    for (int n_threads : {1, 3}) {
      HostOps ops(n_threads, isa);
      const int n_rows = 40, n_cols = 1000, stride = 1003;
      auto x = planted_floats(1, n_rows * stride), y = planted_floats(2, n_rows * stride);
      x[5] = bits_float(0x7f800000u), y[5] = bits_float(0xff800000u);
      x[6] = bits_float(0xffffffffu);
      x[7] = y[7] = -0.0f;
      const auto before = y;
      ops.add({x.data(), n_rows, n_cols, stride}, {y.data(), n_rows, n_cols, stride});
      for (int row = 0; row < n_rows; ++row) {
        for (int i = 0; i < stride; ++i) {
          const auto at = static_cast<std::size_t>(row * stride + i);
          const float sum = before[at] + x[at];
          const std::uint32_t want = i >= n_cols  ? float_bits(before[at])
                                     : sum != sum ? 0x7fc00000u
                                                  : float_bits(sum);
          REQUIRE(float_bits(y[at]) == want);
        }
      }
    }
  }
}

TEST_CASE("allocate: zeroed, aligned, and refused with a line when there is no memory") {
  HostOps ops(1, Isa::scalar);
  auto* bytes = static_cast<unsigned char*>(ops.allocate(100000, "a test"));
  CHECK(reinterpret_cast<std::uintptr_t>(bytes) % 64 == 0);
  for (int i = 0; i < 100000; ++i) REQUIRE(bytes[i] == 0);
  try {
    ops.allocate(std::uint64_t{1} << 60, "a test");
    FAIL("allocated 2^60 bytes");
  } catch (const Error& e) {
    CHECK(e.code == Exit::fault);
    CHECK(std::string(e.what()).find("a test") != std::string::npos);
  }
}
