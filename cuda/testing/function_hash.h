// The hash both sides compute: a sum, so that any order of evaluation gives it.
#pragma once

#include <cstdint>

#include "core/base/exact_math.h"
#include "cuda/testing/math_hash.h"

namespace bolt::cuda {

BOLT_EXACT float apply(Function function, float x) {
  switch (function) {
    case Function::exp:
      return exact_exp(x);
    case Function::log:
      return exact_log(x);
    case Function::sigmoid:
      return exact_sigmoid(x);
    case Function::softplus:
      return exact_softplus(x);
    case Function::rsqrt:
      return exact_rsqrt(x);
    case Function::silu:
      return exact_silu(x);
    case Function::relu2:
      return exact_relu2(x);
  }
  return 0.0f;
}
BOLT_EXACT std::uint64_t hash_of(std::uint32_t input, float result) {
  const std::uint64_t h = static_cast<std::uint64_t>(exact_to_bits(result) + 0x9e3779b9u * input) *
                          0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

}  // namespace bolt::cuda
