// A plain search: held text is never longer than the longest stop text and one piece.
#include "cmd/stop_texts.h"

#include <algorithm>
#include <utility>

namespace bolt {
namespace {

// Bytes at the end of `text` that are a proper prefix of `stop`.
std::size_t open_prefix(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string StopTexts::push(std::string_view piece) {
  if (matched_) return {};
  held_ += piece;
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : texts_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (begin != std::string::npos) {
    matched_ = true;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  std::size_t n_held = 0;
  for (const std::string& stop : texts_) n_held = std::max(n_held, open_prefix(held_, stop));
  std::string shown = held_.substr(0, held_.size() - n_held);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopTexts::finish() { return std::exchange(held_, {}); }

}  // namespace bolt
