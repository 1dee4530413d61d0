// Writing files and folders atomically.
#include "core/base/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace bolt {
namespace {

constexpr unsigned kRenameNoReplace = 1, kRenameExchange = 2;  // linux/fs.h

[[noreturn]] void fail(const std::string& path, const char* doing, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    throw Error(Exit::fault,
                fmt::format("{}: {}: {}; free some space and run again", path, doing,
                            error == ENOSPC ? "the disk is full" : "over the disk quota"));
  }
  if (error == EFBIG) {
    throw Error(Exit::fault, fmt::format("{}: {}: too large for this disk or the limit on file "
                                         "sizes (`ulimit -f`)",
                                         path, doing));
  }
  const bool usage = error == ENOENT || error == ENOTDIR || error == EACCES || error == EROFS ||
                     error == EEXIST || error == EPERM || error == ENAMETOOLONG;
  throw Error(usage ? Exit::usage : Exit::fault,
              fmt::format("{}: {}: {}", path, doing, std::strerror(error)));
}
[[noreturn]] void fail(const std::string& path, const char* doing) { fail(path, doing, errno); }
[[noreturn]] void fail_taken(const std::string& path) {
  throw Error(Exit::usage, path + ": exists already");
}

std::string random_suffix() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    fail("/dev/urandom", "cannot read");
  }
  return fmt::format("{:016x}", bits);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}
std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

void sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail(path, "cannot open the folder");
  // Some file systems cannot sync a folder and say EINVAL: nothing more can be done there.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail(path, "cannot sync the folder");
}

int rename_with(const std::string& from, const std::string& to, unsigned flags) {
  return static_cast<int>(
      ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
}

// Renames without replacing; file systems without the flag get a check and a plain rename.
void rename_new(const std::string& from, const std::string& to) {
  if (rename_with(from, to, kRenameNoReplace) == 0) return;
  if (errno == EEXIST || errno == ENOTEMPTY) fail_taken(to);
  if (errno != EINVAL && errno != ENOSYS) fail(to, "cannot rename to it");
  if (path_exists(to)) fail_taken(to);
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot rename to it");
}

// Temporary folders of `target` are named .NAME.partial-SUFFIX.
std::string temporary_prefix(const std::string& target) {
  return fmt::format(".{}.partial-", name_of(target));
}

// The folder, locked and still under its name. Nothing, and errno, if another process holds it
// (EWOULDBLOCK) or has removed it (ENOENT), or if the file system knows no locks.
FileDescriptor lock_folder(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return FileDescriptor();
  struct stat locked, named;
  if (::fstat(folder.get(), &locked) != 0 || ::lstat(path.c_str(), &named) != 0 ||
      locked.st_dev != named.st_dev || locked.st_ino != named.st_ino) {
    errno = ENOENT;
    return FileDescriptor();
  }
  return folder;
}

void remove_stale(const std::string& target) {
  const std::string prefix = temporary_prefix(target);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(target), ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    // Held until the folder is gone: nobody can take it for a living one in between.
    if (const FileDescriptor lock = lock_folder(entry.path().string())) {
      remove_tree(entry.path().string());
    }
  }
}

}  // namespace

OutputFile::OutputFile(const std::string& path, int mode) : OutputFile(path, path, mode) {}

OutputFile::OutputFile(const std::string& path, std::string name, int mode)
    : path_(path), name_(std::move(name)) {
  file_ = FileDescriptor(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!file_) fail(name_, "cannot create");
}

void OutputFile::append(std::string_view bytes) { append(std::as_bytes(std::span(bytes))); }

void OutputFile::append(std::span<const std::byte> bytes) {
  // Plain write, not pwrite: a direct target may be a pipe.
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(name_, "cannot write");
    done += static_cast<std::size_t>(n);
  }
  end_ += bytes.size();
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done,
                               static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(name_, "cannot write");
    done += static_cast<std::size_t>(n);
  }
}

