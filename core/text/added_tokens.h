// Added tokens: contents that are cut out of a text before it is pre-tokenised.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bolt {

// As an entry of tokenizer.json's added_tokens.
struct AddedToken {
  int id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for after all tokens that are not
};

// A stretch of text: one added token's, or (id < 0) text that is yet to be tokenised.
struct TextSpan {
  int id = -1;
  std::size_t begin = 0, end = 0;
};

// Finds the leftmost, then longest contents of one set of tokens, as a trie.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  // Appends the spans of text[begin, end), in order; that stretch is all the matcher sees.
  void split(std::string_view text, std::size_t begin, std::size_t end,
             std::vector<TextSpan>& spans) const;

 private:
  struct Node {
    int first_child = -1, next_sibling = -1;
    int token = -1;  // that ends here
    char byte = 0;
  };
  int child(int node, char byte) const;  // -1: none
  // The longest token at the start of `text`, -1 if none.
  int longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // the root first
  bool starts_[256] = {};    // whether a content starts with this byte
};

}  // namespace bolt
