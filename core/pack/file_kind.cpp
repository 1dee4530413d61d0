// Recognising wrong files and unsafe names.
#include "core/pack/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/base/file_map.h"

namespace bolt {

std::string_view looks_like(std::span<const std::byte> start) {
  std::string text(reinterpret_cast<const char*>(start.data()),
                   std::min<std::size_t>(start.size(), 512));
  const auto begins = [&](std::string_view magic) { return text.starts_with(magic); };
  if (begins("GGUF")) return "a GGUF file";
  if (begins("FUGG")) return "a big-endian GGUF file";
  // Old containers of ggml: magic words of either byte order.
  for (const std::string_view magic : {"ggjt", "ggml", "ggmf", "ggla"}) {
    if (begins(magic) || begins(std::string(magic.rbegin(), magic.rend())))
      return "an old ggml file";
  }
  if (begins("version https://git-lfs")) {
    return "a git-lfs pointer (fetch the file itself with `git lfs pull`)";
  }
  if (begins("PK\x03\x04")) return "a zip archive, such as a PyTorch checkpoint";
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5)
    return "a Python pickle";
  if (begins("\x1f\x8b")) return "a gzip archive";
  if (begins("\x28\xb5\x2f\xfd")) return "a zstd archive";
  if (begins("\x89HDF")) return "an HDF5 file";
  if (begins("\x7f"
             "ELF"))
    return "an ELF program";
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  std::string head = text.substr(first, 16);
  std::transform(head.begin(), head.end(), head.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (head.starts_with("<!doctype") || head.starts_with("<html") || head.starts_with("<?xml")) {
    return "an HTML page (a failed download?)";
  }
  if (head.starts_with("{")) return "a JSON text (an error message of a server?)";
  return "";
}

std::string_view path_fault(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.front() == '/') return "is absolute";
  for (const char c : path) {
    if (c == '\\') return "holds a backslash";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "holds a control character";
  }
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty()) return "has an empty part";
    if (part == "." || part == "..") return "leaves its folder";
    begin = end + 1;
  }
  return "";
}

void refuse_other_kinds(const std::string& path, std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] == '{' || text[first] == '[') return;
  const std::string_view kind = looks_like(std::as_bytes(std::span(text)));
  if (!kind.empty()) {
    throw Error(Exit::input, fmt::format("{}: looks like {}, expected JSON", path, kind));
  }
}

JsonDocument load_json(const std::string& path, const JsonOptions& options) {
  const std::string text = read_file(path);
  refuse_other_kinds(path, text);
  return JsonDocument::parse(path, text, options);
}

}  // namespace bolt
