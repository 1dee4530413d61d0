// The hash cache: one small file for each hashed file, replaced by rename.
#include "core/pack/hash_cache.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "core/base/output.h"
#include "core/base/sha256.h"

namespace bolt {
namespace {

std::string cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg && *xdg == '/') return std::string(xdg) + "/bolt/hashes";
  const char* home = std::getenv("HOME");
  if (home && *home == '/') return std::string(home) + "/.cache/bolt/hashes";
  return "";
}

std::string entry_path(const std::string& folder, const FileFacts& facts) {
  return fmt::format("{}/{:x}-{:x}", folder, facts.device, facts.inode);
}

// The line of an entry up to its hash: all that must still hold.
std::string key_of(const FileFacts& facts) {
  return fmt::format("bolt-hash/1 {} {} {} {} {} ", facts.device, facts.inode, facts.bytes,
                     facts.mtime_ns, facts.ctime_ns);
}

}  // namespace

std::optional<std::string> cached_hash(const FileFacts& facts) noexcept {
  try {
    const std::string folder = cache_folder();
    if (folder.empty() || facts.bytes < kHashCacheBytesMin) return std::nullopt;
    const std::string path = entry_path(folder, facts);
    if (!path_exists(path)) return std::nullopt;
    const std::string line = read_file(path, 1024);
    const std::string key = key_of(facts);
    if (!line.starts_with(key) || line.size() != key.size() + 65 || line.back() != '\n')
      return std::nullopt;
    const std::string hash = line.substr(key.size(), 64);
    if (!is_sha256_hex(hash)) return std::nullopt;
    return hash;
  } catch (...) {
    return std::nullopt;  // a cache that fails only costs time
  }
}

void remember_hash(const FileFacts& facts, const std::string& sha256) noexcept {
  try {
    const std::string folder = cache_folder();
    if (folder.empty() || facts.bytes < kHashCacheBytesMin) return;
    const std::int64_t now =
        std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    constexpr std::int64_t kSettled = 2'000'000'000;
    if (now - facts.ctime_ns < kSettled || now - facts.mtime_ns < kSettled) return;
    std::filesystem::create_directories(folder);
    write_file_atomically(entry_path(folder, facts), key_of(facts) + sha256 + "\n", true, 0600);
  } catch (...) {
    return;  // see above
  }
}

}  // namespace bolt
