// Native lines, and what both forms share: sampling, messages, the task that comes of it.
// OpenAI's batch lines are openai_line.cpp's.
#include "cmd/batch_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cmd/batch_asked.h"
#include "core/base/error.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(const std::string& line) { throw Error(Exit::input, line); }

// The first key that the root names twice: what the parser's own refusal is about.
std::string repeated_key(const std::string& bytes) {
  JsonOptions options;
  options.unique_keys = false;
  const JsonDocument document = JsonDocument::parse("", bytes, options);
  if (!document.root().is_object()) return {};
  std::vector<std::string_view> seen;
  for (const auto& [key, value] : document.root().members()) {
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return std::string(key);
    seen.push_back(key);
  }
  return {};
}

// A line's own name: a text or a whole number.
std::string id_text(const JsonValue& value) {
  if (value.is_string() || value.is_null()) return value.json();
  if (!value.is_number()) value.fail("a string or an integer");
  return std::to_string(value.integer());
}

}  // namespace

float read_number(const JsonValue& value, float low, float high) {
  const double x = value.number();
  if (!(x >= static_cast<double>(low) && x <= static_cast<double>(high))) {
    value.fail(high >= std::numeric_limits<float>::max()
                   ? fmt::format("a number of at least {}", low)
                   : fmt::format("a number in [{}, {}]", low, high));
  }
  return static_cast<float>(x);
}

std::vector<std::string> read_stops(const JsonValue& value) {
  std::vector<std::string> texts;
  const auto add = [&texts](const JsonValue& text) {
    texts.emplace_back(text.string());
    if (texts.back().empty() || texts.back().size() > kStopTextBytesMax) {
      text.fail(fmt::format("1 to {} bytes", kStopTextBytesMax));
    }
  };
  if (value.is_string()) {
    add(value);
  } else {
    if (!value.is_array()) value.fail("a string or an array of strings");
    for (const JsonValue& item : value.items()) add(item);
  }
  if (texts.size() > kStopTextsMax) value.fail(fmt::format("at most {} texts", kStopTextsMax));
  return texts;
}

std::vector<int> read_ids(const JsonValue& value, int vocab_size) {
  std::vector<int> ids;
  for (const JsonValue& item : value.items()) {
    ids.push_back(static_cast<int>(item.integer(0, vocab_size - 1)));
  }
  return ids;
}

namespace {

// A string, or an array of text parts, which are joined.
std::string read_content(const JsonValue& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return std::string(value.string());
  if (!value.is_array()) value.fail("a string or an array of text parts");
  std::string text;
  for (const JsonValue& part : value.items()) {
    part.only({"type", "text"});
    if (part.at("type").string() != "text") part.at("type").fail("\"text\": there is no other");
    text += part.at("text").string();
  }
  return text;
}

ToolCall read_tool_call(const JsonValue& value) {
  value.only({"id", "type", "function", "index"});
  const JsonValue function = value.at("function");
  function.only({"name", "arguments"});
  ToolCall call;
  call.name = function.at("name").string();
  if (const auto arguments = function.find_set("arguments")) {
    call.arguments = arguments->is_string() ? std::string(arguments->string()) : arguments->json();
  }
  return call;
}

}  // namespace

std::vector<Message> read_messages(const JsonValue& value) {
  std::vector<Message> messages;
  if (!value.is_array()) value.fail("an array of messages");
  for (const JsonValue& item : value.items()) {
    item.only({"role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id",
               "name", "refusal"});
    Message message;
    message.role = item.at("role").string();
    if (message.role == "developer") message.role = "system";
    if (const auto content = item.find("content")) message.content = read_content(*content);
    for (const char* key : {"reasoning", "reasoning_content"}) {
      if (const auto text = item.find_set(key)) message.reasoning = text->string();
    }
    if (const auto calls = item.find_set("tool_calls")) {
      for (const JsonValue& call : calls->items()) {
        message.tool_calls.push_back(read_tool_call(call));
      }
    }
    messages.push_back(std::move(message));
  }
  if (messages.empty()) value.fail("at least one message");
  return messages;
}

bool is_word_line(std::string_view bytes) {
  try {
    const JsonDocument document = JsonDocument::parse("", bytes);
    return document.root().is_object() && document.root().members().size() == 1 &&
           (document.root().find("cancel") || document.root().find("stats"));
  } catch (const Error&) {
    return false;
  }
}

