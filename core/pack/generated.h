// Values of generated weights: pseudo-random, and scaled so that a model made of them computes
// finite activations and logits that differ. For speed measurements and tests, not for text.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/pack/graph.h"

namespace bolt {

// Values are spread evenly over [low, high).
struct Spread {
  float low = 0.0f, high = 0.0f;
};

// By the weight's name in the graph ("layers.3.in_proj"): linears keep the variance of their input,
// norms lie near 1, A and dt_bias in the family's initial ranges.
Spread generated_spread(std::string_view name, const Weight& weight);

// The 64 random bits of a counter under a seed (SplitMix64's finaliser): any order, any thread.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + counter + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
// In [0, 1), a multiple of 2^-24.
inline float random_unit(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<float>(random_bits(seed, counter) >> 40) * 0x1p-24f;
}

}  // namespace bolt
