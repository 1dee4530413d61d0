#include "core/text/added_tokens.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/base/error.h"
#include "core/text/utf8.h"

namespace bolt {
namespace {

// Rust's \w: Alphabetic, marks, decimal digits, connector punctuation, Join_Control.
bool is_word_character(std::string_view character) {
  struct Word {
    Word() {
      constexpr char kPattern[] = "\\A[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
      int error = 0;
      PCRE2_SIZE at = 0;
      code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), sizeof kPattern - 1, PCRE2_UTF,
                           &error, &at, nullptr);
      require(code != nullptr, "PCRE2 knows the word characters");
    }
    ~Word() { pcre2_code_free(code); }
    pcre2_code* code = nullptr;
  };
  static const Word word;
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  return pcre2_match(word.code, reinterpret_cast<PCRE2_SPTR>(character.data()), character.size(), 0,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0;
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_character(text.substr(0, 4));
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(text.substr(last_character_at(text)));
}

// Bytes of white space at the end and at the start of `text`.
std::size_t space_at_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t start = last_character_at(text.substr(0, end));
    std::size_t at = start;
    if (!is_white_space(next_code_point(text, at))) break;
    end = start;
  }
  return text.size() - end;
}

std::size_t space_at_start(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    std::size_t at = end;
    if (!is_white_space(next_code_point(text, at))) break;
    end = at;
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t token = 0; token < tokens_.size(); ++token) {
    const std::string& content = tokens_[token].content;
    starts_[static_cast<unsigned char>(content[0])] = true;
    int node = 0;
    for (const char byte : content) {
      int next = child(node, byte);
      if (next < 0) {
        next = static_cast<int>(nodes_.size());
        nodes_.push_back({-1, nodes_[static_cast<std::size_t>(node)].first_child, -1, byte});
        nodes_[static_cast<std::size_t>(node)].first_child = next;
      }
      node = next;
    }
    nodes_[static_cast<std::size_t>(node)].token = static_cast<int>(token);
  }
}

int AddedTokenMatcher::child(int node, char byte) const {
  int next = nodes_[static_cast<std::size_t>(node)].first_child;
  while (next >= 0 && nodes_[static_cast<std::size_t>(next)].byte != byte) {
    next = nodes_[static_cast<std::size_t>(next)].next_sibling;
  }
  return next;
}

int AddedTokenMatcher::longest_at(std::string_view text) const {
  int longest = -1, node = 0;
  for (const char byte : text) {
    node = child(node, byte);
    if (node < 0) break;
    if (nodes_[static_cast<std::size_t>(node)].token >= 0) {
      longest = nodes_[static_cast<std::size_t>(node)].token;
    }
  }
  return longest;
}

// The order of these steps is the `tokenizers` library's: a match that single_word turns down still
// uses up its bytes, and lstrip stops at what the match before has taken.
void AddedTokenMatcher::split(std::string_view whole, std::size_t begin, std::size_t end,
                              std::vector<TextSpan>& spans) const {
  const std::string_view text = whole.substr(begin, end - begin);
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const int found = longest_at(text.substr(at));
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found)];
    std::size_t start = at, stop = at + token.content.size();
    at = stop;
    if (token.single_word &&
        (ends_with_word(text.substr(0, start)) || starts_with_word(text.substr(stop)))) {
      continue;
    }
    if (token.lstrip) start = std::max(start - space_at_end(text.substr(0, start)), done);
    if (token.rstrip) stop += space_at_start(text.substr(stop));
    if (done < start) spans.push_back({-1, begin + done, begin + start});
    spans.push_back({token.id, begin + start, begin + stop});
    done = stop;
  }
  if (done < text.size()) spans.push_back({-1, begin + done, begin + text.size()});
}

}  // namespace bolt
