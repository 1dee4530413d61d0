// Finding and recognising a checkpoint's chat template.
#include "core/pack/chat_source.h"

#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/file_kind.h"
#include "core/text/template_facts.h"

namespace bolt {
namespace {

// The template's text, "" if there is none. A list of named templates gives the one named default.
std::string template_text(const std::string& folder) {
  const std::string own = folder + "/chat_template.jinja";
  if (path_exists(own)) return read_file(own);
  const std::string config = folder + "/tokenizer_config.json";
  if (!path_exists(config)) return "";
  const JsonDocument document = load_json(config, {.python_numbers = true});
  const auto value = document.root().find_set("chat_template");
  if (!value) return "";
  if (value->is_string()) return std::string(value->string());
  for (const JsonValue& named : value->items()) {
    if (named.at("name").string() == "default") return std::string(named.at("template").string());
  }
  return "";
}

// A token that templates may print by its name: a string, or an object with the content.
std::string named_token(const std::string& folder, const char* name) {
  const std::string config = folder + "/tokenizer_config.json";
  if (!path_exists(config)) return "";
  const JsonDocument document = load_json(config, {.python_numbers = true});
  const auto value = document.root().find_set(name);
  if (!value) return "";
  return std::string(value->is_string() ? value->string() : value->at("content").string());
}

}  // namespace

std::string read_chat_template(const std::string& folder, ModelConfig& model) {
  return use_chat_template(template_text(folder), named_token(folder, "bos_token"),
                           named_token(folder, "eos_token"), model);
}

std::string use_chat_template(const std::string& text, const std::string& bos,
                              const std::string& eos, ModelConfig& model) {
  model.chat_template = "none";
  if (text.empty()) return "";
  model.chat_template_sha256 = sha256_hex(text);
  const TemplateFacts facts = recognise_template(text, bos, eos);
  if (facts.kind.empty()) return facts.problem;
  model.chat_template = facts.kind;
  model.chat_facts = facts.facts;
  return "";
}

}  // namespace bolt
