// Launching a kernel so that it may start while the one before it ends (programmatic dependent
// launch). Every kernel launched so calls wait_for_earlier_kernels() before it touches what others
// write.
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.h"

namespace bolt::cuda {

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
        "launching a kernel");
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute, const char* what) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&value, attribute, device), what);
  return value;
}
inline int n_multiprocessors() {
  static const int n = device_attribute(cudaDevAttrMultiProcessorCount, "counting multiprocessors");
  return n;
}
// Most shared memory that a block may take.
inline std::size_t shared_limit() {
  static const auto limit = static_cast<std::size_t>(device_attribute(
      cudaDevAttrMaxSharedMemoryPerBlockOptin, "asking for a block's shared memory"));
  return limit;
}

// Raises a kernel's limit of dynamic shared memory when it needs more than the default 48 KiB.
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  if (bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes)),
          "raising a kernel's shared memory");
  }
}

}  // namespace bolt::cuda
