// Cutting text into pre-tokens with the pattern of tokenizer.json, through PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace bolt {

// One compiled pattern; immutable, shared by threads.
class PreTokenizer {
 public:
  // `pattern` as tokenizer.json writes it. Two are known (Llama 3's and Mistral's); any other
  // throws Error(input) that starts with `name`, since another regex engine may read it otherwise.
  PreTokenizer(std::string_view pattern, const std::string& name);
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Walks one text, which must be UTF-8 and outlive the cursor. What the pattern leaves out
  // between two matches is a piece of its own ("Isolated").
  class Cursor {
   public:
    Cursor(const PreTokenizer& pre_tokenizer, std::string_view text);
    ~Cursor();
    Cursor(const Cursor&) = delete;
    Cursor& operator=(const Cursor&) = delete;
    // Goes on with another text, keeping the buffers.
    void restart(std::string_view text);
    // The next piece, empty at the end.
    std::string_view next();

   private:
    struct Buffers;
    const PreTokenizer* pre_tokenizer_;
    std::unique_ptr<Buffers> buffers_;
    std::string_view text_;
    std::size_t at_ = 0;                           // where the next piece starts
    std::size_t match_start_ = 0, match_end_ = 0;  // a match found past a gap
  };

 private:
  struct Compiled;
  static Compiled compile(std::string_view pattern, const std::string& name);
  const Compiled* compiled_;
};

}  // namespace bolt
