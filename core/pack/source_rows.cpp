// From tensors' bytes to rows of codes.
#include "core/pack/source_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/base/interrupt.h"
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
  // An exponent of ones and its lowest bit carry into the top bit; OR of them makes vectors.
  constexpr Word kTop = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  const auto low = static_cast<Word>(exponent & (~exponent + 1u));
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    Word words[64], all = 0;
    std::memcpy(words, raw + i * sizeof(Word), sizeof words);
    for (const Word w : words) all = static_cast<Word>(all | ((w & exponent) + low));
    if (all & kTop) break;
  }
  while (i < n && !at(i)) ++i;
  return i;
}

std::size_t first_not_finite(Format source, const std::byte* raw, std::size_t n) {
  if (source == Format::f32) return first_not_finite<std::uint32_t>(raw, n, 0x7f800000u);
  return first_not_finite<std::uint16_t>(raw, n, source == Format::bf16 ? 0x7f80 : 0x7c00);
}

}  // namespace

void SourceRows::read_rows(const Binding& bound, const Tensor& tensor, const RowRun& run,
                           std::size_t row_bytes, std::vector<std::byte>& raw) const {
  std::uint64_t first = static_cast<std::uint64_t>(run.first_row);
  if (bound.tensors.size() == 1) {
    first +=
        static_cast<std::uint64_t>(run.matrix) * static_cast<std::uint64_t>(run.weight->n_rows);
  }
  raw.resize(static_cast<std::size_t>(run.n_rows) * row_bytes);
  const SourceFile& file = checkpoint_->files[static_cast<std::size_t>(tensor.file)];
  if (bound.rows.empty()) {
    read_at(file.descriptor, file.path, tensor.offset + first * row_bytes, raw);
    return;
  }
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(run.n_rows); ++r) {
    const auto row = static_cast<std::uint64_t>(bound.rows[static_cast<std::size_t>(first + r)]);
    read_at(file.descriptor, file.path, tensor.offset + row * row_bytes,
            std::span(raw).subspan(static_cast<std::size_t>(r * row_bytes), row_bytes));
  }
}

float SourceRows::scale_of(const Binding& bound, int matrix) const {
  if (bound.scales.empty()) return 1.0f;
  const bool shared = bound.scales.size() == 1;
  const Tensor& tensor = *bound.scales[shared ? 0 : static_cast<std::size_t>(matrix)];
  const std::uint64_t at =
      shared && tensor.n_elements() > 1 ? static_cast<std::uint64_t>(matrix) : 0;
  const SourceFile& file = checkpoint_->files[static_cast<std::size_t>(tensor.file)];
  float scale = 0.0f;
  read_at(file.descriptor, file.path, tensor.offset + 4 * at,
          std::as_writable_bytes(std::span(&scale, 1)));
  if (!is_finite(scale) || scale < 0.0f) {
    throw Error(Exit::input, fmt::format("{}: tensor {} holds {} at index {}, expected a scale",
                                         file.path, tensor.name, scale, at));
  }
  return scale;
}

void SourceRows::measure(ThreadPool& pool, const WorkProgress& progress) {
  std::vector<std::string> names;
  std::vector<RowRun> runs = row_runs(bound_->graph, names);
  std::erase_if(runs, [&](const RowRun& run) {
    return run.weight->format != Format::nvfp4 || is_integer(binding(run).source);
  });
  std::uint64_t total = 0;
  for (const RowRun& run : runs) {
    total +=
        static_cast<std::uint64_t>(run.n_rows) * static_cast<std::uint64_t>(run.weight->n_cols);
    largest_[*run.name].resize(static_cast<std::size_t>(run.weight->n_matrices));
  }
  if (runs.empty()) return;
  Meter meter(progress, "measuring", total);
  std::mutex lock;
  pool.parallel_for(static_cast<int>(runs.size()), 1, [&](int begin, int end, int) {
    RawRows raw;
    for (int i = begin; i < end; ++i) {
      check_interrupt();
      const RowRun& run = runs[static_cast<std::size_t>(i)];
      read(run, raw);
      std::vector<float> row(static_cast<std::size_t>(run.weight->n_cols));
      float amax = 0.0f;
      for (int r = 0; r < run.n_rows; ++r) {
        raw.values(r, run.weight->n_cols, row.data());
        for (const float x : row) amax = std::max(amax, std::fabs(x));
      }
      const std::lock_guard<std::mutex> hold(lock);
      float& all = largest_.at(*run.name)[static_cast<std::size_t>(run.matrix)];
      all = std::max(all, amax);
      meter.add(static_cast<std::uint64_t>(run.n_rows) * row.size());
    }
  });
  // The draft vocabulary's rows are the head's, so they get the head's codes.
  const auto head = largest_.find("lm_head"), rows = largest_.find("draft.vocab_head");
  if (head != largest_.end() && rows != largest_.end()) rows->second = head->second;
}

float SourceRows::g0(const std::string& weight, int matrix) const {
  return nvfp4_g0(largest_.at(weight)[static_cast<std::size_t>(matrix)]);
}

float SourceRows::gain(const std::string& weight, int matrix) const {
  const Binding& bound = bound_->bindings.at(weight);
  if (!is_integer(bound.source)) return 128.0f * g0(weight, matrix);
  const float scale = scale_of(bound, matrix);
  const float factor = bound.source == Format::fp8 ? 0x1p-9f : 0x1p7f;
  const float gain = scale * factor;
  if (gain / factor != scale) {
    throw Error(Exit::input,
                fmt::format("tensor {}: its scale {} is too {} to be kept exactly",
                            bound.tensors.front()->name, scale, scale > 1.0f ? "large" : "small"));
  }
  return gain;
}

