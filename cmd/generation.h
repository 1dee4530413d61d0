// The options that say what a reply is: how long, how sampled, where it stops; and where drafts
// come from, which changes nothing but its speed. What is not given is the package's default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/engine/engine.h"
#include "core/pack/package.h"

namespace CLI {
class App;
}

namespace bolt {

// Below this, dividing ordinary logits by the temperature would overflow float32.
inline constexpr float kTemperatureMin = 1e-6f;
inline constexpr std::size_t kStopTextBytesMax = 4096;
inline constexpr std::size_t kStopTextsMax = 64;

struct GenerationOptions {
  std::optional<std::int64_t> max_tokens;  // -1 or none: until a stop or the context's end
  std::optional<std::uint64_t> seed;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int> top_k;
  std::vector<std::string> stop_texts;
  bool ignore_eos = false;
  DraftOptions draft;
};

void add_generation_options(CLI::App& app, GenerationOptions& options);

// Every value resolved: given, else the package's generation defaults, else greedy. Sampling
// without a seed draws one from the kernel. position and n_vocab are the engine's to fill in.
SampleSpec resolve_sampling(const GenerationOptions& given, const ModelConfig& config);

// The options given that change nothing, because the reply is greedy; empty when there are none.
std::string ineffective_options(const GenerationOptions& given, const SampleSpec& resolved);

// The effective chain in the order it is applied:
//   greedy
//   temperature 0.8, top-k 40, top-p 0.95, draw philox4x32-10 seed 7
std::string sampler_chain(const SampleSpec& spec);

// The source that a JSON string names; refuses others as JsonValue does.
std::optional<DraftOptions::Source> find_draft_source(std::string_view word);
DraftOptions::Source parse_draft_source(const JsonValue& value);
const char* draft_source_name(DraftOptions::Source source);

// Error(usage) where the package or the window cannot do what was asked.
void check_draft(const DraftOptions& draft, const Graph& graph, bool has_block_ops);

}  // namespace bolt
