// Recognising a checkpoint's chat template when it is converted.
#pragma once

#include <string>
#include <string_view>

namespace bolt {

struct TemplateFacts {
  std::string kind;     // v3, v2, or empty: unknown, use only with --raw
  std::string facts;    // JSON object for ChatTemplate, empty if unknown
  std::string problem;  // why it is unknown: one line, empty otherwise
};

// `source` is the text of chat_template.jinja, of tokenizer_config.json's chat_template, or of a
// GGUF's tokenizer.chat_template; `bos_token` and `eos_token` are what it may print by these names.
// v3 is known by <|im_start|> and enable_thinking, v2 by <SPECIAL_10>. One of these kinds that does
// something bolt does not understand is unknown too, and `problem` says what. Never throws for it.
TemplateFacts recognise_template(std::string_view source, std::string_view bos_token = {},
                                 std::string_view eos_token = {});

}  // namespace bolt
