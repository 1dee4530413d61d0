#include "core/text/tokenizer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <random>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

const std::string kTestdata = BOLT_SOURCE_DIR "/testdata/";

std::unique_ptr<Tokenizer> load(const std::string& name) {
  return Tokenizer::from_json(read_file(kTestdata + name), name);
}

std::vector<int> ids_of(const JsonValue& array) {
  std::vector<int> out;
  for (const JsonValue& item : array.items()) out.push_back(static_cast<int>(item.integer()));
  return out;
}

// The message of the Error that `body` throws, empty if it throws none.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    CHECK(e.code == Exit::input);
    return e.what();
  }
  return {};
}

// The smallest tokenizer.json: 256 bytes, no merges. `edit` replaces one piece of the text.
std::string tiny_json(const std::string& from = {}, const std::string& to = {}) {
  std::string vocab;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string written;
    append_utf8(static_cast<char32_t>(prints ? byte : next++), written);
    vocab += (byte > 0 ? ", " : "") + json_quote(written) + ": " + std::to_string(byte);
  }
  std::string json = R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 256, "content": "<x>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
       "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
              "byte_fallback": false, "ignore_merges": false, "vocab": {)" +
                     vocab + R"(}, "merges": []}})";
  if (!from.empty()) {
    const std::size_t at = json.find(from);
    REQUIRE(at != json.npos);
    json.replace(at, from.size(), to);
  }
  return json;
}

TEST_CASE("tokenizer: ids are those of the tokenizers library (cases 29, 30)") {
  const JsonDocument goldens = JsonDocument::load(kTestdata + "text/tokens.json");
  int n_cases = 0;
  for (const JsonValue& group : goldens.root().items()) {
    const std::string name(group.at("tokenizer").string());
    const auto tokenizer = load(name);
    for (const JsonValue& golden : group.at("cases").items()) {
      const std::string text(golden.at("text").string());
      CHECK_MESSAGE(tokenizer->encode(text, false) == ids_of(golden.at("ids")), name, ": ",
                    golden.at("case").string());
      CHECK_MESSAGE(tokenizer->encode(text, true) == ids_of(golden.at("with_special")), name, ": ",
                    golden.at("case").string());
      std::string back;
      for (const int id : tokenizer->encode(text, false)) back += tokenizer->bytes_of(id);
      if (name != "text/llama3.json") CHECK(back == text);  // its lstrip and rstrip drop spaces
      ++n_cases;
    }
  }
  CHECK(n_cases > 150);
}

TEST_CASE("tokenizer: control: without ignore_merges, or without lstrip, the ids differ") {
  const JsonDocument goldens = JsonDocument::load(kTestdata + "text/tokens.json");
  const std::string json = read_file(kTestdata + "text/llama3.json");
  for (const std::string flag : {"\"ignore_merges\": true", "\"lstrip\": true",
                                 "\"single_word\": true", "\"rstrip\": true"}) {
    std::string wrong = json;
    std::size_t at = 0;
    while ((at = wrong.find(flag, at)) != wrong.npos) {
      wrong.replace(at, flag.size(), flag.substr(0, flag.find(':')) + ": false");
    }
    REQUIRE(wrong != json);
    const auto tokenizer = Tokenizer::from_json(wrong, "wrong");
    int n_different = 0;
    for (const JsonValue& golden : goldens.root().items()[1].at("cases").items()) {
      if (tokenizer->encode(golden.at("text").string(), false) != ids_of(golden.at("ids"))) {
        ++n_different;
      }
    }
    CHECK_MESSAGE(n_different > 0, flag);
  }
}

TEST_CASE("tokenizer: specials, ids and bytes of the sample") {
  const auto tokenizer = load("sample-model/tokenizer.json");
  CHECK(tokenizer->n_tokens() == 3200);
  CHECK(tokenizer->id_of("<|im_start|>") == 10);
  CHECK(tokenizer->is_special(10));
  CHECK_FALSE(tokenizer->is_special(300));
  CHECK_FALSE(tokenizer->is_special(-1));
  CHECK_FALSE(tokenizer->is_special(3200));
  CHECK(tokenizer->bytes_of(10) == "<|im_start|>");
  CHECK(tokenizer->bytes_of(3200).empty());
  CHECK_FALSE(tokenizer->id_of("no such token").has_value());
  CHECK(tokenizer->prefix_ids().empty());
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    CHECK(tokenizer->id_of({&c, 1}).has_value());
  }
}

