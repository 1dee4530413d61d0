// Comparing a package's payload with its checkpoint. Elements are found by address (packed_code),
// where packing filled blocks word by word; q8 is recomputed in double arithmetic.
#include "core/pack/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"

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
// nvfp4's, by search: the nearest of the format's numbers, the even code where two are as near.
double e4m3_number(int code) {
  return static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(code)));
}
template <class NumberOf>
int nearest_code(double x, int least, int most, NumberOf number_of) {
  int best = least;
  for (int code = least; code <= most; ++code) {
    const double d = std::fabs(number_of(code) - x), so_far = std::fabs(number_of(best) - x);
    if (d < so_far || (d == so_far && code % 2 == 0)) best = code;
  }
  return best;
}
int recomputed_e4m3(double amax, double g0) {
  if (g0 == 0.0) return 1;
  const double sixth = static_cast<double>(static_cast<float>(amax / 6.0));
  return nearest_code(static_cast<double>(static_cast<float>(sixth / g0)), 1, 126, e4m3_number);
}
int recomputed_e2m1(double w, int scale, double g0) {
  constexpr double kNumbers[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double s = static_cast<double>(static_cast<float>(e4m3_number(scale) * g0));
  if (s == 0.0) return 0;
  const double x = static_cast<double>(static_cast<float>(std::fabs(w) / s));
  const int code = nearest_code(x, 0, 7, [&](int c) { return kNumbers[c]; });
  return code != 0 && w < 0.0 ? code | 8 : code;
}

int recomputed_code(double w, double s) {
  if (s == 0.0) return 0;
  const double q = std::nearbyint(static_cast<double>(static_cast<float>(w / s)));
  return static_cast<int>(q > 127.0 ? 127.0 : q < -127.0 ? -127.0 : q);
}

// One run of rows: its tensors' bytes against the package's.
class RunCheck {
 public:
  // gain: of the run's matrix, 1 where the format has none.
  RunCheck(const RowRun& run, const Binding& binding, const RawRows& raw, const std::byte* packed,
           float gain)
      : run_(run),
        w_(*run.weight),
        binding_(binding),
        tensor_(raw.tensor),
        rows_(raw),
        raw_(raw.bytes.data()),
        packed_(packed),
        gain_(gain),
        packed_values_(static_cast<std::size_t>(w_.n_cols)) {}

  void all() {
    if (binding_.source == w_.format && !is_integer(w_.format) && w_.layout == Layout::tiles) {
      if (code_bytes(w_.format) == 4) {
        tiled_bits<std::uint32_t, std::uint64_t>();
      } else {
        tiled_bits<std::uint16_t, std::uint32_t>();
      }
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(w_.n_cols));
    for (int r = 0; r < run_.n_rows; ++r) {
      if (is_integer(binding_.source)) {
        coded_row(r, values);
      } else if (!is_integer(w_.format)) {
        plain_row(r);
      } else {
        if (w_.format == Format::q8)
          q8_row(r);
        else
          nvfp4_row(r);
        add_errors(r);
      }
    }
  }
  double squared_error() const { return squared_error_; }
  double squared_values() const { return squared_values_; }

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

  void plain_row(int r) {
    if (w_.layout == Layout::tiles) {
      // Widened: exact and one to one, so that floats differ where the codes do.
      packed_row(w_.format, packed_, w_.n_cols, 1.0f, r, packed_values_.data());
      for (int k = 0; k < w_.n_cols; ++k) {
        const std::uint32_t is = float_bits(packed_values_[static_cast<std::size_t>(k)]);
        const std::uint32_t should = float_bits(value(r, k));
        if (is != should) differ(r, k, is, should);
      }
      return;
    }
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

  // Floats in tiles are the tensor's own bits: compared two at a time, since each pair of columns
  // lies together, and one at a time where those differ or a pair is cut. Block by block, so that a
  // block stays in the first cache.
  template <class Bits, class Pair>
  void tiled_bits() {
    std::uint32_t at[kTileRows][kGroupCols];
    for (int row = 0; row < kTileRows; ++row) {
      for (int c = 0; c < kGroupCols; ++c) {
        at[row][c] = packed_place(w_.format, row, c);
        require(c % 2 == 0 || at[row][c] == at[row][c - 1] + sizeof(Bits),
                "a pair of columns lies together");
      }
    }
    for (int tile = 0; tile < run_.n_rows; tile += kTileRows) {
      const int end = std::min(run_.n_rows, tile + kTileRows);
      for (int k = 0; k < w_.n_cols; k += kGroupCols) {
        const std::byte* group = block(tile, k);
        const int n = std::min(kGroupCols, w_.n_cols - k);
        for (int r = tile; r < end; ++r) {
          const std::byte* from = raw_ + index(r, k) * sizeof(Bits);
          const std::uint32_t* places = at[r - tile];
          Pair unequal = 0;
          for (int c = 0; c + 1 < n; c += 2) {
            Pair is, should;
            std::memcpy(&is, group + places[c], sizeof is);
            std::memcpy(&should, from + static_cast<std::size_t>(c) * sizeof(Bits), sizeof should);
            unequal |= is ^ should;
          }
          if (unequal == 0 && n % 2 == 0) continue;
          for (int c = 0; c < n; ++c) {
            Bits is, should;
            std::memcpy(&is, group + places[c], sizeof is);
            std::memcpy(&should, from + static_cast<std::size_t>(c) * sizeof(Bits), sizeof should);
            if (is != should) differ(r, k + c, is, should);
          }
        }
      }
    }
  }

  // Codes that were kept: both sides decoded, by formulas written apart. The doubled e2m1 codes
  // have no -0, so there -0 equals +0; everywhere else bits are bits.
  void coded_row(int r, std::vector<float>& values) {
    rows_.values(r, w_.n_cols, values.data());
    const bool signless_zero = w_.format == Format::nvfp4 || w_.format == Format::mxfp4;
    packed_row(w_.format, packed_, w_.n_cols, gain_, r, packed_values_.data());
    for (int k = 0; k < w_.n_cols; ++k) {
      const float is = packed_values_[static_cast<std::size_t>(k)];
      const float should = values[static_cast<std::size_t>(k)];
      if (float_bits(is) == float_bits(should) || (signless_zero && is == 0.0f && should == 0.0f))
        continue;
      differ(r, k, float_bits(is), float_bits(should));
    }
  }

  void add_errors(int r) {
    packed_row(w_.format, packed_, w_.n_cols, gain_, r, packed_values_.data());
    for (int k = 0; k < w_.n_cols; ++k) {
      const double should = static_cast<double>(value(r, k));
      const double is = static_cast<double>(packed_values_[static_cast<std::size_t>(k)]);
      squared_error_ += (is - should) * (is - should);
      squared_values_ += should * should;
    }
  }

  void nvfp4_row(int r) const {
    const double g0 = static_cast<double>(gain_ * 0x1p-7f);
    for (int first = 0; first < w_.n_cols; first += 16) {
      const int end = std::min(w_.n_cols, first + 16);
      double amax = 0.0;
      for (int k = first; k < end; ++k)
        amax = std::max(amax, std::fabs(static_cast<double>(value(r, k))));
      const int column = first % kGroupCols;
      const auto scale =
          static_cast<int>(packed_scale(w_.format, block(r, first), r % kTileRows, column));
      const int should = recomputed_e4m3(amax, g0);
      if (scale != should)
        differ(r, first, static_cast<std::uint32_t>(scale), static_cast<std::uint32_t>(should));
      for (int k = first; k < end; ++k) {
        const auto code = static_cast<std::uint32_t>(
            recomputed_e2m1(static_cast<double>(value(r, k)), scale, g0));
        if (found(r, k) != code) differ(r, k, found(r, k), code);
      }
    }
  }

  void q8_row(int r) const {
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
  const RawRows& rows_;
  const std::byte* raw_;
  const std::byte* packed_;
  const float gain_;
  std::vector<float> packed_values_;  // of a row
  double squared_error_ = 0.0, squared_values_ = 0.0;
};

}  // namespace

void PayloadVerifier::check(std::size_t index, const RowRun& run, const RawRows& raw,
                            std::span<const std::byte> packed, float gain) {
  const Binding& binding = source_->binding(run);
  RunCheck check(run, binding, raw, packed.data(), gain);
  check.all();
  squares_[index] = {check.squared_error(), check.squared_values()};
  const auto n =
      static_cast<std::uint64_t>(run.n_rows) * static_cast<std::uint64_t>(run.weight->n_cols);
  n_values_ += n;
  if (is_integer(run.weight->format) && !is_integer(binding.source)) n_quantised_ += n;
}

Verified PayloadVerifier::result() const {
  std::map<std::string, std::pair<double, double>> sums;
  for (std::size_t i = 0; i < squares_.size(); ++i) {
    if (squares_[i].second == 0.0) continue;
    auto& sum = sums[*runs_[i].name];
    sum.first += squares_[i].first;
    sum.second += squares_[i].second;
  }
  Verified verified{n_values_, n_quantised_, {}};
  for (const auto& [name, sum] : sums) {
    verified.errors.emplace_back(name, std::sqrt(sum.first / sum.second));
  }
  std::stable_sort(verified.errors.begin(), verified.errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return verified;
}

}  // namespace bolt
