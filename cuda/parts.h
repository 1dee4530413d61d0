// Laying several arrays out in one piece of memory.
#pragma once

#include <cstddef>

namespace bolt::cuda {

inline std::size_t aligned(std::size_t bytes) { return (bytes + 255) & ~std::size_t{255}; }

// Hands out parts of a buffer whose size is found by handing out parts of none.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t n) {
    const std::size_t at = bytes_;
    bytes_ += aligned(n * sizeof(T));
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

}  // namespace bolt::cuda
