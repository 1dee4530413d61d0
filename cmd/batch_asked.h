// What a line asks for before it is resolved, and the readers that native and OpenAI lines share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmd/batch_line.h"

namespace bolt {

inline constexpr int kLogprobsMax = 20;

struct LineParser::Asked {
  GenerationOptions options;
  std::optional<std::string> prompt = {};
  std::optional<std::vector<Message>> messages = {};
  std::optional<std::vector<int>> prompt_ids = {};
  std::optional<std::string> system;
  bool thinking = true;
  bool own_system = false, own_thinking = false;  // the line's, not the defaults'
  bool raw = false;
  std::string tools = {};  // a JSON array
  bool no_tools = false;   // whatever `tools` says
  bool stream = false, logits_sha256 = false;
  int n_logprobs = -1;
  std::optional<std::int64_t> cell = {};  // of the plan
};

float read_number(const JsonValue& value, float low, float high);
std::vector<std::string> read_stops(const JsonValue& value);
std::vector<int> read_ids(const JsonValue& value, int vocab_size);
std::vector<Message> read_messages(const JsonValue& value);

}  // namespace bolt
