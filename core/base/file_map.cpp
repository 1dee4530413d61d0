// Reading files: open, map, read whole.
#include "core/base/file_map.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace bolt {
namespace {

[[noreturn]] void fail(const std::string& path, const char* doing) {
  const int error = errno;
  // A path that is not there is the caller's input; all else is the machine's fault.
  const bool input = error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP ||
                     error == ENAMETOOLONG;
  throw Error(input ? Exit::input : Exit::fault,
              fmt::format("{}: {}: {}", path, doing, std::strerror(error)));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

std::int64_t nanoseconds(const timespec& t) { return t.tv_sec * 1'000'000'000LL + t.tv_nsec; }

FileFacts facts_of(const struct stat& st) {
  return {.device = st.st_dev,
          .inode = st.st_ino,
          .bytes = static_cast<std::uint64_t>(st.st_size),
          .links = st.st_nlink,
          .mtime_ns = nanoseconds(st.st_mtim),
          .ctime_ns = nanoseconds(st.st_ctim)};
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() noexcept { return std::exchange(fd_, -1); }

FileDescriptor open_regular_file(const std::string& path, FileFacts& facts, bool follow_symlink) {
  if (path.find('\0') != std::string::npos) {
    throw Error(Exit::input, "a file name holds a NUL byte: " + std::string(path.c_str()));
  }
  // O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_symlink ? 0 : O_NOFOLLOW);
  FileDescriptor file(::open(path.c_str(), flags));
  if (!file) {
    if (errno == ELOOP && !follow_symlink) {
      throw Error(Exit::input, path + ": is a symbolic link, expected a regular file");
    }
    fail(path, "cannot open");
  }
  struct stat st;
  if (::fstat(file.get(), &st) != 0) fail(path, "cannot stat");
  if (!S_ISREG(st.st_mode)) {
    throw Error(Exit::input,
                fmt::format("{}: is {}, expected a regular file", path, kind_of(st.st_mode)));
  }
  facts = facts_of(st);
  return file;
}

FileFacts file_facts(const FileDescriptor& file, const std::string& path) {
  struct stat st;
  if (::fstat(file.get(), &st) != 0) fail(path, "cannot stat");
  return facts_of(st);
}

FileMap::FileMap(const std::string& path) {
  FileFacts facts;
  const FileDescriptor file = open_regular_file(path, facts);
  *this = FileMap(path, file, facts);
}

FileMap::FileMap(const std::string& path, const FileDescriptor& file, const FileFacts& facts)
    : path_(path), facts_(facts), bytes_(facts.bytes) {
  if (bytes_ == 0) return;  // mmap refuses a length of 0
  void* p = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (p == MAP_FAILED) fail(path, "cannot map");
  data_ = static_cast<const std::byte*>(p);
}

FileMap::FileMap(FileMap&& other) noexcept { *this = std::move(other); }

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  if (this != &other) {
    if (data_) ::munmap(const_cast<std::byte*>(data_), bytes_);
    path_ = std::move(other.path_);
    facts_ = other.facts_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

FileMap::~FileMap() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

void FileMap::will_need() const noexcept {
  if (data_) ::madvise(const_cast<std::byte*>(data_), bytes_, MADV_WILLNEED);
}

void FileMap::release(std::uint64_t offset, std::uint64_t n_bytes) const noexcept {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t begin = (offset + kPage - 1) / kPage * kPage;
  const std::uint64_t end = (offset + n_bytes) / kPage * kPage;
  if (data_ && begin < end && end <= bytes_) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

namespace {

// Reads to the end, whatever stat said: pipes and /proc files report a size of 0.
std::string read_to_end(const FileDescriptor& file, const std::string& path,
                        std::uint64_t expected_bytes, std::uint64_t max_bytes) {
  std::string bytes;
  if (expected_bytes <= max_bytes) bytes.reserve(expected_bytes + 1);
  for (;;) {
    char chunk[1 << 16];
    const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read");
    if (n == 0) return bytes;
    bytes.append(chunk, static_cast<std::size_t>(n));
    if (bytes.size() > max_bytes) {
      throw Error(Exit::input, fmt::format("{}: is over {} bytes, too large", path, max_bytes));
    }
  }
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t max_bytes) {
  FileFacts facts;
  const FileDescriptor file = open_regular_file(path, facts);
  return read_to_end(file, path, facts.bytes, max_bytes);
}

std::string read_stream(const std::string& path, std::uint64_t max_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(path, "cannot open");
  if (is_folder(path)) throw Error(Exit::input, path + ": is a folder, expected a file");
  return read_to_end(file, path, 0, max_bytes);
}

void read_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset,
             std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t n =
        ::pread(file.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read");
    if (n == 0) {
      throw Error(Exit::input, fmt::format("{}: ends at byte {}, expected {} more; it is cut short",
                                           path, offset + done, to.size() - done));
    }
    done += static_cast<std::size_t>(n);
  }
}

bool path_exists(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0;
}

bool is_folder(const std::string& path) {
  struct stat st;
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

bool is_regular_file(const std::string& path) {
  struct stat st;
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace bolt
