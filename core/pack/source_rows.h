// Rows of a checkpoint's tensors as a weight's codes: reading, widening, quantising, and the check
// that every value is finite. Which tensors is binding.h, where the codes go package_writer.h.
#pragma once

#include <cstring>

#include "core/base/bits.h"
#include "core/pack/binding.h"
#include "core/pack/package_writer.h"

namespace bolt {

class SourceRows {
 public:
  SourceRows(const Checkpoint& checkpoint, const BoundGraph& bound)
      : checkpoint_(&checkpoint), bound_(&bound) {}

  // Codes of a run; the weight's format may be the tensors' own, f32 for vectors, or q8. Throws
  // Error(input) naming tensor and index of a NaN or an infinity. Any number of threads.
  void fill(const RowRun& run, RowCodes& rows) const;

  // The tensors' own bytes for a run, and the tensor; nullptr where there is none (zeros).
  const Tensor* read_raw(const RowRun& run, std::vector<std::byte>& raw) const;
  const Binding& binding(const RowRun& run) const { return bound_->bindings.at(*run.name); }

 private:
  const Checkpoint* checkpoint_;
  const BoundGraph* bound_;
};

// Value `i` of a tensor's bytes, widened to f32: exact for bf16, f16 and f32.
inline float widened(Format source, const std::byte* raw, std::size_t i) {
  if (source == Format::f32) {
    float x;
    std::memcpy(&x, raw + 4 * i, 4);
    return x;
  }
  std::uint16_t h;
  std::memcpy(&h, raw + 2 * i, 2);
  return source == Format::bf16 ? bf16_to_float(h) : f16_to_float(h);
}

}  // namespace bolt
