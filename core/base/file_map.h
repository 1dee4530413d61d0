// Reading files: a read-only mapping that lends spans, and whole small files as strings. Every
// failure is one line that names the path. Writing is output.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace bolt {

// The largest text file (JSON, template) read whole: far above any real one, far below memory.
inline constexpr std::uint64_t kTextFileBytesMax = 512ull << 20;

// A file descriptor that closes itself.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  int release() noexcept;
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Identity and size of a regular file, as fstat gives them.
struct FileFacts {
  std::uint64_t device = 0, inode = 0, bytes = 0, links = 0;
  std::int64_t mtime_ns = 0, ctime_ns = 0;
  bool operator==(const FileFacts&) const = default;
};

// The facts of an open file as they are now; `path` names it in an Error.
FileFacts file_facts(const FileDescriptor& file, const std::string& path);

// Opens a regular file for reading; `facts` as of the open descriptor. Folders, FIFOs, sockets and
// devices are refused without blocking. follow_symlink false refuses a link as the last component.
FileDescriptor open_regular_file(const std::string& path, FileFacts& facts,
                                 bool follow_symlink = true);

// A whole regular file, mapped read-only; empty files give an empty span. Moves keep the address.
class FileMap {
 public:
  FileMap() = default;
  explicit FileMap(const std::string& path);
  FileMap(const std::string& path, const FileDescriptor& file, const FileFacts& facts);
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  ~FileMap();

  std::span<const std::byte> bytes() const { return {data_, bytes_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), bytes_}; }
  std::uint64_t size() const { return bytes_; }
  const std::string& path() const { return path_; }
  const FileFacts& facts() const { return facts_; }

  // Hints to the kernel; they change no byte. `release` drops pages that were read and clean.
  void will_need() const noexcept;
  void release(std::uint64_t offset, std::uint64_t n_bytes) const noexcept;

 private:
  std::string path_;
  FileFacts facts_;
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// All bytes of a regular file, opened as open_regular_file does; refuses over `max_bytes`.
std::string read_file(const std::string& path, std::uint64_t max_bytes = kTextFileBytesMax);
// The same of a pipe or device, too (`-` is not special here), waiting for its end: for what the
// user names on the command line, such as <(program).
std::string read_stream(const std::string& path, std::uint64_t max_bytes = kTextFileBytesMax);

// Fills `to` from `offset`; a file that ends before is an Error naming the path.
void read_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset,
             std::span<std::byte> to);

bool path_exists(const std::string& path);  // a dangling symlink exists, too
bool is_folder(const std::string& path);
bool is_regular_file(const std::string& path);  // links are followed, as is_folder does

}  // namespace bolt
