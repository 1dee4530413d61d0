// The one place where a cudaError_t becomes an Error; device memory that frees itself.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "core/base/error.h"

namespace bolt::cuda {

// Whether the device's context is gone with this error.
inline bool is_lost(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Device errors are sticky and may belong to an earlier launch, so they end the process: nothing of
// this run may be sealed afterwards.
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  std::string line = std::string("cuda: ") + doing + ": " + cudaGetErrorString(status);
  if (is_lost(status)) line += "; the GPU is lost to this run, see dmesg for what it reported";
  throw Error(Exit::fault, line);
}

inline std::string size_text(std::uint64_t bytes) {
  char text[32];
  const auto n = static_cast<double>(bytes);
  const bool large = bytes >= std::uint64_t{1} << 30;
  std::snprintf(text, sizeof(text), large ? "%.2f GiB" : "%.1f MiB",
                n / (large ? 1u << 30 : 1u << 20));
  return text;
}

struct DeviceFree {
  void operator()(void* p) const noexcept { (void)cudaFree(p); }  // nobody left to tell
};
template <class T>
using DevicePtr = std::unique_ptr<T[], DeviceFree>;

template <class T>
DevicePtr<T> device_alloc(std::size_t n, const char* purpose) {
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, n * sizeof(T));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    throw Error(Exit::fault, std::string("cuda: ") + purpose + " need " + size_text(n * sizeof(T)) +
                                 ", the GPU has " + size_text(free) +
                                 " free; lower --context, --parallel or --chunk, use a smaller "
                                 "package, or --device cpu");
  }
  check(status, purpose);
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
