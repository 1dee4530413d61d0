// The host's memory: zeroed pages, freed with the ops.
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/ops/host.h"

namespace bolt {

void HostOps::FreePages::operator()(std::byte* pages) const noexcept { munmap(pages, bytes); }

void* HostOps::allocate(std::uint64_t bytes, const char* purpose) {
  require(bytes > 0, "an allocation has bytes");
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(Exit::fault, std::string("memory: no ") + std::to_string(bytes >> 20) +
                                 " MiB for " + purpose +
                                 "; ask for less with --context, --parallel or --chunk");
  }
  memory_.emplace_back(static_cast<std::byte*>(pages), FreePages{bytes});
  return pages;
}

void HostOps::read(const float* from, std::span<float> to) {
  std::memcpy(to.data(), from, to.size_bytes());
}

}  // namespace bolt
