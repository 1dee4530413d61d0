// What is said about a reply besides its text: the done record of --json, the last line on stderr,
// counters, and the live line.
#pragma once

#include <string>

#include "cmd/session.h"
#include "core/base/json.h"

namespace bolt {

// The members of a done record (bolt-run(1)) into an open object:
//   event, text, ids, finish_reason, usage, seed, counters, receipt, timing
void write_done(JsonWriter& json, const Task& task, const Outcome& outcome);

// "42 tokens, first after 21 ms, 135.5 tok/s, 2.80 tokens/pass, receipt PATH"
std::string last_line(const Outcome& outcome);

// Every counter of the reply, one line each, for --verbose and /stats.
std::string counter_lines(const Outcome& outcome);

// "87 tokens  45.1 tok/s  2.31 tokens/pass  68% accepted"; the prompt's progress before the reply.
class LiveLine {
 public:
  explicit LiveLine(std::int64_t n_prompt);
  std::string text(const Progress& progress);

 private:
  std::int64_t n_prompt_;
  std::int64_t start_ns_, first_ns_ = 0;
};

}  // namespace bolt
