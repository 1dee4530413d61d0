// Comparing a package's payload with its checkpoint. Elements are found by address (packed_code),
// where packing filled blocks word by word; q8 is recomputed in double arithmetic.
#include "core/pack/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/base/interrupt.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

std::uint32_t raw_bits(const std::byte* raw, int element_bytes, std::size_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, raw + i * static_cast<std::size_t>(element_bytes),
              static_cast<std::size_t>(element_bytes));
  return bits;
}

// The q8 scale of a group and the code of one value under it, in double: a quotient of two floats
// rounded to double and then to float is the float quotient, since 53 >= 2 * 24 + 2.
std::uint16_t recomputed_scale(double amax) {
  return float_to_f16(static_cast<float>(amax / 127.0));
}
int recomputed_code(double w, double s) {
  if (s == 0.0) return 0;
  const double q = std::nearbyint(static_cast<double>(static_cast<float>(w / s)));
  return static_cast<int>(q > 127.0 ? 127.0 : q < -127.0 ? -127.0 : q);
}

// One run of rows: its tensors' bytes against the package's.
class RunCheck {
 public:
  RunCheck(const RowRun& run, const Binding& binding, const Tensor* tensor, const std::byte* raw,
           const std::byte* packed)
      : run_(run),
        w_(*run.weight),
        binding_(binding),
        tensor_(tensor),
        raw_(raw),
        packed_(packed) {}

  void all() const {
    for (int r = 0; r < run_.n_rows; ++r) {
      if (w_.format == Format::q8)
        quantised_row(r);
      else
        plain_row(r);
    }
  }

 private:
  const std::byte* block(int r, int k) const {
    const auto groups = static_cast<std::size_t>(n_groups(w_.n_cols));
    return packed_ + (static_cast<std::size_t>(r / kTileRows) * groups +
                      static_cast<std::size_t>(k / kGroupCols)) *
                         static_cast<std::size_t>(block_bytes(w_.format));
  }
  std::uint32_t found(int r, int k) const {
    if (w_.layout == Layout::tiles)
      return packed_code(w_.format, block(r, k), r % kTileRows, k % kGroupCols);
    return raw_bits(packed_, code_bytes(w_.format), index(r, k));
  }
  std::size_t index(int r, int k) const {
    return static_cast<std::size_t>(r) * static_cast<std::size_t>(w_.n_cols) +
           static_cast<std::size_t>(k);
  }
  float value(int r, int k) const { return widened(binding_.source, raw_, index(r, k)); }

  [[noreturn]] void differ(int r, int k, std::uint32_t is, std::uint32_t should) const {
    throw Error(
        Exit::fault,
        fmt::format("verify: weight {} matrix {} row {} column {} is {:#x}, expected {:#x} from "
                    "tensor {}; nothing was written",
                    *run_.name, run_.matrix, run_.first_row + r, k, is, should,
                    tensor_ ? tensor_->name : "(none)"));
  }

  void plain_row(int r) const {
    const bool own = tensor_ && binding_.transform == Transform::copy &&
                     dtype_bytes(tensor_->dtype) == code_bytes(w_.format);
    for (int k = 0; k < w_.n_cols; ++k) {
      std::uint32_t should = 0;
      if (own) {
        should = raw_bits(raw_, code_bytes(w_.format), index(r, k));
      } else if (tensor_) {
        const float x = value(r, k);
        should = float_bits(binding_.transform == Transform::negated_exp ? -exact_exp(x) : x);
      }
      const std::uint32_t is = found(r, k);
      if (is != should) differ(r, k, is, should);
    }
  }

  void quantised_row(int r) const {
    for (int first = 0; first < w_.n_cols; first += kGroupCols) {
      const int end = std::min(w_.n_cols, first + kGroupCols);
      double amax = 0.0;
      for (int k = first; k < end; ++k)
        amax = std::max(amax, std::fabs(static_cast<double>(value(r, k))));
      const std::uint32_t scale = packed_scale(w_.format, block(r, first), r % kTileRows, 0);
      const std::uint32_t should = recomputed_scale(amax);
      if (scale != should) differ(r, first, scale, should);
      const double s = static_cast<double>(f16_to_float(static_cast<std::uint16_t>(scale)));
      for (int k = first; k < end; ++k) {
        const int is = static_cast<std::int8_t>(found(r, k));
        const int code = recomputed_code(static_cast<double>(value(r, k)), s);
        if (is != code)
          differ(r, k, static_cast<std::uint8_t>(is), static_cast<std::uint8_t>(code));
      }
    }
  }

  const RowRun& run_;
  const Weight& w_;
  const Binding& binding_;
  const Tensor* tensor_;
  const std::byte* raw_;
  const std::byte* packed_;
};

}  // namespace

Verified verify_payload(const std::string& folder, const Graph& graph, const SourceRows& source,
                        ThreadPool& pool, const WorkProgress& progress) {
  std::map<std::string, FileDescriptor> files;
  std::uint64_t total = 0;
  each_weight(graph, [&](const std::string&, const Weight& w) {
    total += w.bytes;
    if (files.contains(w.file)) return;
    FileFacts facts;
    files.emplace(w.file, open_regular_file(folder + "/" + w.file, facts));
  });
  std::vector<std::string> names;
  const std::vector<RowRun> runs = row_runs(graph, names);
  std::atomic<std::uint64_t> n_values{0}, n_quantised{0};
  Meter meter(progress, "verifying", total);
  pool.parallel_for(static_cast<int>(runs.size()), 1, [&](int begin, int end, int) {
    std::vector<std::byte> raw, packed;
    for (int i = begin; i < end; ++i) {
      check_interrupt();
      const RowRun& run = runs[static_cast<std::size_t>(i)];
      const Weight& w = *run.weight;
      const Tensor* tensor = source.read_raw(run, raw);
      const std::uint64_t row_bytes =
          w.layout == Layout::tiles ? packed_matrix_bytes(w.format, kTileRows, w.n_cols) / kTileRows
                                    : static_cast<std::uint64_t>(w.n_cols) *
                                          static_cast<std::uint64_t>(code_bytes(w.format));
      const std::uint64_t n_rows = w.layout == Layout::tiles
                                       ? static_cast<std::uint64_t>(n_tiles(run.n_rows)) * kTileRows
                                       : static_cast<std::uint64_t>(run.n_rows);
      packed.resize(n_rows * row_bytes);
      read_at(files.at(w.file), folder + "/" + w.file,
              w.offset + static_cast<std::uint64_t>(run.matrix) * w.matrix_bytes() +
                  static_cast<std::uint64_t>(run.first_row) * row_bytes,
              packed);
      RunCheck(run, source.binding(run), tensor, raw.data(), packed.data()).all();
      const auto n = static_cast<std::uint64_t>(run.n_rows) * static_cast<std::uint64_t>(w.n_cols);
      n_values += n;
      if (w.format == Format::q8) n_quantised += n;
      meter.add(packed.size());
    }
  });
  return {n_values, n_quantised};
}

}  // namespace bolt
