// Reading a checkpoint's config.json, generation_config.json and tokenizer_config.json into
// normalised facts. Every other spelling of a field appears in config.cpp's one table, only there.
#pragma once

#include <string>

#include "core/pack/model_facts.h"
#include "core/pack/package.h"

namespace bolt {

class Tokenizer;

struct CheckpointConfig {
  ModelFacts facts;   // checked (check_facts); draft_pattern as the config declares it, else "*E"
  ModelConfig model;  // without chat facts
  bool draft_declared = false;  // the config itself names an MTP head
  bool has_conv_bias = true;
  bool wrapped = false;  // the text model lies under llm_config or text_config
};

// Throws Error(input) naming the field: unknown model types, biases, sliding windows, other
// activations, sizes out of range. `folder` holds config.json and, as far as there,
// generation_config.json and tokenizer_config.json.
CheckpointConfig read_checkpoint_config(const std::string& folder, const Tokenizer& tokenizer);
// config.json alone: the shape of a model, for packages of generated weights.
CheckpointConfig read_config_file(const std::string& path);

}  // namespace bolt
