#include "cuda/check.h"
#include "cuda/testing/function_hash.h"

namespace bolt::cuda {
namespace {

// Block b hashes inputs b << 16 .. (b << 16) + 65535.
template <Function F>
__global__ void hash_block(unsigned long long* hashes) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  unsigned long long mine = 0;
  for (std::uint32_t i = threadIdx.x; i < 65536; i += blockDim.x) {
    const std::uint32_t input = (static_cast<std::uint32_t>(blockIdx.x) << 16) + i;
    mine += hash_of(input, apply(F, exact_from_bits(input)));
  }
  atomicAdd(&sum, mine);
  __syncthreads();
  if (threadIdx.x == 0) hashes[blockIdx.x] = sum;
}

}  // namespace

std::vector<std::uint64_t> device_hashes(Function function) {
  constexpr int kBlocks = 65536;
  auto device = device_alloc<unsigned long long>(kBlocks, "hashes");
  switch (function) {
    case Function::exp:
      hash_block<Function::exp><<<kBlocks, 256>>>(device.get());
      break;
    case Function::log:
      hash_block<Function::log><<<kBlocks, 256>>>(device.get());
      break;
    case Function::sigmoid:
      hash_block<Function::sigmoid><<<kBlocks, 256>>>(device.get());
      break;
    case Function::softplus:
      hash_block<Function::softplus><<<kBlocks, 256>>>(device.get());
      break;
    case Function::rsqrt:
      hash_block<Function::rsqrt><<<kBlocks, 256>>>(device.get());
      break;
    case Function::silu:
      hash_block<Function::silu><<<kBlocks, 256>>>(device.get());
      break;
    case Function::relu2:
      hash_block<Function::relu2><<<kBlocks, 256>>>(device.get());
      break;
  }
  check(cudaGetLastError(), "hashing");
  std::vector<std::uint64_t> hashes(kBlocks);
  check(cudaMemcpy(hashes.data(), device.get(), kBlocks * sizeof(std::uint64_t),
                   cudaMemcpyDeviceToHost),
        "hashing");
  return hashes;
}

}  // namespace bolt::cuda
