// Names decide what is a receipt; contents are not read, so a broken one goes too.
#include "receipts/prune.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "receipts/library.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

bool is_leftover(const std::string& name) {
  return name.starts_with(".bolt-") && name.ends_with(".tmp");
}

}  // namespace

std::int64_t parse_age(const std::string& text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const std::string unit(end, text.data() + text.size());
  const std::int64_t seconds = unit == "s"   ? 1
                               : unit == "m" ? 60
                               : unit == "h" ? 3600
                               : unit == "d" ? 86400
                               : unit == "w" ? 604800
                                             : 0;
  if (error != std::errc() || n < 0 || n > 1000000 || seconds == 0) {
    throw Failure(Status::usage, "--older-than: expected a number and s, m, h, d or w, as in 30d");
  }
  return n * seconds;
}

Pruned prune(const std::string& folder, std::int64_t older_than_s, bool dry_run) {
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  if (error) throw Failure(Status::unmet, folder + ": cannot list: " + error.message());
  Pruned result;
  const std::int64_t now = std::time(nullptr);
  std::vector<std::string> names;
  for (; at != std::filesystem::directory_iterator(); at.increment(error)) {
    if (error) throw Failure(Status::fault, folder + ": cannot list: " + error.message());
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (!is_receipt_name(name) && !is_pack_name(name) && !is_leftover(name)) continue;
    std::string path = folder;
    path.append("/").append(name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (now - info.st_mtime <= older_than_s) {
      ++result.kept;
      continue;
    }
    if (!dry_run && ::unlink(path.c_str()) != 0) {
      throw Failure(Status::fault, path + ": cannot remove: " + std::strerror(errno));
    }
    result.names.push_back(path);
    result.bytes += static_cast<std::uint64_t>(info.st_size);
  }
  return result;
}

}  // namespace bolt::receipts
