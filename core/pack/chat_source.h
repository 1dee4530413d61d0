// The chat template of a checkpoint: where it lies, its hash, and which kind it is.
#pragma once

#include <string>

#include "core/pack/package.h"

namespace bolt {

// Fills chat_template, chat_template_sha256 and chat_facts from chat_template.jinja, or from
// tokenizer_config.json's chat_template. A checkpoint without one gets kind none, and so does one
// whose template is not understood: then the answer says why, in one line; else it is empty.
std::string read_chat_template(const std::string& folder, ModelConfig& model);
// The same for a template's text, "" for none, and the tokens that it may print by name.
std::string use_chat_template(const std::string& text, const std::string& bos,
                              const std::string& eos, ModelConfig& model);

}  // namespace bolt
