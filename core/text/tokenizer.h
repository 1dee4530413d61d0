// The tokenizer: byte-level BPE exactly as the `tokenizers` library does it. Reading tokenizer.json
// is tokenizer_json.cpp; turning ids into text piece by piece is stream_decoder.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/added_tokens.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/vocabulary.h"

namespace bolt {

class Tokenizer {
 public:
  // Reads a tokenizer.json. What it declares is honoured as written, or refused by name: throws
  // Error(input) that starts with `name` (a file's name) and says what is wrong or not supported.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json, const std::string& name);

  // Ids of `text`; with `add_special`, also what the file's post-processor puts around it (BOS).
  // Throws Error(input) naming the first byte of `text` that is not UTF-8. Linear time and memory
  // but for one factor log(piece length); safe to call from several threads.
  std::vector<int> encode(std::string_view text, bool add_special) const;

  // Largest id + 1. The vocabulary that receipts digest is, for each id below it, its bytes and
  // whether it is special; ids that the file leaves out have empty bytes.
  int n_tokens() const { return vocabulary_.n_tokens(); }
  // What the id stands for in a text; an added token's content. Empty for unknown ids.
  std::string_view bytes_of(int id) const { return vocabulary_.bytes_of(id); }
  bool is_special(int id) const;
  // The added token with this content, else the token with these bytes.
  std::optional<int> id_of(std::string_view content) const;
  // What the post-processor puts before and after a text: usually BOS or nothing, and nothing.
  const std::vector<int>& prefix_ids() const { return prefix_ids_; }
  const std::vector<int>& suffix_ids() const { return suffix_ids_; }

 private:
  friend class TokenizerReader;
  class Encoder;
  Tokenizer() = default;

  Vocabulary vocabulary_;
  MergeTable merges_;
  int byte_ids_[256] = {};
  bool ignore_merges_ = false;  // a whole piece that is in the vocabulary is one token
  std::vector<bool> special_;   // by id
  std::unordered_map<std::string, int> added_ids_;                     // by content
  std::unique_ptr<AddedTokenMatcher> first_matcher_, second_matcher_;  // second: `normalized` ones
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::vector<int> prefix_ids_, suffix_ids_;
};

}  // namespace bolt
