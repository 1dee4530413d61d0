// Rows of a checkpoint's tensors as a weight's codes: reading, widening, quantising, and the check
// that every value is finite. Which tensors is binding.h, where the codes go package_writer.h.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/base/bits.h"
#include "core/pack/binding.h"
#include "core/pack/package_writer.h"
#include "core/pack/source_blocks.h"

namespace bolt {

// A run's rows as the checkpoint stores them.
struct RawRows {
  const Tensor* tensor = nullptr;  // null where there is none (zeros)
  const SourceEncoding* encoding = nullptr;
  std::vector<std::byte> bytes;   // row after row
  std::vector<std::byte> scales;  // ModelOpt's weight_scale, row after row; else empty
  float scale = 1.0f;             // of the matrix
  std::size_t row_bytes = 0, scale_row_bytes = 0;

  const std::byte* row(int r) const {
    return bytes.data() + static_cast<std::size_t>(r) * row_bytes;
  }
  const std::byte* scale_row(int r) const {
    return scales.data() + static_cast<std::size_t>(r) * scale_row_bytes;
  }
  void values(int r, int n_cols, float* to) const {
    read_values(*encoding, row(r), scale_row(r), scale, n_cols, to);
  }
};

class SourceRows {
 public:
  SourceRows(const Checkpoint& checkpoint, const BoundGraph& bound)
      : checkpoint_(&checkpoint), bound_(&bound) {}

  // Reads what is to become nvfp4 once, for the largest magnitude of each matrix.
  void measure(ThreadPool& pool, const WorkProgress& progress);
  // RN(amax / 2688) of a matrix that measure() has seen.
  float g0(const std::string& weight, int matrix) const;

  // A run's rows, every number finite: else Error(input) naming tensor and index. Any number of
  // threads, each with its own `raw`; so is fill().
  void read(const RowRun& run, RawRows& raw) const;
  // Codes of a run that was read; the weight's format may be the tensors' own, f32 for vectors, or
  // one to quantise to.
  void fill(const RowRun& run, const RawRows& raw, RowCodes& rows) const;
  // The gain of a matrix (arithmetic.md §4). Throws Error(input) for a scale that has none.
  float gain(const std::string& weight, int matrix) const;

  const Binding& binding(const RowRun& run) const { return bound_->bindings.at(*run.name); }

 private:
  float scale_of(const Binding& binding, int matrix) const;
  void read_rows(const Binding& binding, const Tensor& tensor, const RowRun& run,
                 std::size_t row_bytes, std::vector<std::byte>& raw) const;

  const Checkpoint* checkpoint_;
  const BoundGraph* bound_;
  std::map<std::string, std::vector<float>> largest_;  // by weight, of each matrix
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
