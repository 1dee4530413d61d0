// What a file that is not what we wanted looks like, for error lines.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace bolt {

// "an HTML page", "a GGUF file", "a git-lfs pointer" and so on from a file's first bytes (16 or
// more help); "" if nothing is recognised.
std::string_view looks_like(std::span<const std::byte> start);

// Why a file name from a listing is not a plain relative path inside its folder, "" if it is one:
// absolute, "..", ".", empty parts, backslashes, control characters.
std::string_view path_fault(std::string_view path);

// Throws Error(input) where the text of `path`, which should be JSON, is recognisably another kind
// of file. Any other fault is the JSON parser's to find.
void refuse_other_kinds(const std::string& path, std::string_view text);
// JsonDocument::load after that.
JsonDocument load_json(const std::string& path, const JsonOptions& options = {});

}  // namespace bolt
