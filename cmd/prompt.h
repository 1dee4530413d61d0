// Where `bolt run`'s prompt comes from, and what ids it becomes: a text under the package's chat
// template or raw, or ids as they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmd/session.h"
#include "core/text/chat.h"

namespace bolt {

struct PromptOptions {
  std::optional<std::string> argument, option, file, ids_file;  // PROMPT, -p, -f, --prompt-ids
  std::optional<std::string> system;
  bool raw = false;
  bool think = false, no_think = false;

  bool given() const { return argument || option || file || ids_file; }
  bool thinking() const { return !no_think; }
};

void add_prompt_options(CLI::App& app, PromptOptions& options);

// Error(usage) for more than one prompt, or ids beside what only a text can have.
void check_prompt_options(const PromptOptions& options);

// The prompt's text from wherever it was given; stdin, whole, where nothing was. Bytes as they are:
// no byte order mark is dropped, no line end changed. Empty is Error(usage), not UTF-8
// Error(input).
std::string read_prompt(const PromptOptions& options);

// The ids of --prompt-ids FILE: a JSON array of whole numbers; - is stdin.
std::vector<int> read_prompt_ids(const std::string& path, int vocab_size);

// Fills in the task's prompt. Error(usage) where the package has no known template and raw is off.
void set_prompt(Task& task, const Session& session, const PromptOptions& options);

// The same for a conversation: the template's text of all its turns. `said` are the ids of the
// turns so far, replies as they were sampled; where the template repeats their very text, they
// stay, so that the state they left can be resumed although the tokenizer might cut a reply
// differently.
void set_chat_prompt(Task& task, const Session& session, const std::vector<Message>& messages,
                     bool thinking, const std::vector<int>& said);

}  // namespace bolt
