// Lines of OpenAI's batch files: {"custom_id", "method", "url", "body"}. Fields that bolt cannot
// honour are taken where they ask for nothing, and refused by name where they do.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "cmd/batch_asked.h"
#include "core/base/error.h"

namespace bolt {
namespace {

using Names = std::initializer_list<std::string_view>;

constexpr std::string_view kChatUrl = "/v1/chat/completions", kCompletionsUrl = "/v1/completions";

bool is_one_of(std::string_view key, Names names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

// A field that is only taken at the value that changes nothing.
void only_default(const JsonValue& value, bool is_default, std::string_view what) {
  if (!is_default) value.fail(fmt::format("{}: bolt has nothing else", what));
}

// Fields of both bodies that ask for nothing at their default. False: not one of them.
bool read_idle(std::string_view key, const JsonValue& value) {
  // `model` names what the caller chose with -m; the others are the caller's own notes.
  if (is_one_of(key,
                {"model", "user", "metadata", "store", "safety_identifier", "prompt_cache_key"})) {
    return true;
  }
  if (is_one_of(key, {"presence_penalty", "frequency_penalty"})) {
    only_default(value, value.is_number() && value.number() == 0.0, "0");
  } else if (key == "repetition_penalty") {
    only_default(value, value.is_number() && value.number() == 1.0, "1");
  } else if (is_one_of(key, {"n", "best_of"})) {
    only_default(value, value.is_number() && value.number() == 1.0, "1");
  } else if (is_one_of(key, {"stream", "echo"})) {
    only_default(value, value.is_bool() && !value.boolean(), "false");
  } else if (key == "logit_bias") {
    only_default(value, value.is_object() && value.members().empty(), "{}");
  } else if (key == "service_tier") {
    only_default(value, value.is_string() && is_one_of(value.string(), {"auto", "default"}),
                 "\"auto\"");
  } else {
    return false;
  }
  return true;
}

}  // namespace

void LineParser::read_openai(const JsonValue& root, BatchLine& line, Asked& asked,
                             std::string& param) const {
  // The shape first: whatever else is wrong with the line is said in it.
  line.shape = LineShape::chat;
  param = "url";
  const std::string_view url = root.at("url").string();
  if (url == kCompletionsUrl) {
    line.shape = LineShape::completions;
  } else if (url != kChatUrl) {
    root.at("url").fail(fmt::format("{} or {}", kChatUrl, kCompletionsUrl));
  }
  for (const auto& [key, value] : root.members()) {
    param = key;
    if (!is_one_of(key, {"custom_id", "method", "url", "body"})) {
      throw Error(Exit::input, fmt::format("{} is not a key of a batch line", value.where()));
    }
  }
  param = "custom_id";
  line.id = json_quote(root.at("custom_id").string());
  param = "method";
  if (const auto method = root.find("method"); method && method->string() != "POST") {
    method->fail("\"POST\"");
  }
  param = "body";
  const JsonValue body = root.at("body");
  if (line.shape == LineShape::chat) {
    read_chat_body(body, asked, param);
  } else {
    read_completions_body(body, asked, param);
  }
  param.clear();
}

void LineParser::read_chat_body(const JsonValue& body, Asked& asked, std::string& param) const {
  bool logprobs = false;
  int n_top = -1;
  for (const auto& [key, value] : body.members()) {
    param = key;
    if (value.is_null() || read_idle(key, value) || read_sampling(key, value, asked)) continue;
    if (key == "messages") {
      asked.messages = read_messages(value);
    } else if (is_one_of(key, {"max_tokens", "max_completion_tokens"})) {
      asked.options.max_tokens = value.integer(0);
    } else if (key == "logprobs") {
      logprobs = value.boolean();
    } else if (key == "top_logprobs") {
      n_top = static_cast<int>(value.integer(0, kLogprobsMax));
    } else if (key == "tools") {
      if (!value.is_array()) value.fail("an array of tools");
      if (!value.items().empty()) asked.tools = value.json();
    } else if (key == "tool_choice") {
      only_default(value, value.is_string() && is_one_of(value.string(), {"auto", "none"}),
                   "\"auto\" or \"none\"");
      if (value.string() == "none") asked.no_tools = true;
    } else if (key == "parallel_tool_calls") {
      only_default(value, value.is_bool() && value.boolean(), "true");
    } else if (key == "response_format") {
      const bool is_text = value.is_object() && value.find("type") &&
                           value.at("type").is_string() && value.at("type").string() == "text";
      only_default(value, is_text, "{\"type\": \"text\"}");
    } else if (key == "modalities") {
      const auto items = value.items();
      only_default(value, items.size() == 1 && items[0].is_string() && items[0].string() == "text",
                   "[\"text\"]");
    } else if (key == "chat_template_kwargs") {
      for (const auto& [name, switched] : value.members()) {
        param = "chat_template_kwargs." + std::string(name);
        if (name != "enable_thinking") switched.fail("enable_thinking alone");
        asked.thinking = switched.boolean();
      }
    } else {
      throw Error(Exit::input, fmt::format("{} is not a field that bolt takes", value.where()));
    }
  }
  if (asked.no_tools) asked.tools.clear();
  param = "top_logprobs";
  if (n_top >= 0 && !logprobs) {
    throw Error(Exit::input, "top_logprobs needs \"logprobs\": true");
  }
  if (logprobs) asked.n_logprobs = std::max(n_top, 0);
  param = "messages";
  if (!asked.messages) (void)body.at("messages");
  param.clear();
}

void LineParser::read_completions_body(const JsonValue& body, Asked& asked,
                                       std::string& param) const {
  asked.raw = true;
  asked.system.reset();
  for (const auto& [key, value] : body.members()) {
    param = key;
    if (value.is_null() || read_idle(key, value) || read_sampling(key, value, asked)) continue;
    if (key == "prompt") {
      const auto items = value.is_array() ? value.items() : std::vector<JsonValue>();
      if (value.is_array() && !(items.size() == 1 && items[0].is_string())) {
        if (!items.empty() && !items[0].is_number()) value.fail("one text, or one array of ids");
        asked.prompt_ids = read_ids(value, session_.config().vocab_size);
      } else {
        asked.prompt = value.is_array() ? items[0].string() : value.string();
      }
    } else if (key == "max_tokens") {
      asked.options.max_tokens = value.integer(0);
    } else if (key == "logprobs") {
      asked.n_logprobs = static_cast<int>(value.integer(0, kLogprobsMax));
    } else if (key == "suffix") {
      only_default(value, value.is_string() && value.string().empty(), "\"\"");
    } else {
      throw Error(Exit::input, fmt::format("{} is not a field that bolt takes", value.where()));
    }
  }
  param = "prompt";
  if (!asked.prompt && !asked.prompt_ids) (void)body.at("prompt");
  param.clear();
}

}  // namespace bolt
