// Ranges are the sampler's own; the seed comes from getrandom.
#include "cmd/generation.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <limits>

#include "cmd/values.h"
#include "core/pack/graph_walk.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed)) {
    throw Error(Exit::fault, "no random seed from the kernel; give one with --seed");
  }
  return seed;
}

const Names<DraftOptions::Source>& draft_sources() {
  static const Names<DraftOptions::Source> kNames = {
      {"auto", DraftOptions::Source::automatic}, {"mtp", DraftOptions::Source::mtp},
      {"dspark", DraftOptions::Source::dspark},  {"dflash", DraftOptions::Source::dflash},
      {"copy", DraftOptions::Source::copy},      {"off", DraftOptions::Source::off}};
  return kNames;
}

}  // namespace

void add_generation_options(CLI::App& app, GenerationOptions& options) {
  const std::string group = "Reply";
  add_integer(app, "-n,--max-tokens", options.max_tokens, -1,
              std::numeric_limits<std::int64_t>::max(),
              "Most tokens of the reply (until a stop or the context's end)")
      ->group(group);
  add_parsed(app, "-s,--seed", "SEED",
             "Seed of the sampling noise, 64 bits (random; printed and sealed)",
             [&options](const std::string& name, const std::string& text) {
               options.seed = parse_u64(name, text);
             })
      ->group(group);
  add_parsed(app, "--temp", "X", "Temperature; 0 is greedy (the package's default, else 0)",
             [&options](const std::string& name, const std::string& text) {
               const float value = parse_float(name, text, 0.0f, std::numeric_limits<float>::max());
               if (value > 0.0f && value < kTemperatureMin) {
                 throw Error(Exit::usage, fmt::format("{}: {} is neither 0 nor at least {}", name,
                                                      text, kTemperatureMin));
               }
               options.temperature = value;
             })
      ->group(group);
  add_integer(app, "--top-k", options.top_k, -1, std::numeric_limits<int>::max(),
              "Sample among the K likeliest; 0 or -1: all")
      ->group(group);
  add_float(app, "--top-p", options.top_p, 0.0f, 1.0f,
            "Sample among the likeliest of total probability P; 1: all")
      ->group(group);
  add_float(app, "--min-p", options.min_p, 0.0f, 1.0f,
            "Drop tokens below P times the likeliest; 0: none")
      ->group(group);
  app.add_option_function<std::vector<std::string>>(
         "--stop",
         [&options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             if (text.empty() || text.size() > kStopTextBytesMax ||
                 invalid_utf8_at(text) != kNoOffset) {
               throw Error(
                   Exit::usage,
                   fmt::format("--stop: expected 1 to {} bytes of UTF-8, got {}", kStopTextBytesMax,
                               text.empty() ? "an empty text" : "other bytes"));
             }
           }
           if (texts.size() > kStopTextsMax) {
             throw Error(Exit::usage, fmt::format("--stop: {} texts, expected at most {}",
                                                  texts.size(), kStopTextsMax));
           }
           options.stop_texts = texts;
         },
         "End before this text; may be given again")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)  // one text each time: the next word is the prompt
      ->take_all()
      ->group(group);
  app.add_flag("--ignore-eos", options.ignore_eos, "Stop ids are tokens like others")->group(group);
  add_choice(app, "--draft", options.draft.source, draft_sources(),
             "Where drafts come from (auto); the reply is the same")
      ->group(group);
  add_integer(app, "--drafts", options.draft.drafts, 0, kWindowRowsMax - 1,
              "Always draft at most K tokens a pass (as many as pay)")
      ->type_name("K")
      ->group(group);
}

SampleSpec resolve_sampling(const GenerationOptions& given, const ModelConfig& config) {
  SampleSpec spec;
  spec.temperature = given.temperature.value_or(config.do_sample ? config.temperature : 0.0f);
  if (spec.temperature == 0.0f) return spec;
  spec.top_k = std::max(given.top_k.value_or(config.top_k), 0);
  spec.top_p = given.top_p.value_or(config.top_p);
  spec.min_p = given.min_p.value_or(config.min_p);
  spec.seed = given.seed ? *given.seed : random_seed();
  return spec;
}

std::string ineffective_options(const GenerationOptions& given, const SampleSpec& resolved) {
  if (resolved.temperature > 0.0f) return {};
  std::string names;
  const auto name = [&names](bool is_given, const char* option) {
    if (is_given) names += (names.empty() ? "" : ", ") + std::string(option);
  };
  name(given.seed.has_value(), "--seed");
  name(given.top_k.has_value(), "--top-k");
  name(given.top_p.has_value(), "--top-p");
  name(given.min_p.has_value(), "--min-p");
  return names;
}

std::string sampler_chain(const SampleSpec& spec) {
  if (spec.temperature == 0.0f) return "greedy";
  std::string chain = fmt::format("temperature {}", spec.temperature);
  if (spec.top_k > 0) chain += fmt::format(", top-k {}", spec.top_k);
  if (spec.top_p < 1.0f) chain += fmt::format(", top-p {}", spec.top_p);
  if (spec.min_p > 0.0f) chain += fmt::format(", min-p {}", spec.min_p);
  return chain + fmt::format(", draw philox4x32-10 seed {}", spec.seed);
}

std::optional<DraftOptions::Source> find_draft_source(std::string_view word) {
  for (const auto& [name, source] : draft_sources()) {
    if (word == name) return source;
  }
  return std::nullopt;
}

DraftOptions::Source parse_draft_source(const JsonValue& value) {
  if (const auto source = find_draft_source(value.string())) return *source;
  value.fail("one of " + joined_names(draft_sources(), ", "));
}

const char* draft_source_name(DraftOptions::Source source) {
  for (const auto& [name, value] : draft_sources()) {
    if (value == source) return name.data();
  }
  return "off";
}

void check_draft(const DraftOptions& draft, const Graph& graph, bool has_block_ops) {
  if (draft.source == DraftOptions::Source::mtp && !graph.draft) {
    throw Error(Exit::usage,
                "--draft mtp: this package has no draft head; use --draft auto, copy or off");
  }
  const bool is_block =
      draft.source == DraftOptions::Source::dspark || draft.source == DraftOptions::Source::dflash;
  if (!is_block) return;
  const char* const kind = draft_source_name(draft.source);
  const bool is_there = std::any_of(
      graph.drafters.begin(), graph.drafters.end(),
      [&](const BlockDrafter& d) { return std::string_view(kind_name(d.kind)) == kind; });
  if (!is_there) {
    throw Error(Exit::usage,
                fmt::format("--draft {}: this package has no such drafter; `bolt convert DRAFT "
                            "NEW.bolt --drafter-for PACKAGE` adds one, or use --draft auto",
                            kind));
  }
  if (!has_block_ops) {
    throw Error(Exit::usage, fmt::format("--draft {}: separate drafters do not run on this device; "
                                         "use --device cpu, or --draft auto",
                                         kind));
  }
}

}  // namespace bolt
