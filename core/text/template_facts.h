// Recognising a checkpoint's chat template when it is converted.
#pragma once

#include <string>
#include <string_view>

namespace bolt {

struct TemplateFacts {
  std::string kind;   // v3, v2, or empty: unknown, use only with --raw
  std::string facts;  // JSON object for ChatTemplate, empty if unknown
};

// `source` is the text of chat_template.jinja, of tokenizer_config.json's chat_template, or of a
// GGUF's tokenizer.chat_template. v3 is known by <|im_start|> and enable_thinking, v2 by
// <SPECIAL_10>. Never throws for a template it does not know.
TemplateFacts recognise_template(std::string_view source);

}  // namespace bolt