void OutputFile::reserve(std::uint64_t n_bytes) {
  if (n_bytes == 0) return;
  // fallocate, not posix_fallocate: its emulation would write the whole file.
  while (::fallocate(file_.get(), 0, 0, static_cast<off_t>(n_bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail(name_, "cannot reserve its space");
    if (::ftruncate(file_.get(), static_cast<off_t>(n_bytes)) != 0) fail(name_, "cannot extend");
    return;
  }
}

void OutputFile::start_writing(std::uint64_t offset, std::uint64_t n_bytes) noexcept {
  // A file system that cannot leaves all to sync().
  (void)::sync_file_range(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(n_bytes),
                          SYNC_FILE_RANGE_WRITE);
}

void OutputFile::sync() {
  // Pipes and terminals cannot be synced and say EINVAL.
  if (::fsync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) fail(name_, "cannot sync");
}

void OutputFile::close() {
  const int fd = file_.release();
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail(name_, "cannot close");
}

AtomicFile::AtomicFile(const std::string& target, bool replace, int mode)
    : target_(target), replace_(replace) {
  struct stat st;
  const bool exists = ::stat(target.c_str(), &st) == 0;
  if (exists && S_ISDIR(st.st_mode)) fail(target, "cannot write", EISDIR);
  if (exists && !S_ISREG(st.st_mode)) {
    direct_ = true;
    FileDescriptor file(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) fail(target, "cannot open for writing");
    file_ = OutputFile(target, std::move(file));
    return;
  }
  if (exists && !replace) fail(target, "cannot create", EEXIST);
  if (exists) target_ = std::filesystem::canonical(target).string();
  file_ = OutputFile(
      fmt::format("{}/{}{}", folder_of(target_), temporary_prefix(target_), random_suffix()),
      target, mode);
}

AtomicFile::~AtomicFile() {
  if (!done_ && !direct_) ::unlink(file_.path().c_str());
}

void AtomicFile::append(std::string_view bytes) { file_.append(bytes); }
void AtomicFile::append(std::span<const std::byte> bytes) { file_.append(bytes); }
void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(offset, bytes);
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  if (!direct_) {
    if (replace_) {
      if (::rename(file_.path().c_str(), target_.c_str()) != 0)
        fail(target_, "cannot rename to it");
    } else {
      rename_new(file_.path(), target_);
    }
    sync_folder(folder_of(target_));
  }
  done_ = true;
}

void write_file_atomically(const std::string& target, std::string_view bytes, bool replace,
                           int mode) {
  AtomicFile file(target, replace, mode);
  file.append(bytes);
  file.commit();
}

AtomicFolder::AtomicFolder(const std::string& target, bool replace)
    : target_(target), replace_(replace) {
  while (target_.size() > 1 && target_.back() == '/') target_.pop_back();
  if (target_.empty()) throw Error(Exit::usage, "the output folder's name is empty");
  if (path_exists(target_) && !replace) fail_taken(target_);
  remove_stale(target_);
  // Between mkdir and the lock another writer may take the folder for a dead one's and remove it:
  // then the next name is tried.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    temporary_ =
        fmt::format("{}/{}{}", folder_of(target_), temporary_prefix(target_), random_suffix());
    if (::mkdir(temporary_.c_str(), 0755) != 0) fail(target_, "cannot create the folder");
    lock_ = lock_folder(temporary_);
    if (lock_ || (errno != EWOULDBLOCK && errno != ENOENT)) return;
  }
  throw Error(Exit::fault, target_ + ": other writers keep removing what this one begins there");
}

AtomicFolder::~AtomicFolder() {
  if (!done_) remove_tree(temporary_);
}

void AtomicFolder::sync() const {
  for (const auto& entry : std::filesystem::directory_iterator(temporary_)) {
    const std::string path = entry.path().string();
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file || ::fsync(file.get()) != 0) fail(path, "cannot sync");
  }
}

void AtomicFolder::commit() {
  sync();
  sync_folder(temporary_);
  // Another writer may make the target between the question and the rename: then it is replaced.
  if (replace_ && !path_exists(target_) &&
      rename_with(temporary_, target_, kRenameNoReplace) == 0) {
    // nothing to remove
  } else if (!replace_ || !path_exists(target_)) {
    rename_new(temporary_, target_);
  } else if (rename_with(temporary_, target_, kRenameExchange) == 0) {
    remove_tree(temporary_);  // now the replaced folder
  } else {
    const std::string old = temporary_ + "-old";
    if (::rename(target_.c_str(), old.c_str()) != 0) fail(target_, "cannot move it away");
    rename_new(temporary_, target_);
    remove_tree(old);
  }
  done_ = true;
  sync_folder(folder_of(target_));
}

void remove_tree(const std::string& path) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace bolt
