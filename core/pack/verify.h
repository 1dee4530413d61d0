// The proof that a package means what its checkpoint says: both are decoded and every value is
// compared, bit for bit. Where the conversion quantised, the codes are computed again, another way.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/pack/source_rows.h"

namespace bolt {

struct Verified {
  std::uint64_t n_values = 0;     // compared with the checkpoint, bit for bit
  std::uint64_t n_quantised = 0;  // of them, codes and scales recomputed
  // Of each quantised weight the relative error (ConvertFacts::errors), the worst first.
  std::vector<std::pair<std::string, double>> errors;
};

// Compares a graph's runs, each as it was packed, with what was read of the checkpoint for it.
class PayloadVerifier {
 public:
  PayloadVerifier(const SourceRows& source, const Graph& graph)
      : source_(&source), runs_(row_runs(graph, names_)), squares_(runs_.size()) {}
  PayloadVerifier(const PayloadVerifier&) = delete;
  PayloadVerifier& operator=(const PayloadVerifier&) = delete;

  // Run `index` of the graph's. gain: of its matrix, 1 where the format has none. Throws
  // Error(fault) naming weight, matrix, row and column of the first value that differs. Any number
  // of threads, each run once.
  void check(std::size_t index, const RowRun& run, const RawRows& raw,
             std::span<const std::byte> packed, float gain);
  Verified result() const;

 private:
  const SourceRows* source_;
  std::vector<std::string> names_;
  std::vector<RowRun> runs_;  // their names are in names_
  std::atomic<std::uint64_t> n_values_{0}, n_quantised_{0};
  // By run, so that their sums have one order.
  std::vector<std::pair<double, double>> squares_;
};

}  // namespace bolt