// The slow definition of BPE: the lowest rank, leftmost first, one merge at a time.
std::vector<int> merge_slowly(const Tokenizer& tokenizer, const MergeTable& merges,
                              std::string_view piece) {
  std::vector<int> ids;
  for (const char& c : piece) ids.push_back(*tokenizer.id_of({&c, 1}));
  while (true) {
    int best = -1;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const int rank = merges.rank(ids[i], ids[i + 1]);
      if (rank >= 0 && (best < 0 || rank < best)) {
        best = rank;
        at = i;
      }
    }
    if (best < 0) return ids;
    ids[at] = merges.joined(best);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST_CASE("tokenizer: long pieces merge as short ones do") {
  const std::string json = read_file(kTestdata + "sample-model/tokenizer.json");
  const auto tokenizer = Tokenizer::from_json(json, "sample");
  MergeTable merges;
  const JsonDocument file = JsonDocument::parse("sample", json);
  const auto pairs = file.root().at("model").at("merges").items();
  merges.reserve(static_cast<int>(pairs.size()));
  const JsonValue vocab = file.root().at("model").at("vocab");
  for (const JsonValue& pair : pairs) {
    const std::string left(pair.items()[0].string()), right(pair.items()[1].string());
    merges.add(static_cast<int>(vocab.at(left).integer()),
               static_cast<int>(vocab.at(right).integer()),
               static_cast<int>(vocab.at(left + right).integer()));
  }
  std::mt19937 random(3);
  const std::string letters = "etaoinshrdlu";
  for (const std::size_t n : {2u, 3u, 39u, 40u, 41u, 42u, 100u, 700u}) {
    for (int round = 0; round < 20; ++round) {
      std::string piece;
      while (piece.size() < n) piece += letters[random() % (round % 2 == 0 ? 12 : 2)];
      CHECK(tokenizer->encode(piece, false) == merge_slowly(*tokenizer, merges, piece));
    }
  }
}

TEST_CASE("tokenizer: a million equal characters, or a million spaces, take no quadratic time") {
  const auto tokenizer = load("sample-model/tokenizer.json");
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text :
       {std::string(1'000'000, 'a'), std::string(1'000'000, 'A'), std::string(1'000'000, ' ') + "x",
        std::string(1'000'000, '\n'), std::string(1'000'000, '\''), std::string(1'000'000, '<')}) {
    std::string back;
    for (const int id : tokenizer->encode(text, false)) back += tokenizer->bytes_of(id);
    CHECK(back == text);
  }
  // Quadratic would be hours; the bound only has to be below that on a busy machine.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("tokenizer: text that is not UTF-8 is refused with its byte offset (case 36)") {
  const auto tokenizer = load("sample-model/tokenizer.json");
  const std::string line = refusal([&] { tokenizer->encode("ab\xC4\xE3", false); });
  CHECK(line.find("byte 2 of the text, 0xC4") != line.npos);
  CHECK(invalid_utf8_at(line) == kNoOffset);
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF"}) {
    CHECK(refusal([&] { tokenizer->encode(bad, false); }).find("byte 0") != std::string::npos);
  }
}

TEST_CASE("tokenizer: hostile and unsupported files are refused by name (case 45)") {
  REQUIRE(Tokenizer::from_json(tiny_json(), "t")->n_tokens() == 257);
  const auto check = [&](const std::string& from, const std::string& to, const std::string& says) {
    const std::string line = refusal([&] { Tokenizer::from_json(tiny_json(from, to), "t.json"); });
    CHECK_MESSAGE(line.starts_with("t.json: "), line);
    CHECK_MESSAGE(line.find(says) != line.npos, line, " lacks ", says);
  };
  check("\"a\": 97", "\"a\": 2147483648", "id 2147483648, expected one below 2097152");
  check("\"a\": 97", "\"a\": -1", "has no id");
  check("\"a\": 97", "\"a\": 1.5", "has no id");
  check("\"a\": 97", "\"a\": 98", "id 98, which another token has");
  check("\"a\": 97", "\"b\": 97", "declared twice");
  check("\"a\": 97", "\"aa\": 97", "lacks the single byte 0x61");
  check("\"id\": 256", "\"id\": 97", "id 97, expected 256");
  check("\"id\": 256", "\"id\": 300", "id 300, expected 256, the next one");
  check("\"<x>\"", "\"a\"", "has id 256, expected 97");
  check("\"id\": 256", "\"id\": 4000000000", "id 4000000000");
  check("\"content\": \"<x>\"", "\"content\": \"\"", "has no content");
  check("\"merges\": []", "\"merges\": [\"a b\"]", "model.merges[0] needs the token \"ab\"");
  check("\"merges\": []", "\"merges\": [\"ab\"]", "model.merges[0] is not a pair");
  check("\"merges\": []", "\"merges\": [[\"a\", \"b\", \"c\"]]", "model.merges[0] is not a pair");
  check("\"merges\": []", "\"merges\": [7]", "model.merges[0] is not a pair");
  check("\"merges\": []", "\"merges\": [\"a \u20ac\"]", "stands for no byte");
  check("\"BPE\"", "\"Unigram\"", "model \"Unigram\" is not supported");
  check("\"dropout\": null", "\"dropout\": 0.1", "model.dropout is not supported");
  check("\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback");
  check("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "normalizer \"NFC\"");
  check("\\\\p{N}{1,3}", "\\\\p{N}{1,4}", "pattern is not one that bolt knows");
  check("\"Isolated\"", "\"Removed\"", "Split.behavior");
  check("\"invert\": false", "\"invert\": true", "Split.invert");
  check("\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space");
  check("\"use_regex\": false", "\"use_regex\": true", "use_regex");
  check("\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
        "post_processor \"BertProcessing\"");
  check("\"model\"", "\"modell\"", "\"model\" is missing");
  check("{\"version\"", "[\"version\"", "is not a JSON object");
  check("\"added_tokens\": [", "\"added_tokens\": [3, ", "is not an object");
}

}  // namespace
}  // namespace bolt
