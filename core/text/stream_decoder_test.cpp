#include "core/text/stream_decoder.h"

#include <doctest/doctest.h>

#include <random>

#include "core/base/file_map.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

std::unique_ptr<Tokenizer> sample() {
  return Tokenizer::from_json(read_file(BOLT_SOURCE_DIR "/testdata/sample-model/tokenizer.json"),
                              "sample");
}

// The pieces that pushing one byte at a time gives, finish's last.
std::vector<std::string> pieces_of(std::string_view bytes) {
  CharacterStream stream;
  std::vector<std::string> out;
  for (const char& byte : bytes) {
    out.emplace_back();
    stream.push({&byte, 1}, out.back());
  }
  out.emplace_back();
  stream.finish(out.back());
  return out;
}

// What a longest prefix of a character is, written another way: by trying every completion.
bool completes(std::string_view prefix) {
  std::string bytes(prefix);
  const std::size_t n = prefix.size();
  if (invalid_utf8_at(bytes) == kNoOffset && n > 0) return true;
  for (const int more : {1, 2, 3}) {
    for (const unsigned char first : {0x80, 0x90, 0xA0, 0xBF}) {
      std::string longer = bytes + static_cast<char>(first);
      longer.append(static_cast<std::size_t>(more - 1), '\x80');
      if (invalid_utf8_at(longer) == kNoOffset) return true;
    }
  }
  return false;
}

std::string lossy_by_definition(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    std::size_t n = 0;  // the longest prefix that can be completed into one character
    for (std::size_t k = 1; k <= 4 && k <= bytes.size() && completes(bytes.substr(0, k)); ++k) {
      n = k;
      if (invalid_utf8_at(bytes.substr(0, k)) == kNoOffset) break;
    }
    const bool whole = n > 0 && invalid_utf8_at(bytes.substr(0, n)) == kNoOffset;
    out += whole ? bytes.substr(0, n) : kReplacement;
    bytes.remove_prefix(n > 0 ? n : 1);
  }
  return out;
}

TEST_CASE("stream decoder: a character split over tokens is held until whole (case 32)") {
  CHECK(pieces_of("\xF0\x9F\x98\x80") ==
        std::vector<std::string>{"", "", "", "\xF0\x9F\x98\x80", ""});
  CHECK(pieces_of("\xE4\xB8\xAD!") == std::vector<std::string>{"", "", "\xE4\xB8\xAD", "!", ""});
}

TEST_CASE("stream decoder: bytes that never become valid do not stall (case 33)") {
  CHECK(pieces_of("\xFF\xFE"
                  "A") == std::vector<std::string>{"\uFFFD", "\uFFFD", "A", ""});
  CHECK(pieces_of("\x80\x27") == std::vector<std::string>{"\uFFFD", "'", ""});  // case 35
  // The held start comes out once the next byte refuses it, before that byte.
  CHECK(pieces_of("\xF0\x9F"
                  "A") == std::vector<std::string>{"", "",
                                                   "\uFFFD"
                                                   "A",
                                                   ""});
  CHECK(pieces_of("\xE2\x82") == std::vector<std::string>{"", "", "\uFFFD"});
  // A surrogate and an overlong form: every byte on its own, as Python and Rust do it.
  CHECK(lossy_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(lossy_utf8("\xC0\xAF") == "\uFFFD\uFFFD");
  CHECK(lossy_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST_CASE("stream decoder: streamed text equals buffered text, for random bytes") {
  std::mt19937 random(11);
  // Bytes near the edges of the well-formed ranges come up often.
  const std::string edges =
      "A\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5"
      "\xFF";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    const std::size_t n = random() % 12;
    while (bytes.size() < n) {
      bytes += random() % 2 == 0 ? edges[random() % edges.size()] : static_cast<char>(random());
    }
    std::string streamed;
    for (const std::string& piece : pieces_of(bytes)) {
      streamed += piece;
      CHECK(invalid_utf8_at(piece) == kNoOffset);
    }
    CHECK(streamed == lossy_utf8(bytes));
    CHECK(streamed == lossy_by_definition(bytes));
  }
}

TEST_CASE("stream decoder: control: one U+FFFD for each byte is another text") {
  std::string naive;
  for (const char byte : std::string("\xF0\x9F\x98")) {
    naive +=
        static_cast<unsigned char>(byte) < 0x80 ? std::string(1, byte) : std::string(kReplacement);
  }
  CHECK(naive != lossy_utf8("\xF0\x9F\x98"));
}

TEST_CASE("stream decoder: ids of random tokens; specials are text (case 42)") {
  const auto tokenizer = sample();
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    StreamDecoder decoder(*tokenizer);
    std::string streamed, bytes;
    for (int i = 0; i < 50; ++i) {
      // Every other id is a single byte, so that characters are often cut.
      const char byte = static_cast<char>(random());
      const int id = i % 2 == 0 ? *tokenizer->id_of({&byte, 1}) : static_cast<int>(random() % 3200);
      bytes += tokenizer->bytes_of(id);
      streamed += decoder.push(id);
    }
    streamed += decoder.finish();
    CHECK(streamed == lossy_utf8(bytes));
  }
  StreamDecoder decoder(*tokenizer);
  CHECK(decoder.push(12) + decoder.push(13) == "<think></think>");
}

TEST_CASE("stream decoder: whole texts come back from their ids") {
  const auto tokenizer = sample();
  for (const std::string text :
       {"\U0001F468\u200D\U0001F469\u200D\U0001F467 family", "日本語 текст", "a\n\n b"}) {
    StreamDecoder decoder(*tokenizer);
    std::string streamed;
    for (const int id : tokenizer->encode(text, false)) streamed += decoder.push(id);
    CHECK(streamed + decoder.finish() == text);
  }
}

}  // namespace
}  // namespace bolt
