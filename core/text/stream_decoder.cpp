#include "core/text/stream_decoder.h"

#include "core/text/tokenizer.h"

namespace bolt {

void CharacterStream::push(std::string_view bytes, std::string& out) {
  for (std::size_t i = 0; i < bytes.size();) {
    const bool first = state_.between();
    const Utf8State::Step step = state_.take(static_cast<unsigned char>(bytes[i]));
    if (step == Utf8State::Step::refused) {
      out += kReplacement;  // for what was held, or for this byte alone
      n_held_ = 0;
      if (first) ++i;
      continue;
    }
    held_[n_held_++] = bytes[i++];
    if (step == Utf8State::Step::incomplete) continue;
    out.append(held_, static_cast<std::size_t>(n_held_));
    n_held_ = 0;
  }
}

void CharacterStream::finish(std::string& out) {
  if (n_held_ > 0) out += kReplacement;
  n_held_ = 0;
  state_ = {};
}

std::string StreamDecoder::push(int id) {
  std::string out;
  characters_.push(tokenizer_->bytes_of(id), out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  characters_.finish(out);
  return out;
}

}  // namespace bolt
