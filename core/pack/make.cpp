// Generating packages.
#include "core/pack/make.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/bits.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/generated.h"
#include "core/pack/graph_walk.h"
#include "core/pack/package_text.h"
#include "core/pack/package_writer.h"
#include "core/pack/shapes.h"
#include "core/text/template_facts.h"

namespace bolt {
namespace {

// Root mean square of e2m1 codes drawn evenly, and of the block scales that generate() draws.
constexpr float kE2m1Rms = 2.926f, kBlockScaleRms = 0.764f;

void choose_formats(Graph& graph, Format format, std::optional<Format> experts) {
  const bool quantised = format == Format::q8 || format == Format::nvfp4;
  each_weight(graph, [&](const std::string& name, Weight& w) {
    if (w.layout == Layout::plain && w.format == Format::f32) return;
    const bool keeps = w.layout == Layout::plain || name.ends_with(".router") ||
                       (format == Format::nvfp4 && name.starts_with("draft."));
    w.format = keeps && quantised ? Format::bf16 : format;
    if (experts && w.n_matrices > 1 && !name.starts_with("draft.")) w.format = *experts;
  });
}

std::uint64_t seed_of(std::uint64_t seed, const std::string& name) {
  std::uint64_t x = seed;
  for (const char c : name) x = random_bits(x, static_cast<unsigned char>(c));
  return x;
}

// Standard deviation of a spread, which the quantised formats meet with codes drawn evenly.
float deviation(const Spread& spread) { return (spread.high - spread.low) / std::sqrt(12.0f); }

// Fills n values by index from `counter` on, four 16-bit draws to a random word.
template <class Store>
void fill_floats(std::uint64_t seed, std::uint64_t counter, std::size_t n, const Spread& spread,
                 Store store) {
  const float step = (spread.high - spread.low) / 65536.0f;
  for (std::size_t i = 0; i < n; i += 4) {
    std::uint64_t bits = random_bits(seed, counter + i / 4);
    for (std::size_t k = i; k < std::min(n, i + 4); ++k, bits >>= 16) {
      store(k, spread.low + step * (static_cast<float>(bits & 0xffff) + 0.5f));
    }
  }
}

void fill_q8_row(std::uint64_t seed, std::uint64_t counter, const Spread& spread, RowCodes& rows,
                 int r) {
  std::int8_t* codes = rows.code_row<std::int8_t>(r);
  for (int k = 0; k < rows.n_cols; k += 8) {
    const std::uint64_t bits = random_bits(seed, counter + static_cast<std::uint64_t>(k) / 8);
    for (int i = 0; i < std::min(8, rows.n_cols - k); ++i) {
      const auto code = static_cast<std::int8_t>(bits >> (8 * i));
      codes[k + i] = code == -128 ? std::int8_t{-127} : code;
    }
  }
  // Codes drawn evenly over +-127 deviate by 127 / sqrt(3); scales vary by a quarter.
  const float scale = deviation(spread) * std::sqrt(3.0f) / 127.0f;
  for (int s = 0; s < rows.n_scales(); ++s) {
    const float vary =
        0.875f + 0.25f * random_unit(seed ^ 0x5ca1e, counter + static_cast<std::uint64_t>(s));
    rows.scale_row<std::uint16_t>(r)[s] = float_to_f16(scale * vary);
  }
}

void fill_nvfp4_row(std::uint64_t seed, std::uint64_t counter, RowCodes& rows, int r) {
  std::uint8_t* codes = rows.code_row<std::uint8_t>(r);
  for (int k = 0; k < rows.n_cols; k += 16) {
    const std::uint64_t bits = random_bits(seed, counter + static_cast<std::uint64_t>(k) / 16);
    for (int i = 0; i < std::min(16, rows.n_cols - k); ++i) {
      const auto code = static_cast<std::uint8_t>(bits >> (4 * i) & 15);
      codes[k + i] = code == 8 ? std::uint8_t{0} : code;  // -0 is stored as 0
    }
  }
  for (int s = 0; s < rows.n_scales(); ++s) {
    // e4m3 codes 0x30 to 0x38: 0.5 to 1.
    rows.scale_row<std::uint8_t>(r)[s] = static_cast<std::uint8_t>(
        0x30 + random_bits(seed ^ 0x5ca1e, counter + static_cast<std::uint64_t>(s)) % 9);
  }
}

void generate(std::uint64_t seed, const RowRun& run, RowCodes& rows) {
  const Weight& w = *run.weight;
  const Spread spread = generated_spread(*run.name, w);
  const std::uint64_t name_seed = seed_of(seed, *run.name);
  for (int r = 0; r < run.n_rows; ++r) {
    const std::uint64_t row =
        static_cast<std::uint64_t>(run.matrix) * static_cast<std::uint64_t>(w.n_rows) +
        static_cast<std::uint64_t>(run.first_row + r);
    const std::uint64_t counter = row * (static_cast<std::uint64_t>(w.n_cols) + 64);
    const auto n = static_cast<std::size_t>(w.n_cols);
    switch (w.format) {
      case Format::f32: {
        float* to = rows.code_row<float>(r);
        fill_floats(name_seed, counter, n, spread, [&](std::size_t k, float x) { to[k] = x; });
        break;
      }
      case Format::bf16: {
        std::uint16_t* to = rows.code_row<std::uint16_t>(r);
        fill_floats(name_seed, counter, n, spread,
                    [&](std::size_t k, float x) { to[k] = float_to_bf16(x); });
        break;
      }
      case Format::f16: {
        std::uint16_t* to = rows.code_row<std::uint16_t>(r);
        fill_floats(name_seed, counter, n, spread,
                    [&](std::size_t k, float x) { to[k] = float_to_f16(x); });
        break;
      }
      case Format::q8:
        fill_q8_row(name_seed, counter, spread, rows, r);
        break;
      case Format::nvfp4:
        fill_nvfp4_row(name_seed, counter, rows, r);
        break;
      default:
        require(false, "a format that packages are generated in");
    }
  }
}

ModelConfig generated_config(const Shape& shape, const std::string& name) {
  ModelConfig model;
  model.name = name;
  model.model_type = "nemotron_h";
  model.vocab_size = model.n_tokens = shape.facts.vocab_size;
  model.context_limit = shape.context_limit;
  model.bos_id = 1;
  model.stop_ids = {2, 11};
  const std::string source = generated_chat_template();
  const TemplateFacts chat = recognise_template(source);
  model.chat_template = chat.kind.empty() ? "none" : chat.kind;
  model.chat_facts = chat.facts;
  model.chat_template_sha256 = sha256_hex(source);
  return model;
}

}  // namespace

std::vector<PackageFile> make_package(const MakeOptions& options) {
  const Shape shape = find_shape(options.shape);
  if (shape.facts.vocab_size < kByteTokenizerIdsMin) {
    throw Error(Exit::usage,
                fmt::format("{}: the vocabulary has {} ids, expected at least {} for the "
                            "generated tokenizer",
                            options.shape, shape.facts.vocab_size, kByteTokenizerIdsMin));
  }
  Graph graph = graph_skeleton(shape.facts);
  choose_formats(graph, options.format, options.experts);
  const int n_threads = options.n_threads > 0 ? options.n_threads : usable_cores();
  PackageWriter writer(options.target, options.force, n_threads);
  writer.place_weights(graph);
  writer.write_weights(
      graph, [&](const RowRun& run, RowCodes& rows) { generate(options.seed, run, rows); },
      [&](const std::string& name, int) {
        // value = e2m1 * e4m3 * global; the gain is 2^7 * global (arithmetic of nvfp4).
        float gain = 0.0f;
        each_weight(graph, [&](const std::string& n, const Weight& w) {
          if (n == name)
            gain = 128.0f * deviation(generated_spread(n, w)) / (kE2m1Rms * kBlockScaleRms);
        });
        return gain;
      },
      {}, options.progress);
  std::string formats(format_name(options.format));
  if (options.experts) formats += fmt::format(" with {} experts", format_name(*options.experts));
  const std::string name = fmt::format(
      "generated-{}-{}", shape.about.empty() ? "config" : shape.name, format_name(options.format));
  const ModelConfig model = generated_config(shape, name);
  writer.write_text("graph.json", "graph", graph_json(graph));
  writer.write_text("config.json", "config", config_json(shape.facts, model));
  writer.write_text("tokenizer.json", "tokenizer", byte_tokenizer_json(shape.facts.vocab_size));
  PackageFacts facts;
  facts.bolt_version = options.bolt_version;
  facts.source = fmt::format("generated weights, no trained model ({}, {}, seed {})",
                             shape.about.empty() ? "config" : shape.name, formats, options.seed);
  JsonWriter json;
  json.begin_object()
      .member("make", shape.about.empty() ? "config" : shape.name)
      .member("format", format_name(options.format))
      .member("experts", format_name(options.experts.value_or(options.format)))
      .member("seed", options.seed);
  facts.options = json.end_object().take();
  return writer.finish(facts);
}

}  // namespace bolt
