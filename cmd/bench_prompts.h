// What `bolt bench` runs: the prompts of a file, or synthetic lengths in llama-bench's sense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cmd/session.h"
#include "core/text/chat.h"

namespace bolt {

struct BenchPrompt {
  std::string name;
  std::string line;  // as it stands in the file; empty of a synthetic one
  std::vector<Message> messages;
  std::optional<std::string> raw_text;  // instead of messages: no chat template
  std::vector<int> ids;                 // instead of a text
  bool thinking = true;
  bool ignore_eos = false;
  std::int64_t max_new = -1;  // -1: as the command line says
  // Of a synthetic one: its row of the table (pp512, tg128@d1024), and how many of its ids are run
  // before the clock starts.
  std::string test;
  std::int64_t depth = 0;
};

// One JSON object a line: {"prompt" | "messages" | "prompt_ids", "id", "system", "think", "raw",
// "max_tokens"} as serve-stdin takes them, or an OpenAI batch line ("custom_id", "body"). Other
// members are passed over. Error(input) naming the file and the line.
std::vector<BenchPrompt> read_bench_prompts(const std::string& path, bool thinking);

// ppP: a prompt of P ids, no reply. tgN: N tokens after one id. Each at every depth D.
std::vector<BenchPrompt> synthetic_prompts(const std::vector<std::int64_t>& prompts,
                                           const std::vector<std::int64_t>& replies,
                                           const std::vector<std::int64_t>& depths, int n_vocab);

// The prompt's ids under the session's template and tokenizer, into the task.
void set_bench_prompt(Task& task, const Session& session, const BenchPrompt& prompt);

}  // namespace bolt
