#include "core/text/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>

#include "core/base/error.h"

namespace bolt {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kMistral =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::size_t kJitStackBytesMax = 8u << 20;

// PCRE2's \s also takes U+180E, which lost the property in Unicode 6.3; Oniguruma's does not.
std::string for_pcre2(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += '\\';
      out += escaped;
    }
  }
  return out;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

}  // namespace

struct PreTokenizer::Compiled {
  std::unique_ptr<pcre2_code, FreePcre2> code;
  bool jit = false;  // false where the system forbids executable memory
};

struct PreTokenizer::Cursor::Buffers {
  std::unique_ptr<pcre2_match_data, FreePcre2> match;
  std::unique_ptr<pcre2_match_context, FreePcre2> context;
  std::unique_ptr<pcre2_jit_stack, FreePcre2> stack;
};

PreTokenizer::Compiled PreTokenizer::compile(std::string_view pattern, const std::string& name) {
  const std::string translated = for_pcre2(pattern);
  Compiled compiled;
  int error = 0;
  PCRE2_SIZE error_at = 0;
  compiled.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                    translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL, &error,
                                    &error_at, nullptr));
  if (!compiled.code) {
    throw Error(Exit::fault, fmt::format("{}: PCRE2 refuses the pre-tokenizer's pattern: {}", name,
                                         pcre2_message(error)));
  }
  compiled.jit = pcre2_jit_compile(compiled.code.get(), PCRE2_JIT_COMPLETE) == 0;
  return compiled;
}

// Each of the two patterns is compiled once a process: that takes as long as reading the tokenizer.
PreTokenizer::PreTokenizer(std::string_view pattern, const std::string& name) {
  if (pattern == kLlama3) {
    static const Compiled llama3 = compile(kLlama3, name);
    compiled_ = &llama3;
  } else if (pattern == kMistral) {
    static const Compiled mistral = compile(kMistral, name);
    compiled_ = &mistral;
  } else {
    throw Error(Exit::input,
                fmt::format("{}: the pre-tokenizer's pattern is not one that bolt knows (Llama 3's "
                            "or Mistral's); this tokenizer is not supported",
                            name));
  }
}

PreTokenizer::Cursor::Cursor(const PreTokenizer& pre_tokenizer, std::string_view text)
    : pre_tokenizer_(&pre_tokenizer), buffers_(std::make_unique<Buffers>()), text_(text) {
  buffers_->match.reset(pcre2_match_data_create(1, nullptr));
  buffers_->context.reset(pcre2_match_context_create(nullptr));
  if (!buffers_->match || !buffers_->context) throw std::bad_alloc();
  // No text may fail on a limit: the patterns backtrack over one run at most, in linear time.
  pcre2_set_match_limit(buffers_->context.get(), UINT32_MAX);
  pcre2_set_depth_limit(buffers_->context.get(), UINT32_MAX);
  pcre2_set_heap_limit(buffers_->context.get(), UINT32_MAX);
  if (pre_tokenizer_->compiled_->jit) {
    buffers_->stack.reset(pcre2_jit_stack_create(32u << 10, kJitStackBytesMax, nullptr));
    pcre2_jit_stack_assign(buffers_->context.get(), nullptr, buffers_->stack.get());
  }
}

PreTokenizer::Cursor::~Cursor() = default;

void PreTokenizer::Cursor::restart(std::string_view text) {
  text_ = text;
  at_ = match_start_ = match_end_ = 0;
}

std::string_view PreTokenizer::Cursor::next() {
  if (at_ == text_.size()) return {};
  if (match_end_ <= at_) {  // no match is waiting behind a gap
    const Compiled& compiled = *pre_tokenizer_->compiled_;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (compiled.jit) {
      n = pcre2_jit_match(compiled.code.get(), subject, text_.size(), at_, 0, buffers_->match.get(),
                          buffers_->context.get());
    }
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) {
      n = pcre2_match(compiled.code.get(), subject, text_.size(), at_,
                      PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, buffers_->match.get(),
                      buffers_->context.get());
    }
    if (n == PCRE2_ERROR_NOMATCH) {
      match_start_ = match_end_ = text_.size();
    } else if (n < 0) {
      throw Error(Exit::fault, fmt::format("pre-tokenizing failed at byte {} of {}: {}", at_,
                                           text_.size(), pcre2_message(n)));
    } else {
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(buffers_->match.get());
      match_start_ = span[0];
      match_end_ = span[1];
    }
  }
  const std::size_t start = at_;
  at_ = match_start_ > start ? match_start_ : match_end_;
  return text_.substr(start, at_ - start);
}

}  // namespace bolt
