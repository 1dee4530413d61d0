// The most that a GPU reads of its memory in a second, for figures beside it.
#include <algorithm>
#include <vector>

#include "core/engine/backend.h"
#include "cuda/check.h"
#include "cuda/device.cuh"

namespace bolt {
namespace cuda {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 30;  // many times any L2
constexpr int kRepeats = 7;

// Every thread keeps eight 16-byte loads in flight.
__global__ void __launch_bounds__(512) read_all(const uint4* data, std::size_t n, unsigned* out) {
  unsigned sum = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = load_stream4(data + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x9e3779b9u) *out = sum;  // never, but the compiler cannot know
}

}  // namespace
}  // namespace cuda

double cuda_read_ceiling(int ordinal) {
  using namespace cuda;
  check(cudaSetDevice(ordinal), "choosing the device");
  int n_multiprocessors = 0;
  check(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
        "asking for the device");
  const auto data = device_alloc<std::byte>(kBytes, "a read rate");
  check(cudaMemset(data.get(), 1, kBytes), "filling memory");
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "creating an event");
  check(cudaEventCreate(&end), "creating an event");
  std::vector<float> ms(kRepeats);
  for (float& one : ms) {
    check(cudaEventRecord(start), "timing");
    read_all<<<static_cast<unsigned>(n_multiprocessors) * 4, 512>>>(
        reinterpret_cast<const uint4*>(data.get()), kBytes / 16,
        reinterpret_cast<unsigned*>(data.get()));
    check(cudaGetLastError(), "reading memory");
    check(cudaEventRecord(end), "timing");
    check(cudaEventSynchronize(end), "timing");
    check(cudaEventElapsedTime(&one, start, end), "timing");
  }
  (void)cudaEventDestroy(start);
  (void)cudaEventDestroy(end);
  std::sort(ms.begin(), ms.end());
  return static_cast<double>(kBytes) * 1e3 / static_cast<double>(ms[kRepeats / 2]);
}

}  // namespace bolt
