// A chain of earlier positions per hash of 8 ids; a match is checked id by id.
#include "core/engine/copy_source.h"

#include <algorithm>
#include <utility>

namespace bolt {
namespace {

constexpr int kMatchIds = 8;      // a shorter match proposes nothing
constexpr int kMatchIdsMax = 64;  // longer ones count as equal
constexpr int kCandidates = 32;   // earlier occurrences looked at, the latest first
constexpr int kFirstDrafts = 15, kDraftsCap = 31;

std::uint64_t hash_ids(const int* ids) {
  std::uint64_t h = 0x9e3779b97f4a7c15u;
  for (int i = 0; i < kMatchIds; ++i) {
    h = (h ^ static_cast<std::uint32_t>(ids[i])) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

void CopySource::index(std::span<const int> known) {
  const int n = static_cast<int>(known.size());
  // The end of the sequence itself is looked up, not indexed.
  for (int end = static_cast<int>(earlier_.size()); end < n; ++end) {
    int before = -1;
    if (end >= kMatchIds) {
      const auto [entry, is_new] = last_end_.try_emplace(hash_ids(&known[end - kMatchIds]), end);
      if (!is_new) before = std::exchange(entry->second, end);
    }
    earlier_.push_back(before);
  }
}

std::vector<int> CopySource::propose(std::span<const int> known, int max_drafts) {
  index(known);
  const int n = static_cast<int>(known.size());
  if (n < kMatchIds + 1) return {};
  const auto found = last_end_.find(hash_ids(&known[n - kMatchIds]));
  if (found == last_end_.end()) return {};
  int best = -1, best_length = kMatchIds - 1;
  int end = found->second;
  for (int i = 0; i < kCandidates && end >= 0; ++i, end = earlier_[static_cast<std::size_t>(end)]) {
    int length = 0;
    while (length < std::min(end, kMatchIdsMax) &&
           known[end - 1 - length] == known[n - 1 - length]) {
      ++length;
    }
    if (length > best_length) best = end, best_length = length;
  }
  if (best < 0) return {};
  const int n_drafts = std::min(max_drafts, std::clamp(2 * n_kept_, kFirstDrafts, kDraftsCap));
  // A match that overlaps its copy repeats its period.
  std::vector<int> drafts;
  for (int i = 0; i < n_drafts; ++i) {
    drafts.push_back(best + i < n ? known[best + i]
                                  : drafts[static_cast<std::size_t>(best + i - n)]);
  }
  return drafts;
}

void CopySource::learn(int n_kept) { n_kept_ = n_kept; }

}  // namespace bolt
