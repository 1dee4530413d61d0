// Lines are read leniently: a prompt set made for another engine has members that bench has no use
// for.
#include "cmd/bench_prompts.h"

#include <fmt/format.h>

#include <climits>

#include "cmd/prompt.h"
#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"

namespace bolt {
namespace {

Message message_of(const JsonValue& value) {
  Message message;
  message.role = value.at("role").string();
  if (const auto content = value.find_set("content")) message.content = content->string();
  return message;
}

void read_text(const JsonValue& root, BenchPrompt& prompt) {
  const auto raw = root.find_set("raw");
  if (const auto ids = root.find_set("prompt_ids")) {
    for (const JsonValue& id : ids->items()) {
      prompt.ids.push_back(static_cast<int>(id.integer(0, INT_MAX)));
    }
    if (prompt.ids.empty()) ids->fail("at least one id");
    return;
  }
  if (const auto system = root.find_set("system")) {
    prompt.messages.push_back({"system", std::string(system->string()), {}, {}});
  }
  if (const auto messages = root.find_set("messages")) {
    for (const JsonValue& item : messages->items()) prompt.messages.push_back(message_of(item));
    if (prompt.messages.empty()) messages->fail("at least one message");
    return;
  }
  const std::string text(root.at("prompt").string());
  if (text.empty()) root.at("prompt").fail("some text");
  if (raw && raw->boolean()) {
    prompt.raw_text = text;
  } else {
    prompt.messages.push_back({"user", text, {}, {}});
  }
}

BenchPrompt read_line(const JsonValue& line, bool thinking) {
  BenchPrompt prompt;
  prompt.thinking = thinking;
  for (const char* name : {"id", "custom_id"}) {
    const auto id = line.find_set(name);
    if (id) prompt.name = id->is_string() ? std::string(id->string()) : id->shown();
  }
  const auto body = line.find_set("body");
  const JsonValue root = body ? *body : line;
  read_text(root, prompt);
  // OpenAI's legacy completions have no template.
  if (body && !root.find_set("messages")) {
    prompt.raw_text = prompt.messages.back().content;
    prompt.messages.clear();
  }
  if (const auto think = root.find_set("think")) prompt.thinking = think->boolean();
  if (const auto ignore = root.find_set("ignore_eos")) prompt.ignore_eos = ignore->boolean();
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto n = root.find_set(name)) prompt.max_new = n->integer(0);
  }
  return prompt;
}

}  // namespace

std::vector<BenchPrompt> read_bench_prompts(const std::string& path, bool thinking) {
  const std::string text = read_stream(path);
  std::vector<BenchPrompt> prompts;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const JsonDocument document =
        JsonDocument::parse(fmt::format("{}: line {}", path, number), line);
    prompts.push_back(read_line(document.root(), thinking));
    prompts.back().line = line;
    if (prompts.back().name.empty()) prompts.back().name = fmt::format("#{}", number);
  }
  if (prompts.empty()) throw Error(Exit::unmet, path + ": no prompts: there is nothing to measure");
  return prompts;
}

std::vector<BenchPrompt> synthetic_prompts(const std::vector<std::int64_t>& prompts,
                                           const std::vector<std::int64_t>& replies,
                                           const std::vector<std::int64_t>& depths, int n_vocab) {
  std::vector<BenchPrompt> tests;
  const auto add = [&](const std::string& name, std::int64_t depth, std::int64_t n_prompt,
                       std::int64_t n_reply) {
    BenchPrompt& test = tests.emplace_back();
    test.test = test.name = depth > 0 ? fmt::format("{}@d{}", name, depth) : name;
    test.depth = depth;
    test.max_new = n_reply;
    test.ignore_eos = true;
    for (std::int64_t i = 0; i < depth + n_prompt; ++i) {
      test.ids.push_back(static_cast<int>((i * 7919 + 13 + i * i % 97) % n_vocab));
    }
  };
  for (const std::int64_t depth : depths) {
    for (const std::int64_t n : prompts) {
      if (n > 0) add(fmt::format("pp{}", n), depth, n, 0);
    }
    for (const std::int64_t n : replies) {
      if (n > 0) add(fmt::format("tg{}", n), depth, 1, n);
    }
  }
  if (tests.empty()) throw Error(Exit::usage, "-p and -n: give a length above 0");
  return tests;
}

void set_bench_prompt(Task& task, const Session& session, const BenchPrompt& prompt) {
  task.input = prompt.line;
  task.ignore_eos = task.ignore_eos || prompt.ignore_eos;
  if (prompt.max_new >= 0) task.max_new = prompt.max_new;
  if (!prompt.ids.empty()) {
    task.prompt_ids = prompt.ids;
  } else if (prompt.raw_text) {
    task.prompt_text = *prompt.raw_text;
    task.has_prompt_text = true;
    task.prompt_ids = session.tokenizer().encode(*prompt.raw_text, /*add_special=*/true);
  } else {
    set_chat_prompt(task, session, prompt.messages, prompt.thinking, {});
  }
}

}  // namespace bolt
