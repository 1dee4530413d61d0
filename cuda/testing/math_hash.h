// Hashes of the elementary functions over blocks of 65,536 inputs, computed on the device; tests
// compare them with the host's.
#pragma once

#include <cstdint>
#include <vector>

namespace bolt::cuda {

enum class Function { exp, log, sigmoid, softplus, rsqrt, silu, relu2 };
inline constexpr int kFunctions = 7;

// One hash for each of the 65,536 blocks of inputs that share their upper 16 bits.
std::vector<std::uint64_t> device_hashes(Function function);

}  // namespace bolt::cuda
