// Texts are taken as they are: what a file holds is what the model gets.
#include "cmd/prompt.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cmd/streams.h"
#include "cmd/values.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

constexpr std::size_t kPromptBytesMax = std::size_t{256} << 20;

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    check_interrupt();
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer, static_cast<std::size_t>(n));
      if (text.size() > kPromptBytesMax) {
        throw Error(Exit::input, fmt::format("stdin: is over {} bytes, too large for a prompt",
                                             kPromptBytesMax));
      }
    } else if (errno != EINTR) {
      throw Error(Exit::fault, std::string("stdin: cannot read: ") + std::strerror(errno));
    }
  }
}

Message message(const std::string& role, const std::string& content) {
  Message m;
  m.role = role;
  m.content = content;
  return m;
}

}  // namespace

void add_prompt_options(CLI::App& app, PromptOptions& options) {
  const std::string group = "Prompt";
  const auto add = [&app, &group](const std::string& names, std::optional<std::string>& target,
                                  const std::string& type, const std::string& help) {
    return add_parsed(app, names, type, help,
                      [&target](const std::string&, const std::string& text) { target = text; })
        ->group(group);
  };
  add("PROMPT", options.argument, "TEXT",
      "The prompt; from stdin where none is given and stdin is no terminal");
  add("-p,--prompt", options.option, "TEXT", "The same, as an option");
  add("-f,--file", options.file, "FILE", "The prompt, byte for byte, from a file; - is stdin");
  add("--system", options.system, "TEXT", "System turn before the prompt");
  app.add_flag("--raw", options.raw, "The prompt as it is, without the chat template")
      ->group(group);
  app.add_flag("--think", options.think, "Let the model think first (the default)")->group(group);
  app.add_flag("--no-think", options.no_think, "Close the think block before the reply")
      ->group(group);
  add("--prompt-ids", options.ids_file, "FILE",
      "The prompt as token ids, a JSON array, nothing added; - is stdin");
}

void check_prompt_options(const PromptOptions& options) {
  const int n_prompts = static_cast<int>(options.argument.has_value()) +
                        static_cast<int>(options.option.has_value()) +
                        static_cast<int>(options.file.has_value()) +
                        static_cast<int>(options.ids_file.has_value());
  if (n_prompts > 1) {
    throw Error(Exit::usage, "more than one prompt; give one of PROMPT, -p, -f and --prompt-ids");
  }
  const bool for_text = options.raw || options.think || options.no_think || options.system;
  if (options.ids_file && for_text) {
    throw Error(
        Exit::usage,
        "--prompt-ids takes no --system, --raw, --think or --no-think: ids are used as they "
        "are");
  }
  if (options.think && options.no_think) {
    throw Error(Exit::usage, "--think and --no-think: give one of them");
  }
  if (options.raw && (options.think || options.no_think || options.system)) {
    throw Error(
        Exit::usage,
        "--raw takes no --system, --think or --no-think: those belong to the chat template");
  }
}

std::string read_prompt(const PromptOptions& options) {
  std::string text, from = "the prompt";
  if (options.argument || options.option) {
    text = options.argument ? *options.argument : *options.option;
  } else if (options.file && *options.file != "-") {
    text = read_stream(*options.file, kPromptBytesMax);
    from = *options.file;
  } else {
    text = read_stdin();
    from = "stdin";
  }
  if (text.empty()) throw Error(Exit::usage, from + " is empty; a prompt needs some text");
  if (const std::size_t bad = invalid_utf8_at(text); bad != kNoOffset) {
    throw Error(Exit::input,
                fmt::format("{}: byte {}, 0x{:02X}, is not UTF-8; convert the text to UTF-8", from,
                            bad, static_cast<unsigned char>(text[bad])));
  }
  return text;
}

std::vector<int> read_prompt_ids(const std::string& path, int vocab_size) {
  const JsonDocument document = path == "-" ? JsonDocument::parse("stdin", read_stdin())
                                            : JsonDocument::parse(path, read_stream(path));
  std::vector<int> ids;
  for (const JsonValue& item : document.root().items()) {
    ids.push_back(static_cast<int>(item.integer(0, vocab_size - 1)));
  }
  if (ids.empty())
    throw Error(Exit::usage,
                (path == "-" ? "stdin" : path) + " is empty; a prompt needs at least one id");
  return ids;
}

void set_prompt(Task& task, const Session& session, const PromptOptions& options) {
  if (options.ids_file) {
    task.prompt_ids = read_prompt_ids(*options.ids_file, session.config().vocab_size);
    return;
  }
  const std::string text = options.argument ? *options.argument : read_prompt(options);
  task.input = text;
  if (options.raw) {
    task.prompt_text = text;
    task.has_prompt_text = true;
    task.prompt_ids = session.tokenizer().encode(text, /*add_special=*/true);
    return;
  }
  std::vector<Message> messages;
  if (options.system) messages.push_back(message("system", *options.system));
  messages.push_back(message("user", text));
  set_chat_prompt(task, session, messages, options.thinking(), {});
}

void set_chat_prompt(Task& task, const Session& session, const std::vector<Message>& messages,
                     bool thinking, const std::vector<int>& said) {
  ChatOptions options;
  options.thinking = thinking;
  const ChatTemplate chat(session.config().chat_template, session.config().chat_facts);
  task.prompt_text = chat.render(messages, options);
  task.has_prompt_text = true;
  task.templated = true;
  std::string said_text;
  for (const int id : said) said_text += session.tokenizer().bytes_of(id);
  const bool repeated = !said.empty() && task.prompt_text.starts_with(said_text);
  task.prompt_ids = repeated ? said : std::vector<int>();
  const std::vector<int> rest = session.tokenizer().encode(
      std::string_view(task.prompt_text).substr(repeated ? said_text.size() : 0),
      /*add_special=*/false);
  task.prompt_ids.insert(task.prompt_ids.end(), rest.begin(), rest.end());
}

}  // namespace bolt