LineParser::LineParser(const Session& session, BatchDefaults defaults)
    : session_(session), defaults_(std::move(defaults)) {
  try {
    chat_ =
        std::make_unique<ChatTemplate>(session.config().chat_template, session.config().chat_facts);
  } catch (const Error& error) {
    no_chat_ = error.what();
  }
}

LineParser::~LineParser() = default;

std::string LineParser::id_of(const std::string& bytes) {
  try {
    const JsonDocument document = JsonDocument::parse("", bytes);
    for (const char* key : {"id", "custom_id"}) {
      if (const auto id = document.root().find(key)) return id_text(*id);
    }
  } catch (const Error&) {
  }
  return "null";
}

BatchLine LineParser::parse(std::int64_t number, std::string bytes) const {
  BatchLine line;
  line.number = number;
  line.input = std::move(bytes);
  const std::string name = fmt::format("line {}", number);
  if (const std::size_t bad = invalid_utf8_at(line.input); bad != kNoOffset) {
    line.what = LineError{"invalid_utf8",
                          fmt::format("{}: byte {}, 0x{:02X}, is not UTF-8", name, bad,
                                      static_cast<unsigned char>(line.input[bad])),
                          ""};
    return line;
  }
  std::string param;
  std::optional<JsonDocument> document;
  try {
    document = JsonDocument::parse(name, line.input);
  } catch (const Error& error) {
    LineError fault{"invalid_json", error.what(), ""};
    if (fault.message.find("is given twice") != std::string::npos) {
      fault.code = "invalid_request";
      fault.param = repeated_key(line.input);
    }
    line.what = std::move(fault);
    line.id = id_of(line.input);
    return line;
  }
  try {
    read_line(document->root(), line, param);
  } catch (const Error& error) {
    line.what = LineError{"invalid_request", error.what(), param};
  }
  return line;
}

void LineParser::read_line(const JsonValue& root, BatchLine& line, std::string& param) const {
  if (!root.is_object()) root.fail("an object");
  if (const auto id = root.find("id")) {
    param = "id";
    line.id = id_text(*id);
    param.clear();
  }
  if (const auto cancel = root.find("cancel")) {
    root.only({"cancel"});
    param = "cancel";
    if (cancel->is_null()) cancel->fail("a request's id");  // would be every request without one
    line.what = CancelLine{id_text(*cancel)};
    return;
  }
  if (const auto stats = root.find("stats")) {
    root.only({"stats"});
    param = "stats";
    if (!stats->boolean()) stats->fail("true");
    line.what = StatsLine{};
    return;
  }
  Asked asked{
      .options = defaults_.generation, .system = defaults_.system, .thinking = defaults_.thinking};
  if (root.find("custom_id") || root.find("body") || root.find("url")) {
    read_openai(root, line, asked, param);
  } else {
    read_native(root, asked, param);
  }
  line.what = resolve(asked);
}

bool LineParser::read_sampling(std::string_view key, const JsonValue& value, Asked& asked) const {
  GenerationOptions& options = asked.options;
  if (key == "temperature") {
    const float x = read_number(value, 0.0f, std::numeric_limits<float>::max());
    if (x > 0.0f && x < kTemperatureMin) {
      value.fail(fmt::format("0 or at least {}", kTemperatureMin));
    }
    options.temperature = x;
  } else if (key == "top_k") {
    options.top_k = static_cast<int>(value.integer(-1, std::numeric_limits<int>::max()));
  } else if (key == "top_p") {
    options.top_p = read_number(value, 0.0f, 1.0f);
  } else if (key == "min_p") {
    options.min_p = read_number(value, 0.0f, 1.0f);
  } else if (key == "seed") {
    options.seed = value.unsigned_integer();
  } else if (key == "stop") {
    options.stop_texts = read_stops(value);
  } else if (key == "ignore_eos") {
    options.ignore_eos = value.boolean();
  } else {
    return false;
  }
  return true;
}

