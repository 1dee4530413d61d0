// What a file that is not what we wanted looks like, for error lines. Reads no file itself.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace bolt {

// "an HTML page", "a GGUF file", "a git-lfs pointer" and so on from a file's first bytes (16 or
// more help); "" if nothing is recognised.
std::string_view looks_like(std::span<const std::byte> start);

// Why a file name from a listing is not a plain relative path inside its folder, "" if it is one:
// absolute, "..", ".", empty parts, backslashes, control characters.
std::string_view path_fault(std::string_view path);

}  // namespace bolt
