#include "core/text/chat.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/text/jinja.h"
#include "core/text/utf8.h"

namespace bolt {

struct ChatTemplate::State {
  std::string kind, bos_token, eos_token;
  jinja::Template source;
};

namespace {

jinja::Value call_value(const ToolCall& call) {
  jinja::Value arguments = jinja::from_json(call.arguments.empty() ? "{}" : call.arguments,
                                            "the arguments of a tool call");
  if (!arguments.is_dict()) {
    throw Error(Exit::usage, fmt::format("the arguments of a tool call are {}, expected an object",
                                         arguments.type_name()));
  }
  jinja::Dict function, out;
  function.set("name", call.name);
  function.set("arguments", std::move(arguments));
  out.set("type", "function");
  out.set("function", std::move(function));
  return out;
}

jinja::Value message_value(const Message& message) {
  jinja::Dict out;
  out.set("role", message.role);
  out.set("content", message.content);
  if (!message.reasoning.empty()) out.set("reasoning_content", message.reasoning);
  if (!message.tool_calls.empty()) {
    jinja::List calls;
    for (const ToolCall& call : message.tool_calls) calls.push_back(call_value(call));
    out.set("tool_calls", std::move(calls));
  }
  return out;
}

void check_utf8(const std::string& text, const char* what) {
  const std::size_t bad = invalid_utf8_at(text);
  if (bad == kNoOffset) return;
  throw Error(Exit::input, fmt::format("byte {} of {}, 0x{:02X}, is not UTF-8", bad, what,
                                       static_cast<unsigned char>(text[bad])));
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& kind, const std::string& facts) {
  if (kind.empty() || kind == "none") {
    throw Error(Exit::usage,
                "the package has no chat template that bolt knows; give the whole prompt yourself "
                "with --raw");
  }
  const JsonDocument document = JsonDocument::parse("chat_facts", facts);
  const JsonValue root = document.root();
  const auto text = [&](std::string_view key) {
    const auto value = root.find_set(key);
    return value ? std::string(value->string()) : std::string();
  };
  state_ = std::make_unique<State>(State{kind, text("bos_token"), text("eos_token"),
                                         jinja::Template(root.at("source").string())});
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

const std::string& ChatTemplate::kind() const { return state_->kind; }
bool ChatTemplate::takes_tools() const { return state_->source.reads("tools"); }

std::string ChatTemplate::render(const std::vector<Message>& messages,
                                 const ChatOptions& options) const {
  jinja::List turns;
  // v2 has no variable for thinking, only a switch in the text. Given first, it holds until the
  // conversation itself says otherwise; the template takes it out again.
  bool switch_off = !options.thinking && !state_->source.reads("enable_thinking");
  if (switch_off && (messages.empty() || messages[0].role != "system")) {
    turns.push_back(message_value({"system", "/no_think", {}, {}}));
    switch_off = false;
  }
  for (const Message& message : messages) {
    const bool known = message.role == "system" || message.role == "user" ||
                       message.role == "assistant" || message.role == "tool";
    if (!known) {
      throw Error(Exit::usage, fmt::format("a message has the role {}, expected system, user, "
                                           "assistant or tool",
                                           json_quote(message.role)));
    }
    if ((message.role == "tool" || !message.tool_calls.empty()) && !takes_tools()) {
      throw Error(Exit::usage, "tools: the package's chat template has none");
    }
    check_utf8(message.content, "a message");
    check_utf8(message.reasoning, "a message's reasoning");
    for (const ToolCall& call : message.tool_calls) check_utf8(call.name, "a tool call's name");
    if (switch_off) {
      Message first = message;
      first.content = "/no_think\n" + message.content;
      turns.push_back(message_value(first));
      switch_off = false;
    } else {
      turns.push_back(message_value(message));
    }
  }
  // The variables that transformers' apply_chat_template sets.
  jinja::Dict variables;
  variables.set("messages", std::move(turns));
  variables.set("tools", jinja::None{});
  if (!options.tools.empty()) {
    jinja::Value tools = jinja::from_json(options.tools, "tools");
    if (!tools.is_list()) throw Error(Exit::usage, "tools: not an array");
    if (tools.truthy() && !takes_tools()) {
      throw Error(Exit::usage, "tools: the package's chat template has none");
    }
    if (tools.truthy()) variables.set("tools", std::move(tools));
  }
  variables.set("documents", jinja::None{});
  variables.set("add_generation_prompt", options.generation_prompt);
  variables.set("enable_thinking", options.thinking);
  if (!state_->bos_token.empty()) variables.set("bos_token", state_->bos_token);
  if (!state_->eos_token.empty()) variables.set("eos_token", state_->eos_token);
  return state_->source.render(variables);
}

}  // namespace bolt
