// The routed experts' buffers: which rows go to which expert, and what lies between up and down.
// Grown by the first calls, then kept: decoding allocates nothing.
#pragma once

#include <vector>

#include "core/ops/operand.h"
#include "core/ops/routing.h"

namespace bolt {

// Rows that one expert takes together, at most kTileWorkRows.
struct ExpertBlock {
  int expert = 0;
  int first = 0, n_pairs = 0;  // in ExpertScratch::pairs
};

struct ExpertScratch {
  std::vector<Choice> choices;  // [row][top_k]; a pair is row * top_k + choice
  std::vector<int> pairs;       // the pairs, ordered by expert, then by row
  std::vector<int> rows;        // the row of each of `pairs`
  std::vector<int> starts;      // [n_experts + 1]
  std::vector<ExpertBlock> blocks;
  HostOperand hidden;          // relu2(up x) of each pair, as the down projection takes it
  std::vector<float> outputs;  // [pair][n_cols]: down's rows
};

}  // namespace bolt
