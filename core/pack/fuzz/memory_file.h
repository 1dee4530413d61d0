// Fuzzers' input as a file in memory: readers take files, and a disk would be slow.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/file_map.h"

namespace bolt {

class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : name_(name), file_(::memfd_create(name, MFD_CLOEXEC)) {}

  const std::string& name() const { return name_; }
  const FileDescriptor& descriptor() const { return file_; }
  // Replaces the content.
  FileFacts fill(const std::uint8_t* data, std::size_t size) {
    if (::ftruncate(file_.get(), 0) != 0 ||
        ::ftruncate(file_.get(), static_cast<off_t>(size)) != 0 ||
        ::pwrite(file_.get(), data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
    FileFacts facts;
    facts.bytes = size;
    return facts;
  }

 private:
  std::string name_;
  FileDescriptor file_;
};

}  // namespace bolt
