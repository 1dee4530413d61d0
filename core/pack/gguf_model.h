// What a GGUF's metadata and tensor names say of a Nemotron-H: sizes, tokenizer, chat template, and
// the names and shapes that the same tensors have in safetensors checkpoints, so that binding.h
// serves both.
#pragma once

#include <string>

#include "core/pack/config.h"
#include "core/pack/gguf.h"

namespace bolt {

// Sizes and ids; gives every tensor of the checkpoint its alias and its shape. Throws Error(input)
// naming the key for architectures, tokenizers and sizes that are not the family's.
CheckpointConfig read_gguf_config(GgufCheckpoint& opened, const Tokenizer& tokenizer);

// The tokenizer as a tokenizer.json.
std::string gguf_tokenizer_json(const GgufMetadata& metadata);

// The template's text ("" if there is none) and the tokens that it may print by name.
struct GgufTemplate {
  std::string text, bos, eos;
};
GgufTemplate gguf_template(const GgufMetadata& metadata);

}  // namespace bolt
