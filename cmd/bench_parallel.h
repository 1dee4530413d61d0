// `bolt bench --parallel N,...`: all prompts of a pass with at most N answered at once, one engine,
// shared rounds. Each (package, mode, N) is a series of its own, planned and receipted like the
// others; each pass takes the series in turn, every second pass in reversed order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cmd/bench_run.h"
#include "cmd/bench_stats.h"
#include "receipts/plan.h"

namespace bolt {

// What a series came to.
struct BenchThroughput {
  std::string package, mode, plan_rid, folder;
  std::int64_t n_parallel = 0, n_prompts = 0, n_passes = 0;
  std::int64_t n_tokens = 0;  // of one pass
  Spread tok_per_s;           // of all replies of a pass together
  Spread wall_ns;
  Ratio ratio;  // times the first N of the same package and mode; unknown for itself
  std::vector<std::string> divergences;
  bool equal() const { return divergences.empty(); }
};

class BenchParallel {
 public:
  // Makes the plans. runs: its sessions have sequences for the largest N, and its replies are what
  // these must equal.
  BenchParallel(BenchRuns& runs, const BenchOptions& options);
  // An interrupt ends it between passes of a series.
  void run();
  std::vector<BenchThroughput> results() const;
  bool is_complete() const { return is_complete_; }

 private:
  struct Series {
    std::size_t package = 0;
    std::string mode, folder;
    std::int64_t n_parallel = 1;
    receipts::Plan plan;
    std::vector<std::int64_t> wall_ns, n_tokens;  // by pass
    std::vector<std::string> divergences;
  };
  void run_pass(Series& series, std::int64_t pass);
  void compare(Series& series, const receipts::Cell& cell, const std::vector<int>& ids);

  BenchRuns& runs_;
  const BenchOptions& options_;
  std::vector<Series> series_;
  bool is_complete_ = true;
};

}  // namespace bolt
