// A GGUF's tokenizer written as a tokenizer.json, and its chat template.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/gguf_model.h"
#include "core/pack/model_facts.h"

namespace bolt {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kMistralPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizerName {
  std::string_view name, pattern;
};
// llama.cpp's names; all of them take a whole piece that is a token as one (ignore_merges).
constexpr PreTokenizerName kPreTokenizers[] = {
    {"pixtral", kLlama3Pattern},  {"llama-bpe", kLlama3Pattern}, {"llama3", kLlama3Pattern},
    {"llama-v3", kLlama3Pattern}, {"tekken", kMistralPattern},
};

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };

std::string_view pattern_of(const GgufMetadata& m) {
  const std::string_view name = m.string("tokenizer.ggml.pre");
  for (const PreTokenizerName& known : kPreTokenizers) {
    if (known.name == name) return known.pattern;
  }
  m.fail("tokenizer.ggml.pre",
         fmt::format("is {}, expected pixtral, llama-bpe or tekken", json_quote(name)));
}

std::vector<std::string_view> strings(const GgufMetadata& m, const char* key) {
  const GgufValue* value = m.find(key);
  if (!value || value->type != GgufValue::Type::array ||
      (value->item != GgufValue::Type::string && value->n > 0)) {
    m.fail(key, value ? "is no array of strings" : "is missing");
  }
  return value->strings();
}

std::vector<std::int64_t> token_types(const GgufMetadata& m, std::size_t n) {
  const char* key = "tokenizer.ggml.token_type";
  const GgufValue* value = m.find(key);
  if (!value) return std::vector<std::int64_t>(n, kNormal);
  if (value->type != GgufValue::Type::array || value->item != GgufValue::Type::i32) {
    m.fail(key, "is no array of 32-bit integers");
  }
  return m.integers(key, n, 0, 6);
}

}  // namespace

std::string gguf_tokenizer_json(const GgufMetadata& m) {
  const std::string_view model = m.string("tokenizer.ggml.model");
  if (model != "gpt2") {
    m.fail("tokenizer.ggml.model",
           fmt::format("is {}, expected gpt2, byte-level BPE", json_quote(model)));
  }
  const std::string_view pattern = pattern_of(m);
  std::vector<std::string_view> tokens = strings(m, "tokenizer.ggml.tokens");
  if (tokens.empty() || tokens.size() > static_cast<std::size_t>(kVocabularyMax)) {
    m.fail("tokenizer.ggml.tokens",
           fmt::format("has {} items, expected 1 to {}", tokens.size(), kVocabularyMax));
  }
  const std::vector<std::int64_t> types = token_types(m, tokens.size());
  // Converters pad the vocabulary to the model's rows; those ids are no tokens.
  while (!tokens.empty() && tokens.back() == fmt::format("[PAD{}]", tokens.size() - 1)) {
    tokens.pop_back();
  }
  JsonWriter json;
  json.begin_object().member("version", "1.0").key("truncation").null().key("padding").null();
  json.key("added_tokens").begin_array();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t type = types[i];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    json.begin_object().member("id", i).member("content", tokens[i]).member("single_word", false);
    json.member("lstrip", false).member("rstrip", false).member("normalized", false);
    json.member("special", type != kUserDefined).end_object();
  }
  json.end_array().key("normalizer").null();
  json.key("pre_tokenizer").begin_object().member("type", "Sequence").key("pretokenizers");
  json.begin_array().begin_object().member("type", "Split").key("pattern").begin_object();
  json.member("Regex", pattern).end_object();
  json.member("behavior", "Isolated").member("invert", false).end_object();
  json.begin_object().member("type", "ByteLevel").member("add_prefix_space", false);
  json.member("trim_offsets", true).member("use_regex", false).end_object();
  json.end_array().end_object();
  json.key("post_processor");
  const std::int64_t bos =
      m.integer("tokenizer.ggml.bos_token_id", -1, 0, static_cast<std::int64_t>(tokens.size()) - 1);
  // Where nothing is said, these tokenizers add it, as llama.cpp does.
  if (bos >= 0 && m.boolean("tokenizer.ggml.add_bos_token", true)) {
    const std::string_view content = tokens[static_cast<std::size_t>(bos)];
    json.begin_object().member("type", "TemplateProcessing").key("single").begin_array();
    json.begin_object().key("SpecialToken").begin_object().member("id", content);
    json.member("type_id", 0).end_object().end_object();
    json.begin_object().key("Sequence").begin_object().member("id", "A").member("type_id", 0);
    json.end_object().end_object().end_array();
    json.key("special_tokens").begin_object().key(content).begin_object().member("id", content);
    json.key("ids").begin_array().value(bos).end_array();
    json.key("tokens").begin_array().value(content).end_array();
    json.end_object().end_object().end_object();
  } else {
    json.null();
  }
  json.key("decoder").begin_object().member("type", "ByteLevel").member("add_prefix_space", true);
  json.member("trim_offsets", true).member("use_regex", true).end_object();
  json.key("model").begin_object().member("type", "BPE").key("dropout").null();
  json.key("unk_token").null().key("continuing_subword_prefix").null();
  json.key("end_of_word_suffix").null().member("fuse_unk", false).member("byte_fallback", false);
  json.member("ignore_merges", true).key("vocab").begin_object();
  for (std::size_t i = 0; i < tokens.size(); ++i) json.member(tokens[i], i);
  json.end_object().key("merges").begin_array();
  for (const std::string_view merge : strings(m, "tokenizer.ggml.merges")) json.value(merge);
  json.end_array().end_object();
  return json.end_object().take() + "\n";
}

GgufTemplate gguf_template(const GgufMetadata& m) {
  GgufTemplate found;
  found.text = m.string("tokenizer.chat_template");
  const std::vector<std::string_view> tokens = strings(m, "tokenizer.ggml.tokens");
  const auto token = [&](const char* key) {
    const std::int64_t id = m.integer(key, -1, 0, static_cast<std::int64_t>(tokens.size()) - 1);
    return id < 0 ? std::string() : std::string(tokens[static_cast<std::size_t>(id)]);
  };
  found.bos = token("tokenizer.ggml.bos_token_id");
  found.eos = token("tokenizer.ggml.eos_token_id");
  return found;
}

}  // namespace bolt
