// From a conversation to the prompt's exact text, as the model's own chat template has it. The
// text is then tokenised without BOS: the template holds every control token it wants.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace bolt {

// A call the model made: `arguments` is the text of a JSON object.
struct ToolCall {
  std::string name;
  std::string arguments;
};

struct Message {
  std::string role;                  // system, user, assistant, tool
  std::string content;               // UTF-8
  std::string reasoning;             // an assistant's, without its think tags; empty: none
  std::vector<ToolCall> tool_calls;  // an assistant's
};

struct ChatOptions {
  bool thinking = true;           // open the reply's think block, or close it at once
  bool generation_prompt = true;  // end with the start of the assistant's reply
  std::string tools = {};         // JSON array of tools as OpenAI's API takes them; empty: none
};

// A template that recognise_template (template_facts.h) knew. Immutable; safe to share by threads.
class ChatTemplate {
 public:
  // `kind` (or "none") and `facts` as a package's config holds them (ModelConfig.chat_template,
  // .chat_facts). Throws Error(usage) with a hint to --raw where the package has no known template.
  ChatTemplate(const std::string& kind, const std::string& facts);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  const std::string& kind() const;
  bool takes_tools() const;

  // The whole conversation, every turn anew: past turns may lose their reasoning, as the template
  // says. Throws Error(usage) for what the template has no place for (tools, a role), with its
  // name, and for tool arguments that are not a JSON object.
  std::string render(const std::vector<Message>& messages, const ChatOptions& options) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bolt