void LineParser::read_native(const JsonValue& root, Asked& asked, std::string& param) const {
  for (const auto& [key, value] : root.members()) {
    param = key;
    if (key == "id" || value.is_null() || read_sampling(key, value, asked)) continue;
    if (key == "prompt") {
      asked.prompt = value.string();
    } else if (key == "messages") {
      asked.messages = read_messages(value);
    } else if (key == "prompt_ids") {
      if (!value.is_array()) value.fail("an array of ids");
      asked.prompt_ids = read_ids(value, session_.config().vocab_size);
    } else if (key == "system") {
      asked.system = std::string(value.string());
      asked.own_system = true;
    } else if (key == "think") {
      asked.thinking = value.boolean();
      asked.own_thinking = true;
    } else if (key == "raw") {
      asked.raw = value.boolean();
    } else if (key == "tools") {
      if (!value.is_array()) value.fail("an array of tools");
      asked.tools = value.json();
    } else if (key == "max_tokens") {
      asked.options.max_tokens = value.integer(-1, kMaxTokens);
    } else if (key == "draft") {
      asked.options.draft.source = parse_draft_source(value);
    } else if (key == "drafts") {
      asked.options.draft.drafts = static_cast<int>(value.integer(0, kWindowRowsMax - 1));
    } else if (key == "stream") {
      asked.stream = value.boolean();
    } else if (key == "logprobs") {
      // true: the token's own alone.
      if (value.is_bool()) {
        asked.n_logprobs = value.boolean() ? 0 : -1;
      } else {
        asked.n_logprobs = static_cast<int>(value.integer(0, kLogprobsMax));
      }
    } else if (key == "logits_sha256") {
      asked.logits_sha256 = value.boolean();
    } else if (key == "cell") {
      if (!session_.plan()) refuse("cell names a run of a plan, and --plan gave none");
      asked.cell = value.integer(0, session_.plan()->n_cells() - 1);
    } else {
      refuse(fmt::format("{} is not a known key", value.where()));
    }
  }
  param.clear();
}

// From here on a refusal is about the prompt as a whole.
BatchRequest LineParser::resolve(Asked& asked) const {
  const int n_prompts = static_cast<int>(asked.prompt.has_value()) +
                        static_cast<int>(asked.messages.has_value()) +
                        static_cast<int>(asked.prompt_ids.has_value());
  if (n_prompts != 1) {
    refuse(n_prompts == 0
               ? "no prompt: expected one of prompt, messages and prompt_ids"
               : "more than one prompt: expected one of prompt, messages and prompt_ids");
  }
  if (asked.raw && asked.messages) refuse("raw: messages go through the chat template");
  const bool templated = !asked.prompt_ids && !asked.raw;
  if (!templated && (asked.own_system || asked.own_thinking || !asked.tools.empty())) {
    refuse("system, think and tools belong to the chat template, which this prompt goes without");
  }
  BatchRequest request;
  request.stream = asked.stream;
  request.logits_sha256 = asked.logits_sha256;
  request.n_logprobs = asked.n_logprobs;
  request.task = session_.task(asked.options);
  Task& task = request.task;
  task.cell = asked.cell;
  const bool is_empty =
      (asked.prompt && asked.prompt->empty()) || (asked.prompt_ids && asked.prompt_ids->empty());
  if (is_empty) refuse("the prompt is empty; it needs some text");
  if (asked.prompt_ids) {
    task.prompt_ids = std::move(*asked.prompt_ids);
    return request;
  }
  task.has_prompt_text = true;
  if (asked.raw) {
    task.prompt_text = std::move(*asked.prompt);
    task.prompt_ids = session_.tokenizer().encode(task.prompt_text, /*add_special=*/true);
    return request;
  }
  if (!chat_) refuse(no_chat_);
  std::vector<Message> messages;
  if (asked.messages) {
    messages = std::move(*asked.messages);
    if (asked.own_system) refuse("system: messages bring their own system turn");
    if (asked.system && messages.front().role != "system") {
      messages.insert(messages.begin(), Message{"system", *asked.system, {}, {}});
    }
  } else {
    if (asked.system) messages.push_back({"system", *asked.system, {}, {}});
    messages.push_back({"user", *asked.prompt, {}, {}});
  }
  ChatOptions options;
  options.thinking = asked.thinking;
  options.tools = asked.tools;
  task.prompt_text = chat_->render(messages, options);
  task.templated = true;
  task.prompt_ids = session_.tokenizer().encode(task.prompt_text, /*add_special=*/false);
  return request;
}

}  // namespace bolt
