// Keys of captured calls (Ops::replay): built part by part, from what the call is to what it works
// on. Two keys are equal only if all parts are, in order, but for one chance in 2^64.
#pragma once

#include <cstdint>

namespace bolt {

constexpr std::uint64_t key_with(std::uint64_t key, std::uint64_t part) {
  std::uint64_t z = (key + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + part;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace bolt
