// Stop ids, BOS, sampling defaults and the tokenizer's size.
#include "core/pack/defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/pack/file_kind.h"
#include "core/pack/model_facts.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

constexpr JsonOptions kPythonJson{.python_numbers = true};

void add_stop_id(int id, ModelConfig& model) {
  const auto at = std::lower_bound(model.stop_ids.begin(), model.stop_ids.end(), id);
  if (at == model.stop_ids.end() || *at != id) model.stop_ids.insert(at, id);
}

int read_id(const JsonValue& value) {
  return static_cast<int>(value.integer(0, kVocabularyMax - 1));
}

float read_fraction(const JsonValue& value) {
  const double x = value.number();
  if (!(x >= 0.0 && x <= 1.0)) value.fail("a number from 0 to 1");
  return static_cast<float>(x);
}

void read_generation_config(const JsonValue& config, ModelConfig& model) {
  read_token_ids(config, model);
  if (const auto sample = config.find_set("do_sample")) model.do_sample = sample->boolean();
  if (const auto t = config.find_set("temperature")) {
    const double x = t->number();
    if (!(x >= 0.0 && x <= 1e4)) t->fail("a number from 0 to 10000");
    model.temperature = static_cast<float>(x);
  }
  if (const auto k = config.find_set("top_k"))
    model.top_k = static_cast<int>(k->integer(-1, kVocabularyMax));
  if (const auto p = config.find_set("top_p")) model.top_p = read_fraction(*p);
  if (const auto p = config.find_set("min_p")) model.min_p = read_fraction(*p);
}

// A token of tokenizer_config.json: its text, or an object with a "content".
std::string token_text(const JsonValue& config, std::string_view key) {
  const auto token = config.find_set(key);
  if (!token) return "";
  return std::string(token->is_object() ? token->at("content").string() : token->string());
}

}  // namespace

void read_token_ids(const JsonValue& config, ModelConfig& model) {
  if (const auto bos = config.find_set("bos_token_id")) model.bos_id = read_id(*bos);
  const auto eos = config.find_set("eos_token_id");
  if (!eos) return;
  if (eos->is_array()) {
    for (const JsonValue& id : eos->items()) add_stop_id(read_id(id), model);
  } else {
    add_stop_id(read_id(*eos), model);
  }
}

void read_defaults(const std::string& folder, const Tokenizer& tokenizer, ModelConfig& model) {
  if (path_exists(folder + "/generation_config.json")) {
    read_generation_config(load_json(folder + "/generation_config.json", kPythonJson).root(),
                           model);
  }
  std::string bos, eos;
  if (path_exists(folder + "/tokenizer_config.json")) {
    const JsonDocument document = load_json(folder + "/tokenizer_config.json", kPythonJson);
    bos = token_text(document.root(), "bos_token");
    eos = token_text(document.root(), "eos_token");
    if (const auto add = document.root().find_set("add_bos_token")) model.add_bos = add->boolean();
  }
  model.n_tokens = tokenizer.n_tokens();
  if (model.n_tokens > model.vocab_size) {
    throw Error(Exit::input,
                fmt::format("{}/tokenizer.json: has id {}, but config.json's vocab_size is {}; the "
                            "model has no row for it",
                            folder, model.n_tokens - 1, model.vocab_size));
  }
  if (model.bos_id < 0 && !bos.empty()) model.bos_id = tokenizer.id_of(bos).value_or(-1);
  if (const auto id = eos.empty() ? std::nullopt : tokenizer.id_of(eos)) add_stop_id(*id, model);
  // The post-processor has the last word: what it puts before a text is what the model saw.
  if (!tokenizer.prefix_ids().empty()) {
    model.bos_id = tokenizer.prefix_ids().front();
    model.add_bos = true;
  }
  if (model.bos_id < 0) model.add_bos = false;
  for (const int id : model.stop_ids) {
    if (id >= model.vocab_size) {
      throw Error(Exit::input, fmt::format("{}: stop id {} is outside the vocabulary of {} ids",
                                           folder, id, model.vocab_size));
    }
  }
  if (model.bos_id >= model.vocab_size) {
    throw Error(Exit::input, fmt::format("{}: BOS id {} is outside the vocabulary of {} ids",
                                         folder, model.bos_id, model.vocab_size));
  }
}

}  // namespace bolt
