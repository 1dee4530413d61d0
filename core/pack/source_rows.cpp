// From tensors' bytes to rows of codes.
#include "core/pack/source_rows.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/pack/quantise.h"

namespace bolt {
namespace {

// The first element that is NaN or infinite, n if all are finite.
template <class Word>
std::size_t first_not_finite(const std::byte* raw, std::size_t n, Word exponent) {
  const auto at = [&](std::size_t i) {
    Word w;
    std::memcpy(&w, raw + i * sizeof(Word), sizeof w);
    return (w & exponent) == exponent;
  };
  bool any = false;
  for (std::size_t i = 0; i < n; ++i) any |= at(i);
  if (!any) return n;
  std::size_t i = 0;
  while (!at(i)) ++i;
  return i;
}

std::size_t first_not_finite(Format source, const std::byte* raw, std::size_t n) {
  if (source == Format::f32) return first_not_finite<std::uint32_t>(raw, n, 0x7f800000u);
  return first_not_finite<std::uint16_t>(raw, n, source == Format::bf16 ? 0x7f80 : 0x7c00);
}

}  // namespace

const Tensor* SourceRows::read_raw(const RowRun& run, std::vector<std::byte>& raw) const {
  const Binding& bound = binding(run);
  if (bound.transform == Transform::zeros) return nullptr;
  const Tensor& tensor = bound.tensor(run.matrix);
  const auto element = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(run.weight->n_cols) * element;
  std::uint64_t first = static_cast<std::uint64_t>(run.first_row);
  if (bound.tensors.size() == 1) {
    first +=
        static_cast<std::uint64_t>(run.matrix) * static_cast<std::uint64_t>(run.weight->n_rows);
  }
  raw.resize(static_cast<std::size_t>(run.n_rows) * row_bytes);
  const SourceFile& file = checkpoint_->files[static_cast<std::size_t>(tensor.file)];
  if (bound.rows.empty()) {
    read_at(file.descriptor, file.path, tensor.offset + first * row_bytes, raw);
  } else {
    for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(run.n_rows); ++r) {
      const auto row = static_cast<std::uint64_t>(bound.rows[static_cast<std::size_t>(first + r)]);
      read_at(file.descriptor, file.path, tensor.offset + row * row_bytes,
              std::span(raw).subspan(static_cast<std::size_t>(r * row_bytes), row_bytes));
    }
  }
  const std::size_t n = raw.size() / element;
  const std::size_t bad = first_not_finite(bound.source, raw.data(), n);
  if (bad < n) {
    throw Error(Exit::input,
                fmt::format("{}: tensor {} holds {} at index {}, expected finite weights",
                            file.path, tensor.name, widened(bound.source, raw.data(), bad),
                            first * static_cast<std::uint64_t>(run.weight->n_cols) + bad));
  }
  return &tensor;
}

void SourceRows::fill(const RowRun& run, RowCodes& rows) const {
  const Binding& bound = binding(run);
  const Weight& w = *run.weight;
  static thread_local std::vector<std::byte> raw;
  const Tensor* tensor = read_raw(run, raw);
  if (!tensor) {
    std::fill(rows.codes.begin(), rows.codes.end(), std::byte{0});
    return;
  }
  const auto n = static_cast<std::size_t>(run.n_rows) * static_cast<std::size_t>(w.n_cols);
  if (w.format == Format::q8) {
    std::vector<float> row(static_cast<std::size_t>(w.n_cols));
    for (int r = 0; r < run.n_rows; ++r) {
      for (int k = 0; k < w.n_cols; ++k) {
        const auto i = static_cast<std::size_t>(r) * row.size() + static_cast<std::size_t>(k);
        row[static_cast<std::size_t>(k)] = widened(bound.source, raw.data(), i);
      }
      if (!quantise_q8(row.data(), w.n_cols, rows.code_row<std::int8_t>(r),
                       rows.scale_row<std::uint16_t>(r))) {
        throw Error(Exit::input,
                    fmt::format("tensor {}: row {} is too large for q8; --keep '{}' keeps "
                                "it as it is",
                                tensor->name, run.first_row + r, tensor->name));
      }
    }
    return;
  }
  if (bound.transform == Transform::copy && code_bytes(w.format) == dtype_bytes(tensor->dtype)) {
    std::memcpy(rows.codes.data(), raw.data(), raw.size());
    return;
  }
  require(w.format == Format::f32, "a vector kept as f32");
  for (std::size_t i = 0; i < n; ++i) {
    float x = widened(bound.source, raw.data(), i);
    if (bound.transform == Transform::negated_exp) x = -exact_exp(x);
    if (!is_finite(x)) {
      throw Error(Exit::input,
                  fmt::format("tensor {}: -exp of index {} is not finite", tensor->name, i));
    }
    std::memcpy(rows.codes.data() + 4 * i, &x, 4);
  }
}

}  // namespace bolt
