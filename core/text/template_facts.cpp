#include "core/text/template_facts.h"

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/text/chat.h"
#include "core/text/jinja_lexer.h"

namespace bolt {
namespace {

// A conversation that every template of these kinds must take, and whose every text must come back.
void try_out(const ChatTemplate& chat, std::string_view marker) {
  const std::vector<Message> messages = {{"system", "first text", {}, {}},
                                         {"user", "second text", {}, {}},
                                         {"assistant", "third text", {}, {}},
                                         {"user", "fourth text", {}, {}}};
  for (const bool thinking : {true, false}) {
    const std::string text = chat.render(messages, {.thinking = thinking});
    std::size_t at = 0;
    for (const Message& message : messages) {
      at = text.find(message.content, at);
      if (at == text.npos) {
        throw Error(Exit::usage, "the chat template loses a " + message.role + "'s text");
      }
    }
    if (text.find(marker) == text.npos) {
      throw Error(Exit::usage, "the chat template does not print " + std::string(marker));
    }
  }
}

}  // namespace

TemplateFacts recognise_template(std::string_view source, std::string_view bos_token,
                                 std::string_view eos_token) {
  const auto has = [&](std::string_view marker) { return source.find(marker) != source.npos; };
  TemplateFacts out;
  try {
    jinja::check_source(source);
  } catch (const Error& e) {
    out.problem = e.what();
    return out;
  }
  std::string_view marker;
  if (has("<|im_start|>") && has("enable_thinking")) {
    out.kind = "v3";
    marker = "<|im_start|>";
  } else if (has("<SPECIAL_10>")) {
    out.kind = "v2";
    marker = "<SPECIAL_10>";
  } else {
    out.problem = "the chat template is neither of the kinds that bolt knows (v3, v2)";
    return out;
  }
  out.facts = JsonWriter()
                  .begin_object()
                  .member("source", std::string(source))
                  .member("bos_token", std::string(bos_token))
                  .member("eos_token", std::string(eos_token))
                  .end_object()
                  .take();
  try {
    try_out(ChatTemplate(out.kind, out.facts), marker);
  } catch (const Error& e) {
    if (e.code == Exit::fault) throw;
    out = {{}, {}, e.what()};
  }
  return out;
}

}  // namespace bolt
