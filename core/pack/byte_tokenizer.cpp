// Generating tokenizer.json for a vocabulary of bytes.
#include "core/pack/byte_tokenizer.h"

#include <fmt/format.h>

#include <array>

#include "core/base/error.h"
#include "core/base/json.h"

namespace bolt {
namespace {

constexpr int kControls = 20, kBytes = 256;

const char* control_name(int id) {
  static constexpr std::array<const char*, 18> kNames = {"<unk>",
                                                         "<s>",
                                                         "</s>",
                                                         "",
                                                         "",
                                                         "",
                                                         "",
                                                         "",
                                                         "",
                                                         "",
                                                         "<|im_start|>",
                                                         "<|im_end|>",
                                                         "<think>",
                                                         "</think>",
                                                         "<tool_call>",
                                                         "</tool_call>",
                                                         "<tool_response>",
                                                         "</tool_response>"};
  return id < static_cast<int>(kNames.size()) ? kNames[static_cast<std::size_t>(id)] : "";
}

std::string control(int id) {
  const std::string name = control_name(id);
  return name.empty() ? fmt::format("<SPECIAL_{}>", id) : name;
}

// GPT-2's printable stand-in for a byte, as UTF-8: bytes that print stand for themselves, the other
// 68 get the code points from 256 on, in order.
std::string stand_in(int byte) {
  const auto prints = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!prints(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !prints(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

}  // namespace

std::string byte_tokenizer_json(int n_tokens) {
  require(n_tokens >= kByteTokenizerIdsMin, "a vocabulary that holds every byte");
  JsonWriter json(0);
  json.begin_object().member("version", "1.0");
  json.key("truncation").null().key("padding").null();
  json.key("added_tokens").begin_array();
  for (int id = 0; id < kControls; ++id) {
    json.begin_object()
        .member("id", id)
        .member("content", control(id))
        .member("single_word", false);
    json.member("lstrip", false).member("rstrip", false).member("normalized", false);
    json.member("special", true).end_object();
  }
  json.end_array().key("normalizer").null();
  json.key("pre_tokenizer")
      .begin_object()
      .member("type", "Sequence")
      .key("pretokenizers")
      .begin_array();
  json.begin_object().member("type", "Split").key("pattern").begin_object();
  json.member("Regex",
              R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
              R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
              R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  json.end_object().member("behavior", "Isolated").member("invert", false).end_object();
  json.begin_object().member("type", "ByteLevel").member("add_prefix_space", false);
  json.member("trim_offsets", true).member("use_regex", false).end_object();
  json.end_array().end_object();
  json.key("post_processor").null();
  json.key("decoder").begin_object().member("type", "ByteLevel").member("add_prefix_space", true);
  json.member("trim_offsets", true).member("use_regex", true).end_object();
  json.key("model").begin_object().member("type", "BPE");
  json.key("dropout").null().key("unk_token").null().key("continuing_subword_prefix").null();
  json.key("end_of_word_suffix").null().member("fuse_unk", false).member("byte_fallback", false);
  json.member("ignore_merges", false).key("vocab").begin_object();
  for (int id = 0; id < kControls; ++id) json.member(control(id), id);
  for (int byte = 0; byte < kBytes; ++byte) json.member(stand_in(byte), kControls + byte);
  // Without merges none of these comes out of a text, but the model may emit them, so each has
  // bytes of its own: three digits in base 94 of printable characters.
  for (int id = kControls + kBytes; id < n_tokens; ++id) {
    int n = id - kControls - kBytes;
    std::string token = "~~";
    for (int digit = 0; digit < 4; ++digit, n /= 64) token += static_cast<char>('0' + n % 64);
    json.member(token, id);
  }
  json.end_object().key("merges").begin_array().end_array().end_object();
  return json.end_object().take() + "\n";
}

std::string generated_chat_template() {
  return "{#- Generated: the framing of the Nemotron 3 templates, without tools. -#}\n"
         "{%- set thinking = enable_thinking if enable_thinking is defined else true -%}\n"
         "{%- if messages and messages[0].role == \"system\" -%}\n"
         "  {%- set system, turns = messages[0].content, messages[1:] -%}\n"
         "{%- else -%}\n"
         "  {%- set system, turns = \"\", messages -%}\n"
         "{%- endif -%}\n"
         "{{- \"<|im_start|>system\\n\" ~ system ~ \"<|im_end|>\\n\" -}}\n"
         "{%- for turn in turns -%}\n"
         "  {{- \"<|im_start|>\" ~ turn.role ~ \"\\n\" ~ turn.content ~ \"<|im_end|>\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt -%}\n"
         "  {{- \"<|im_start|>assistant\\n\" ~ (\"<think>\\n\" if thinking else "
         "\"<think></think>\") -}}\n"
         "{%- endif -%}\n";
}

}  // namespace bolt
