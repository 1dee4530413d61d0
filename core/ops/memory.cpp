// The host's memory: zeroed pages, freed with the ops.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "core/base/error.h"
#include "core/ops/host.h"

namespace bolt {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

void HostOps::FreePages::operator()(std::byte* pages) const noexcept { munmap(pages, bytes); }

void* HostOps::allocate(std::uint64_t bytes, const char* purpose) {
  require(bytes > 0, "an allocation has bytes");
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(Exit::fault, std::string("memory: no ") +
                                 std::to_string((bytes + kMiB - 1) / kMiB) + " MiB for " + purpose +
                                 "; ask for less with --context, --parallel or --chunk");
  }
  memory_.emplace_back(static_cast<std::byte*>(pages), FreePages{bytes});
  return pages;
}

// What the kernel could give now, the cgroup's limit considered; 0 if it does not say.
std::uint64_t HostOps::free_bytes() const {
  std::uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name; meminfo >> name;) {
    std::uint64_t kib = 0;
    if (name == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    meminfo.ignore(256, '\n');
  }
  std::uint64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

void HostOps::read(const float* from, std::span<float> to) {
  std::memcpy(to.data(), from, to.size_bytes());
}

void HostOps::write(const void* from, std::uint64_t bytes, void* to) {
  std::memcpy(to, from, bytes);
}

}  // namespace bolt
