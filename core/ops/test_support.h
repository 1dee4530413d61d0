// What the ops' tests share: every instruction set of this machine, bit comparison, a batch of
// rows.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/cpu.h"
#include "core/ops/host.h"
#include "core/ops/synthetic.h"

namespace bolt {

inline std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (cpu_has(isa)) isas.push_back(isa);
  }
  return isas;
}

// Bits, not values: a NaN equals itself, -0 differs from +0.
inline bool same_bits(const float* a, const float* b, std::size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// Rows of a call and their marks.
struct TestBatch {
  std::vector<std::uint8_t> marked;
  Segment segment;
  Batch batch;

  explicit TestBatch(int n_rows) : marked(static_cast<std::size_t>(n_rows)) {
    segment.n_rows = segment.n_live = n_rows;
    segment.n_sure = n_rows;
    batch.n_rows = n_rows;
    batch.segments = {&segment, 1};
    batch.marked = marked;
  }
  TestBatch(const TestBatch&) = delete;
  TestBatch& operator=(const TestBatch&) = delete;
};

}  // namespace bolt
