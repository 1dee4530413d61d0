// Writing files and folders so that a reader sees the whole of one or nothing of it: a temporary
// name beside the target, fsync, rename. What is not committed is removed. Reading is file_map.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/file_map.h"

namespace bolt {

// A new file under its own name (O_EXCL), written at the end or anywhere by any thread. Every
// failed write is an Error(fault) naming the path and the cause, a full disk included.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path, int mode = 0644);

  void append(std::string_view bytes);
  void append(std::span<const std::byte> bytes);
  // Safe from several threads at once; does not move the end that append() writes to.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Reserves the disk space, so that a full disk shows before the work is done.
  void reserve(std::uint64_t n_bytes);
  // Starts sending a written range to the disk and does not wait: sync() then has less to do.
  void start_writing(std::uint64_t offset, std::uint64_t n_bytes) noexcept;
  void sync();   // to the disk
  void close();  // reports what only close reports (NFS, quotas)
  const std::string& path() const { return path_; }
  const FileDescriptor& descriptor() const { return file_; }

 private:
  friend class AtomicFile;
  OutputFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), name_(path_), file_(std::move(file)) {}
  OutputFile(const std::string& path, std::string name, int mode);
  std::string path_, name_;  // name_: what errors call it
  FileDescriptor file_;
  std::uint64_t end_ = 0;
};

// One file that appears under its name when commit() returns. A target that is a device or a FIFO
// (/dev/stdout) is written directly; a symbolic link's target is replaced, not the link.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& target, bool replace = true, int mode = 0644);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void append(std::string_view bytes);
  void append(std::span<const std::byte> bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  std::string target_;
  bool replace_, direct_ = false, done_ = false;
  OutputFile file_{std::string(), FileDescriptor()};
};

void write_file_atomically(const std::string& target, std::string_view bytes, bool replace = true,
                           int mode = 0644);

// A folder that appears under its name, whole, when commit() returns; flat (no folders inside).
// Temporary folders of the same target whose writer is gone are removed first; they are told apart
// by a lock that the kernel drops with the process.
class AtomicFolder {
 public:
  // An existing target is an Error(usage) unless `replace`.
  AtomicFolder(const std::string& target, bool replace);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  const std::string& path() const { return temporary_; }
  std::string file(std::string_view name) const { return temporary_ + "/" + std::string(name); }
  // Sends what is in the folder to the disk, so that commit() finds little to do. From any thread.
  void sync() const;
  // Syncs every file and both folders, renames; a replaced folder is removed after the exchange.
  void commit();

 private:
  std::string target_, temporary_;
  bool replace_, done_ = false;
  FileDescriptor lock_;
};

// Removes a file or a whole folder; says nothing when it is not there.
void remove_tree(const std::string& path) noexcept;

}  // namespace bolt
