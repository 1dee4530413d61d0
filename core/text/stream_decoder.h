// Streaming detokenisation: token ids in, whole characters out.
#pragma once

#include <string>
#include <string_view>

#include "core/text/utf8.h"

namespace bolt {

class Tokenizer;

// Joins byte strings and hands out whole code points. A character split over pushes is held until
// it is complete; bytes that no later byte can make valid come out at once as U+FFFD, one for each
// longest prefix of a character (as Python's errors="replace" and Rust's from_utf8_lossy do).
// What all pushes and finish() return, joined, equals lossy_utf8 of the joined bytes. At most three
// bytes are ever held.
class CharacterStream {
 public:
  // Appends to `out` what is now complete.
  void push(std::string_view bytes, std::string& out);
  // Appends U+FFFD if a character was left open; then starts afresh.
  void finish(std::string& out);

 private:
  Utf8State state_;
  char held_[4] = {};
  int n_held_ = 0;
};

// The text of a reply, id by id. An id's text is its bytes; a special token's is its content, so
// that nothing the model says is lost. The stop id that ends a reply is left out by the caller.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  std::string push(int id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  CharacterStream characters_;
};

}  // namespace bolt
