// Where the time of a model's passes goes, by part.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bolt {

enum class Part { embedding, mamba, attention, mlp, experts, head, draft_head, sampling };
inline constexpr std::array<const char*, 8> kPartNames{
    "embedding", "mamba", "attention", "mlp", "experts", "head", "draft head", "sampling"};

// Each part is waited for, so on a GPU, where parts overlap and passes are replayed, the sum is
// more than a pass takes otherwise: shares say more than times.
struct Profile {
  std::array<std::int64_t, kPartNames.size()> ns{};
  void add(Part part, std::int64_t n) { ns[static_cast<std::size_t>(part)] += n; }
  std::int64_t total_ns() const {
    std::int64_t sum = 0;
    for (const std::int64_t n : ns) sum += n;
    return sum;
  }
};

}  // namespace bolt