void SourceRows::read(const RowRun& run, RawRows& raw) const {
  const Binding& bound = binding(run);
  raw.tensor = nullptr;
  if (bound.transform == Transform::zeros) return;
  const Tensor& tensor = bound.tensor(run.matrix);
  raw.tensor = &tensor;
  raw.encoding = source_encoding(tensor.dtype);
  require(raw.encoding != nullptr, "a bound tensor's dtype is known");
  const auto n_cols = static_cast<std::size_t>(run.weight->n_cols);
  raw.row_bytes = n_cols / static_cast<std::size_t>(raw.encoding->n_cols) *
                  static_cast<std::size_t>(raw.encoding->bytes);
  read_rows(bound, tensor, run, raw.row_bytes, raw.bytes);
  raw.scale_row_bytes = bound.block_scales.empty() ? 0 : n_cols / 16;
  raw.scales.clear();
  if (!bound.block_scales.empty()) {
    const std::size_t one =
        bound.block_scales.size() == 1 ? 0 : static_cast<std::size_t>(run.matrix);
    read_rows(bound, *bound.block_scales[one], run, raw.scale_row_bytes, raw.scales);
  }
  raw.scale = scale_of(bound, run.matrix);
  if (is_integer(bound.source)) return;
  const std::size_t bad = first_not_finite(bound.source, raw.bytes.data(),
                                           static_cast<std::size_t>(run.n_rows) * n_cols);
  if (bad < static_cast<std::size_t>(run.n_rows) * n_cols) {
    const std::uint64_t first =
        (static_cast<std::uint64_t>(bound.tensors.size() == 1 ? run.matrix : 0) *
             static_cast<std::uint64_t>(run.weight->n_rows) +
         static_cast<std::uint64_t>(run.first_row)) *
        n_cols;
    throw Error(
        Exit::input,
        fmt::format("{}: tensor {} holds {} at index {}, expected finite weights",
                    checkpoint_->files[static_cast<std::size_t>(tensor.file)].path, tensor.name,
                    widened(bound.source, raw.bytes.data(), bad), first + bad));
  }
}

void SourceRows::fill(const RowRun& run, const RawRows& raw, RowCodes& rows) const {
  const Binding& bound = binding(run);
  const Weight& w = *run.weight;
  if (!raw.tensor) {
    std::fill(rows.codes.begin(), rows.codes.end(), std::byte{0});
    return;
  }
  const Tensor& tensor = *raw.tensor;
  const auto n_cols = static_cast<std::size_t>(w.n_cols);
  if (is_integer(bound.source)) {
    require(w.format == bound.source, "codes are kept as they are");
    for (int r = 0; r < run.n_rows; ++r) {
      const int bad = read_codes(
          *raw.encoding, raw.row(r), raw.scale_row(r), w.n_cols, rows.code_row<std::byte>(r),
          rows.scales.data() + static_cast<std::size_t>(r) *
                                   static_cast<std::size_t>(rows.n_scales()) *
                                   static_cast<std::size_t>(scale_bytes(w.format)));
      if (bad < 0) continue;
      throw Error(Exit::input,
                  fmt::format("{}: tensor {} row {} has no finite number or scale at column {}",
                              checkpoint_->files[static_cast<std::size_t>(tensor.file)].path,
                              tensor.name, run.first_row + r, bad));
    }
    return;
  }
  if (w.format == Format::q8) {
    std::vector<float> row(n_cols);
    for (int r = 0; r < run.n_rows; ++r) {
      raw.values(r, w.n_cols, row.data());
      if (!quantise_q8(row.data(), w.n_cols, rows.code_row<std::int8_t>(r),
                       rows.scale_row<std::uint16_t>(r))) {
        throw Error(Exit::input,
                    fmt::format("tensor {}: row {} is too large for q8; --keep '{}' keeps "
                                "it as it is",
                                tensor.name, run.first_row + r, tensor.name));
      }
    }
    return;
  }
  if (w.format == Format::nvfp4) {
    std::vector<float> row(n_cols);
    const float scale = g0(*run.name, run.matrix);
    for (int r = 0; r < run.n_rows; ++r) {
      raw.values(r, w.n_cols, row.data());
      quantise_nvfp4(row.data(), w.n_cols, scale, rows.code_row<std::uint8_t>(r),
                     rows.scale_row<std::uint8_t>(r));
    }
    return;
  }
  if (bound.transform == Transform::copy && code_bytes(w.format) == dtype_bytes(tensor.dtype)) {
    std::memcpy(rows.codes.data(), raw.bytes.data(), raw.bytes.size());
    return;
  }
  require(w.format == Format::f32, "a vector kept as f32");
  for (std::size_t i = 0; i < static_cast<std::size_t>(run.n_rows) * n_cols; ++i) {
    float x = widened(bound.source, raw.bytes.data(), i);
    if (bound.transform == Transform::negated_exp) x = -exact_exp(x);
    if (!is_finite(x)) {
      throw Error(Exit::input,
                  fmt::format("tensor {}: -exp of index {} is not finite", tensor.name, i));
    }
    std::memcpy(rows.codes.data() + 4 * i, &x, 4);
  }
}

}  // namespace bolt
