// Stop ids, BOS, sampling defaults and the tokenizer's size.
#include "core/pack/defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/pack/model_facts.h"

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
  if (const auto k = config.find_set("top_k")) model.top_k = static_cast<int>(k->integer(-1, kVocabularyMax));
  if (const auto p = config.find_set("top_p")) model.top_p = read_fraction(*p);
  if (const auto p = config.find_set("min_p")) model.min_p = read_fraction(*p);
}

// What tokenizer.json says of sizes and special ids; its rules are core/text's.
struct TokenTable {
  int n_tokens = 0;
  std::map<std::string, int, std::less<>> added;
  bool post_processor_adds_bos = false;
};

bool starts_with_special(const JsonValue& processor, const std::string& bos) {
  const auto type = processor.find_set("type");
  if (type && type->string() == "Sequence") {
    for (const JsonValue& inner : processor.at("processors").items()) {
      if (starts_with_special(inner, bos)) return true;
    }
    return false;
  }
  const auto single = processor.find_set("single");
  if (!single || !single->is_array()) return false;
  for (const JsonValue& piece : single->items()) {
    if (piece.find("Sequence")) return false;  // the text itself: nothing stands before it
    const auto token = piece.find("SpecialToken");
    if (token && (bos.empty() || token->at("id").string() == bos)) return true;
  }
  return false;
}

TokenTable read_tokenizer(const std::string& path, const std::string& bos) {
  TokenTable table;
  const JsonDocument document = JsonDocument::load(path);
  const JsonValue root = document.root();
  std::int64_t greatest = -1;
  root.at("model").at("vocab").each_member([&](std::string_view, const JsonValue& id) {
    greatest = std::max(greatest, id.integer(0, kVocabularyMax - 1));
  });
  if (const auto added = root.find_set("added_tokens")) {
    for (const JsonValue& token : added->items()) {
      const int id = read_id(token.at("id"));
      greatest = std::max<std::int64_t>(greatest, id);
      table.added.emplace(token.at("content").string(), id);
    }
  }
  table.n_tokens = static_cast<int>(greatest + 1);
  if (const auto processor = root.find_set("post_processor")) {
    table.post_processor_adds_bos = starts_with_special(*processor, bos);
  }
  return table;
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

void read_defaults(const std::string& folder, ModelConfig& model) {
  if (path_exists(folder + "/generation_config.json")) {
    read_generation_config(JsonDocument::load(folder + "/generation_config.json", kPythonJson).root(),
                           model);
  }
  std::string bos, eos;
  if (path_exists(folder + "/tokenizer_config.json")) {
    const JsonDocument document = JsonDocument::load(folder + "/tokenizer_config.json", kPythonJson);
    bos = token_text(document.root(), "bos_token");
    eos = token_text(document.root(), "eos_token");
    if (const auto add = document.root().find_set("add_bos_token")) model.add_bos = add->boolean();
  }
  if (!path_exists(folder + "/tokenizer.json")) return;
  const TokenTable table = read_tokenizer(folder + "/tokenizer.json", bos);
  model.n_tokens = std::min(table.n_tokens, model.vocab_size);
  if (const auto at = table.added.find(bos); at != table.added.end() && model.bos_id < 0) {
    model.bos_id = at->second;
  }
  if (const auto at = table.added.find(eos); at != table.added.end()) add_stop_id(at->second, model);
  if (table.post_processor_adds_bos) model.add_bos = true;
  for (const int id : model.stop_ids) {
    if (id >= model.vocab_size) {
      throw Error(Exit::input, fmt::format("{}: stop id {} is outside the vocabulary of {} ids",
                                           folder, id, model.vocab_size));
    }
  }
  if (model.bos_id >= model.vocab_size) {
    throw Error(Exit::input, fmt::format("{}: BOS id {} is outside the vocabulary of {} ids", folder,
                                         model.bos_id, model.vocab_size));
  }
  if (model.bos_id < 0) model.add_bos = false;
}

}  // namespace bolt
