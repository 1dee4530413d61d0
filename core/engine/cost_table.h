// What a window of r rows and a level of the draft head cost on this machine: measured once per
// build, device and package, kept in a file, and given to the depth rule.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/engine/model.h"

namespace bolt {

inline constexpr int kCostRowsMax = 64;

struct CostTable {
  std::array<std::int64_t, kCostRowsMax + 1> window_ns{};  // [r], r = 1..64; never falling
  std::int64_t level_ns = 0;                               // the whole head
  std::int64_t vocab_level_ns = 0;  // the draft vocabulary's rows; 0: the package has none
  // [kind][k - 1]: a separate drafter's pass for k drafts, never falling; empty if there is none.
  std::array<std::vector<std::int64_t>, 2> block_ns;

  // Past the table, each row costs what the last 16 did.
  double window(int n_rows) const {
    const auto at = [this](int r) {
      return static_cast<double>(window_ns[static_cast<std::size_t>(r)]);
    };
    if (n_rows <= kCostRowsMax) return at(n_rows);
    return at(kCostRowsMax) +
           (n_rows - kCostRowsMax) * (at(kCostRowsMax) - at(kCostRowsMax - 16)) / 16;
  }
  double level(bool draft_vocab) const {
    return static_cast<double>(draft_vocab ? vocab_level_ns : level_ns);
  }

  int block_drafts(BlockKind kind) const {
    return static_cast<int>(block_ns[static_cast<std::size_t>(kind)].size());
  }
  double block(BlockKind kind, int n_drafts) const {
    return static_cast<double>(
        block_ns[static_cast<std::size_t>(kind)][static_cast<std::size_t>(n_drafts) - 1]);
  }

  // {"v_ns": [64 integers], "level_ns": n, "vocab_level_ns": n}, one line; "dspark_ns" and
  // "dflash_ns" are lists behind them where there are such drafters.
  std::string json() const;
  std::string digest() const;  // SHA-256 (hex) of json()
  // Error(input) naming the file and the field.
  static CostTable parse(const std::string& name, const std::string& text);
};

// Times a few widths and fills in the rest by straight lines. A fifth of a second, or one sweep.
CostTable measure_costs(Model& model);

// The table of `file` if one is given (made there if it does not exist yet); else the cached one of
// `key`, measured and cached if there is none. An empty key is never cached. `measured`, if given,
// says whether it was measured now.
CostTable load_costs(Model& model, const std::string& file, const std::string& key,
                     bool* measured = nullptr);

}  // namespace bolt
