// A file gets its name once all of it is written, the seal last, so a killed process leaves a whole
// receipt or none. It is on the disk with its name when the path is told; a machine that dies
// before that may leave a torn file, which no verb takes for a receipt.
#include "receipts/write.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "receipts/attachments.h"
#include "receipts/body.h"
#include "receipts/digest.h"
#include "receipts/fields.h"
#include "receipts/file.h"
#include "receipts/library.h"
#include "receipts/seal.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

[[noreturn]] void fault(const std::string& path, const char* doing, int error) {
  throw Failure(Status::fault, fmt::format("{}: cannot {}: {}", path, doing, std::strerror(error)));
}

void make_folder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) fault(path, "use as a folder", ENOTDIR);
    return;
  }
  if (path.find('/', 1) != std::string::npos) make_folder(folder_of(path));
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fault(path, "make the folder", errno);
}

[[noreturn]] void taken(const std::string& path) {
  throw Failure(Status::usage,
                path + ": there already, and a receipt is never overwritten; name another file");
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      fault(path, "write the receipt", errno);
    }
  }
}

// Names survive a crash, too, where the file system can sync folders.
void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

// Owns the temporary file until it has its name.
class Temporary {
 public:
  explicit Temporary(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (fd_ < 0) fault(path, "make", errno);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void fill(std::string_view bytes) { write_all(fd_, bytes, path_); }

  // One flush of the disk does for both, bytes and name: ext4, XFS, Btrfs and F2FS commit a new
  // name with the file that has it. A flush costs more than all else that a receipt takes.
  void name(const std::string& to, bool replace) {
    if (replace) {  // what is there must not be lost to a torn file
      sync();
      if (::rename(path_.c_str(), to.c_str()) != 0) fault(to, "name the receipt", errno);
      sync_folder(folder_of(to));
      path_.clear();
    } else {
      take_name(to);
      path_ = to;  // a file that cannot be synced goes again
      sync();
      path_.clear();
    }
  }

 private:
  void sync() {
    if (::fsync(fd_) != 0) fault(path_, "sync", errno);
  }

  void take_name(const std::string& to) {
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) {
      if (errno == EEXIST) taken(to);
      if (errno != EINVAL && errno != ENOSYS) fault(to, "name the receipt", errno);
      if (::link(path_.c_str(), to.c_str()) != 0) {  // a file system without the flag
        if (errno == EEXIST) taken(to);
        fault(to, "name the receipt", errno);
      }
      ::unlink(path_.c_str());
    }
  }

  std::string path_;
  int fd_;
};

bool is_special(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

void write_special(const std::string& path, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fault(path, "open", errno);
  try {
    write_all(fd, bytes, path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) fault(path, "close", errno);
}

}  // namespace

std::string random_run_id() {
  std::array<std::uint8_t, 16> bytes{};
  if (::getentropy(bytes.data(), bytes.size()) != 0) fault("run_id", "draw", errno);
  return hex(bytes);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void fill_in(Common& common) {
  if (common.run_id.empty()) common.run_id = random_run_id();
  if (!common.time.utc.empty()) return;
  common.time.utc = utc_now();
  common.time.sealed_us = std::chrono::duration_cast<std::chrono::microseconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
}

void fill_in(RunFacts& facts) {
  fill_in(facts.common);
  auto& key = facts.redaction.key;
  const bool has_none = std::ranges::all_of(key, [](std::uint8_t byte) { return byte == 0; });
  if (facts.redaction.mode == Redaction::Mode::salted && has_none &&
      ::getentropy(key.data(), key.size()) != 0) {
    fault("salt", "draw", errno);
  }
}

std::string default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string folder = variable("BOLT_RECEIPTS"); !folder.empty()) return folder;
  if (const std::string state = variable("XDG_STATE_HOME"); !state.empty()) {
    return state + "/bolt/receipts";
  }
  const std::string home = variable("HOME");
  if (home.empty()) {
    throw Failure(Status::usage, "no place for receipts: HOME is not set; give --receipts DIR");
  }
  return home + "/.local/state/bolt/receipts";
}

void check_where(const Where& where) {
  if (where.file.empty()) {
    make_folder(where.folder);
    if (::access(where.folder.c_str(), W_OK | X_OK) != 0) fault(where.folder, "write in", errno);
    return;
  }
  struct stat info {};
  if (::stat(where.file.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) fault(where.file, "write", EISDIR);
    if (S_ISREG(info.st_mode) && !where.replace) taken(where.file);
    return;
  }
  const std::string folder = folder_of(where.file);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fault(folder, "write in", errno);
}

std::string write_file(const std::string& bytes, const Where& where, const std::string& name) {
  if (!where.file.empty() && is_special(where.file)) {
    write_special(where.file, bytes);
    return where.file;
  }
  if (where.file.empty()) make_folder(where.folder);
  const std::string path = where.file.empty() ? where.folder + "/" + name : where.file;
  const std::string folder = folder_of(path);
  // A short name of its own: the receipt's may be as long as names can be.
  Temporary file(folder + "/.bolt-" + random_run_id().substr(0, 16) + ".tmp");
  file.fill(bytes);
  file.name(path, where.replace);
  return path;
}

std::string sealed_lines(const Value& body, const std::string& lines_after) {
  check_fields(body, "receipt to seal");
  const std::string text = canonical(body);
  if (text.size() > kBodyBytesMax) {
    throw Failure(Status::fault, fmt::format("receipt to seal: body of {} bytes, at most {}",
                                             text.size(), kBodyBytesMax));
  }
  return text + "\n" + seal_line(text) + "\n" + lines_after;
}

Written write_body(const Value& body, const std::string& lines, const Where& where) {
  const std::string bytes = sealed_lines(body, lines);
  std::string stamp = body.string_at("time.utc");
  std::erase_if(stamp, [](char c) { return c == '-' || c == ':'; });
  if (stamp.empty()) stamp = "undated";
  const std::string name =
      fmt::format("{}-{}.bolt.jsonl", stamp, body.string_at("run_id").substr(0, 8));
  Written written;
  written.rid = rid_of(std::string_view(bytes).substr(0, bytes.find('\n')));
  written.path = write_file(bytes, where, name);
  return written;
}

Written write_run(RunFacts& facts, const Where& where) {
  fill_in(facts);
  const Value body = run_body(facts);
  return write_body(body, attachment_lines(facts, rid_of(canonical(body))), where);
}

Written write_conversion(ConversionFacts& facts, const Where& where) {
  fill_in(facts.common);
  return write_body(conversion_body(facts), "", where);
}

std::string conversion_rid_beside(const std::string& package_folder,
                                  const std::string& package_sha256) {
  std::string path = package_folder;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.ends_with(".bolt")) path.resize(path.size() - 5);
  try {
    const Receipt receipt = read_receipt(path + kReceiptSuffix);
    const bool is_its = receipt.kind() == "conversion" &&
                        receipt.body.string_at("package.sha256") == package_sha256;
    return is_its ? receipt.rid : std::string();
  } catch (const Failure&) {
    return {};  // a parent that cannot be named is no reason not to run
  }
}

Written write_session(SessionFacts& facts, const Where& where) {
  fill_in(facts.common);
  return write_body(session_body(facts), "", where);
}

}  // namespace bolt::receipts
