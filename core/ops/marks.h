// Marks (§1): rows that held a value that is not finite. Any thread may mark; nothing of a marked
// row may be emitted.
#pragma once

#include <atomic>

#include "core/base/exact_math.h"
#include "core/ops/ops.h"

namespace bolt {

inline void mark_row(const Batch& batch, int row) {
  if (batch.marked.empty()) return;
  std::atomic_ref<std::uint8_t>(batch.marked[static_cast<std::size_t>(row)])
      .store(1, std::memory_order_relaxed);
}

// A NaN result is 0x7fc00000, whichever operand it came from.
inline float canonical(float x) { return x != x ? exact_from_bits(kExactNan) : x; }

}  // namespace bolt
