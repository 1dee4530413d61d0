#include "core/text/chat.h"

#include "core/base/error.h"
#include "core/base/json.h"

namespace bolt {

struct ChatTemplate::State {
  std::string kind;
};

ChatTemplate::ChatTemplate(const std::string& kind, const std::string& facts)
    : state_(std::make_unique<State>()) {
  (void)facts;
  if (kind.empty()) {
    throw Error(Exit::usage,
                "the package has no chat template that bolt knows; give the whole prompt yourself "
                "with --raw");
  }
  state_->kind = kind;
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

const std::string& ChatTemplate::kind() const { return state_->kind; }
bool ChatTemplate::takes_tools() const { return false; }

std::string ChatTemplate::render(const std::vector<Message>& messages,
                                 const ChatOptions& options) const {
  std::string out;
  const bool has_system = !messages.empty() && messages[0].role == "system";
  out = "<|im_start|>system\n" + (has_system ? messages[0].content : "") + "<|im_end|>\n";
  for (std::size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    out += "<|im_start|>" + m.role + "\n" + (m.role == "assistant" ? "<think></think>" : "") +
           m.content + "<|im_end|>\n";
  }
  if (options.generation_prompt) {
    out += options.thinking ? "<|im_start|>assistant\n<think>\n"
                            : "<|im_start|>assistant\n<think></think>";
  }
  return out;
}

}  // namespace bolt
