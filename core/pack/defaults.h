// A checkpoint's token ids and generation defaults, from every file that may hold them.
#pragma once

#include <string>

#include "core/base/json.h"
#include "core/pack/package.h"

namespace bolt {

class Tokenizer;

// bos_token_id and eos_token_id (a number, a list, or null) of one config object.
void read_token_ids(const JsonValue& config, ModelConfig& model);

// generation_config.json and tokenizer_config.json of a checkpoint's folder, each if it is there,
// and the tokenizer: adds stop ids (the union of all sources), BOS, sampling defaults and the
// number of tokens. Throws Error(input) naming file and field for ids or defaults out of range.
void read_defaults(const std::string& folder, const Tokenizer& tokenizer, ModelConfig& model);

}  // namespace bolt
