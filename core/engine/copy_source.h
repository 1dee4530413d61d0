// Drafts copied from the context: where the last 8 ids or more occurred before, what followed them
// is proposed.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace bolt {

class CopySource {
 public:
  // What followed the longest earlier match of the sequence's end, the most recent of equals; at
  // most max_drafts ids, empty if there is none. known only grows from call to call.
  std::vector<int> propose(std::span<const int> known, int max_drafts);
  // After a round that verified a copy and kept n_kept of it.
  void learn(int n_kept);

 private:
  void index(std::span<const int> known);

  std::unordered_map<std::uint64_t, int> last_end_;  // by hash of 8 ids: where they last ended
  std::vector<int> earlier_;  // [end]: the end before it with the same hash, -1 if none
  int n_kept_ = 0;            // of the last copy
};

}  // namespace bolt
