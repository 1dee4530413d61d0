// The proof that a package means what its checkpoint says: both are decoded and every value is
// compared, bit for bit. Where the conversion quantised, the codes are computed again, another way.
#pragma once

#include <cstdint>
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

// Compares the payload files in `folder` with the checkpoint. Throws Error(fault) naming weight,
// matrix, row and column of the first value that differs.
Verified verify_payload(const std::string& folder, const Graph& graph, const SourceRows& source,
                        ThreadPool& pool, const WorkProgress& progress);

}  // namespace bolt
