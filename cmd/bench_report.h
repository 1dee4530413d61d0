// What a bench's receipts come to: a row an arm and length class, ratios against the base arm, and
// beside every figure whether the tokens were equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/bench_parallel.h"
#include "cmd/bench_run.h"
#include "cmd/bench_stats.h"

namespace bolt {

enum class BenchFormat { md, json, jsonl, csv };

struct BenchRow {
  std::string package, build, mode, group;  // group: a test, a length class, or all
  std::int64_t n_prompts = 0, n_runs = 0;
  std::int64_t n_tokens = 0;  // of one pass
  Spread ttft_ms, prompt_rate, decode_rate, total_ns;
  double noise = 0;  // typical spread of one prompt's passes: half their range over their median
  Ratio ratio;       // how many times as fast as `base`
  std::string base;  // mode, build or package it is held against; empty: it is the base
  std::int64_t n_target = 0, n_drafted = 0, n_accepted = 0;  // of all runs
  std::vector<std::int64_t> accepted_at;                     // by depth
  double tokens_per_pass = 0;
  double bytes_per_s = 0, ceiling = 0;  // of weights, in ordinary rows
  Spread sm_mhz, celsius;               // of the GPU right after each run made in this process
  std::uint64_t gpu_bytes = 0;          // of its memory in use then, at most
  bool equal = true;
  std::string divergence;  // the first: "real-03: token 41"
};

struct BenchTable {
  std::vector<BenchRow> rows;
  std::int64_t n_planned = 0, n_found = 0;
  bool equal = true;
  std::vector<std::string> divergences;      // of every run that differs
  std::vector<BenchThroughput> throughput;   // with --parallel
  std::vector<std::string> claims;           // --null: differences that the figures claim
  std::string not_comparable;                // runs of one prompt had other tasks
  double receipt_ms = 0, receipt_share = 0;  // medians over this invocation's runs
};

// Reads every receipt of the bench's folder. Throws as read_receipt does.
BenchTable bench_table(const BenchRuns& runs, const BenchOptions& options);

// Adds them, and what they say of equality.
void add_throughput(std::vector<BenchThroughput> results, BenchTable& table);

// The table in a format; `plots` adds acceptance by depth and the cost curves to md.
std::string bench_text(const BenchTable& table, const BenchRuns& runs, BenchFormat format,
                       bool plots);

// Seals what was found, as a receipt of kind bench beside the runs. Returns its path.
std::string seal_bench(const BenchTable& table, const BenchRuns& runs, const BenchOptions& options);

}  // namespace bolt
