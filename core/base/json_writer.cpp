// Writing JSON text.
#include <charconv>
#include <cmath>

#include "core/base/error.h"
#include "core/base/json.h"

namespace bolt {
namespace {

// Bytes of the well-formed UTF-8 sequence at text[i], 0 if there is none; on failure `bad` is the
// length of the maximal ill-formed part (Unicode 3.9, table 3-7).
std::size_t utf8_sequence(std::string_view text, std::size_t i, std::size_t& bad) {
  const auto byte = [&](std::size_t k) {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u;
  };
  const unsigned lead = byte(i);
  bad = 1;
  if (lead < 0x80) return 1;
  std::size_t n = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : 0;
  if (lead >= 0xf0 && lead <= 0xf4) n = 4;
  if (n == 0) return 0;
  unsigned low = 0x80, high = 0xbf;  // of the second byte
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (std::size_t k = 1; k < n; ++k, low = 0x80, high = 0xbf) {
    if (i + k >= text.size() || byte(i + k) < low || byte(i + k) > high) return 0;
    bad = k + 1;
  }
  return n;
}

void append_quoted(std::string& out, std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
      ++i;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
      ++i;
    } else if (c < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
      ++i;
    } else {
      std::size_t bad = 1;
      const std::size_t n = utf8_sequence(text, i, bad);
      if (n == 0)
        out += "\xef\xbf\xbd";
      else
        out.append(text.substr(i, n));
      i += n == 0 ? bad : n;
    }
  }
  out += '"';
}

template <class T>
std::string shortest(T x) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return std::string(buffer, end);
}

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

void JsonWriter::new_line() {
  out_ += '\n';
  out_.append(levels_.size() * static_cast<std::size_t>(indent_), ' ');
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  Level& level = levels_.back();
  if (!level.empty) out_ += indent_ > 0 && level.flat ? ", " : ",";
  level.empty = false;
  if (indent_ > 0 && !level.flat) new_line();
}

JsonWriter& JsonWriter::put(std::string_view text) {
  separate();
  out_ += text;
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  const bool flat = !levels_.empty() && levels_.back().flat;
  levels_.push_back({.close = bracket == '{' ? '}' : ']', .empty = true, .flat = flat});
  return *this;
}

JsonWriter& JsonWriter::begin_array(bool flat) {
  open('[');
  levels_.back().flat |= flat;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  require(!levels_.empty() && levels_.back().close == bracket && !after_key_, "JSON nesting");
  const Level level = levels_.back();
  levels_.pop_back();
  if (indent_ > 0 && !level.flat && !level.empty) new_line();
  out_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  require(!levels_.empty() && levels_.back().close == '}' && !after_key_, "a JSON key's place");
  separate();
  append_quoted(out_, name);
  out_ += indent_ > 0 ? ": " : ":";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_quoted(out_, text);
  return *this;
}

JsonWriter& JsonWriter::value(double x) { return std::isfinite(x) ? put(shortest(x)) : null(); }
JsonWriter& JsonWriter::value(float x) { return std::isfinite(x) ? put(shortest(x)) : null(); }

std::string JsonWriter::take() {
  require(levels_.empty() && !after_key_, "finished JSON");
  std::string text = std::move(out_);
  out_.clear();
  return text;
}

}  // namespace bolt
