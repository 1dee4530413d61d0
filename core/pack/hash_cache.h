// Remembers the SHA-256 of large files by what the kernel says of them: device, inode, size, and
// times of modification and change in nanoseconds. A write, a rename over the file and a restored
// mtime all change one of these.
#pragma once

#include <optional>
#include <string>

#include "core/base/file_map.h"

namespace bolt {

// Files below this are hashed every time.
inline constexpr std::uint64_t kHashCacheBytesMin = 64ull << 20;

// The hash remembered for exactly these facts. Never throws: a cache that cannot be read is empty.
std::optional<std::string> cached_hash(const FileFacts& facts) noexcept;

// Remembers a hash in $XDG_CACHE_HOME/bolt/hashes (or ~/.cache/bolt/hashes). Does nothing for small
// files and for files that changed within the last two seconds, whose next change might not show in
// their times. Never throws.
void remember_hash(const FileFacts& facts, const std::string& sha256) noexcept;

}  // namespace bolt
