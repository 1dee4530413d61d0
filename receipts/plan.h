// Plans: every run of a comparison listed before the first is made, so that a bad one cannot be
// left out afterwards. A plan is a table (passes x prompts x packages x builds x modes); its cells
// are numbered in that order, the last index running fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "receipts/facts.h"
#include "receipts/file.h"

namespace bolt::receipts {

struct PlanFacts {
  Common common;
  struct NamedBuild {
    std::string name, exe;  // exe: SHA-256 of the executable
  };
  struct Prompt {
    std::string name;
    std::string line;      // the prompt's bytes as they are given to run or serve-stdin
    std::vector<int> ids;  // instead, for prompts that are ids
  };
  std::vector<NamedBuild> builds;
  std::vector<std::string> packages;  // package.sha256 of each
  std::vector<std::string> modes;     // ordinary, k1..k31, auto, copy, mtp
  std::vector<Prompt> prompts;
  std::vector<std::string> passes;  // forward, reversed
  std::int64_t max_new = -1;
  Redaction redaction;
};

Value plan_body(const PlanFacts& facts);

// A run's mode in a plan's words: ordinary, k1..k31 (a fixed depth), auto (the depth rule), or copy
// and mtp, the depth rule over that source alone.
std::string mode_word(const Value& run);

struct Cell {
  std::int64_t number = 0, pass = 0, prompt = 0, package = 0, build = 0, mode = 0;
  std::string order;       // of its pass
  std::int64_t index = 0;  // when it is run: its place in the order of the whole series
};

// A plan's body, ready to be asked. Throws Failure(unmet) if the receipt is no plan or an empty
// one.
class Plan {
 public:
  explicit Plan(const Receipt& receipt);
  std::int64_t n_cells() const;
  Cell cell(std::int64_t number) const;  // Failure(usage) out of range
  // What a run of that cell seals (series.*).
  Series series(std::int64_t number) const;
  // Failure(usage) where runs sealed under `redaction` could not be held against the plan's
  // prompts.
  void check_redaction(const Redaction& redaction) const;
  // Why a run's body does not answer that cell; empty if it does.
  std::string mismatch(const Cell& cell, const Value& run) const;

  const std::string& rid() const { return rid_; }
  const Value& body() const { return body_; }
  std::string table() const;                  // "2 builds x 2 modes x ... = 8 cells", for people
  std::int64_t size(const char* list) const;  // "builds", "packages", "modes", "prompts", "passes"
  std::string build_name(std::int64_t i) const;
  std::string mode(std::int64_t i) const;
  std::string prompt_name(std::int64_t i) const;

 private:
  std::string rid_;
  Value body_;
};

}  // namespace bolt::receipts
