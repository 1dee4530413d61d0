// Reading ModelOpt's metadata.
#include "core/pack/modelopt.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/pack/file_kind.h"

namespace bolt {
namespace {

constexpr std::string_view kAlgos[] = {"FP8", "NVFP4", "W4A16_NVFP4"};

// Prefixes that say nothing, so that a list written for a wrapper speaks of the text model too.
std::string_view bare(std::string_view name) {
  for (const std::string_view prefix : {"language_model.", "backbone.", "model."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

void check_algo(const JsonValue& value, bool mixed_too) {
  const std::string_view algo = value.string();
  if (std::find(std::begin(kAlgos), std::end(kAlgos), algo) != std::end(kAlgos)) return;
  if (mixed_too && algo == "MIXED_PRECISION") return;
  value.fail(
      "FP8, NVFP4, W4A16_NVFP4 or MIXED_PRECISION; convert the bf16 checkpoint with --quant q8 or "
      "nvfp4 instead");
}

// One of the two homes: hf_quant_config.json's "quantization", or quantization_config.
void read_home(const JsonValue& home, QuantMetadata& metadata) {
  if (const auto algo = home.find_set("quant_algo")) {
    check_algo(*algo, true);
    const std::string found(algo->string());
    if (!metadata.algo.empty() && metadata.algo != found) {
      throw Error(Exit::input, fmt::format("{} is {}, but the checkpoint's other quantisation "
                                           "config says {}",
                                           algo->where(), found, metadata.algo));
    }
    metadata.algo = found;
  }
  const auto check_group = [](const JsonValue& of, std::string_view algo) {
    const auto size = of.find_set("group_size");
    if (size && algo.find("NVFP4") != std::string_view::npos && size->integer() != 16) {
      size->fail("16, NVFP4's");
    }
  };
  check_group(home, metadata.algo);
  for (const char* key : {"exclude_modules", "ignore"}) {
    const auto list = home.find_set(key);
    if (!list) continue;
    for (const JsonValue& item : list->items()) metadata.ignore.emplace_back(bare(item.string()));
  }
  const auto layers = home.find_set("quantized_layers");
  if (!layers) return;
  for (const auto& [name, layer] : layers->members()) {
    const JsonValue algo = layer.at("quant_algo");
    check_algo(algo, false);
    check_group(layer, algo.string());
    metadata.layers[std::string(bare(name))] = algo.string();
  }
}

}  // namespace

std::string QuantMetadata::of(std::string_view module) const {
  const std::string name(bare(module));
  const auto matches = [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  std::string found = "none";
  if (algo == "MIXED_PRECISION") {
    const auto at = layers.find(name);
    if (at != layers.end()) found = at->second;
  } else if (!algo.empty() && std::none_of(ignore.begin(), ignore.end(), matches)) {
    found = algo;
  }
  return found == "W4A16_NVFP4" ? "NVFP4" : found;
}

QuantMetadata read_quant_metadata(const std::string& folder) {
  QuantMetadata metadata;
  const std::string own = folder + "/hf_quant_config.json";
  if (path_exists(own)) {
    const JsonDocument document = load_json(own, {.python_numbers = true});
    read_home(document.root().at("quantization"), metadata);
  }
  const JsonDocument document = load_json(folder + "/config.json", {.python_numbers = true});
  std::vector<JsonValue> objects{document.root()};
  for (const char* inner : {"llm_config", "text_config"}) {
    if (const auto text = document.root().find_set(inner)) objects.push_back(*text);
  }
  for (const JsonValue& object : objects) {
    const auto config = object.find_set("quantization_config");
    if (!config) continue;
    const auto method = config->find_set("quant_method");
    if (method && method->string() != "modelopt") {
      method->fail("\"modelopt\"; checkpoints of other exporters are not read");
    }
    read_home(*config, metadata);
  }
  return metadata;
}

std::vector<std::string> disagreements(const QuantMetadata& metadata, const BoundGraph& bound) {
  std::vector<std::string> names;
  if (metadata.algo.empty()) return names;
  for (const auto& [weight, binding] : bound.bindings) {
    for (const Tensor* tensor : binding.tensors) {
      const std::string_view name = tensor->name;
      if (!is_integer(binding.source) || !name.ends_with(".weight")) continue;
      const std::string_view is = binding.source == Format::fp8 ? "FP8" : "NVFP4";
      if (metadata.of(name.substr(0, name.size() - 7)) != is) names.emplace_back(name);
    }
  }
  return names;
}

}  // namespace bolt
