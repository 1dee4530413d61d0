// The one place where a cudaError_t becomes an Error; device memory that frees itself.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/error.h"

namespace bolt::cuda {

// Device errors are sticky and may belong to an earlier launch, so they end the process: nothing of
// this run may be sealed afterwards.
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  throw Error(Exit::fault, std::string("cuda: ") + doing + ": " + cudaGetErrorString(status));
}

struct DeviceFree {
  void operator()(void* p) const noexcept { (void)cudaFree(p); }  // nobody left to tell
};
template <class T>
using DevicePtr = std::unique_ptr<T[], DeviceFree>;

template <class T>
DevicePtr<T> device_alloc(std::size_t n, const char* purpose) {
  void* p = nullptr;
  check(cudaMalloc(&p, n * sizeof(T)), purpose);
  return DevicePtr<T>(static_cast<T*>(p));
}

struct PinnedFree {
  void operator()(void* p) const noexcept { (void)cudaFreeHost(p); }
};
template <class T>
using PinnedPtr = std::unique_ptr<T[], PinnedFree>;

template <class T>
PinnedPtr<T> pinned_alloc(std::size_t n, const char* purpose) {
  void* p = nullptr;
  check(cudaMallocHost(&p, n * sizeof(T)), purpose);
  return PinnedPtr<T>(static_cast<T*>(p));
}

}  // namespace bolt::cuda
