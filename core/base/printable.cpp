// Escaping and shortening.
#include "core/base/printable.h"

#include "core/base/json.h"

namespace bolt {

std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 100;
  const bool cut = text.size() > kShown;
  if (cut) {
    std::size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  const std::string quoted = json_quote(text);
  return quoted.substr(1, quoted.size() - 2) + (cut ? "..." : "");
}

}  // namespace bolt
