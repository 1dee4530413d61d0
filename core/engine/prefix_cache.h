// Which prefixes of earlier sequences are kept, so that a prompt that begins alike need not be run
// again: least recently used ones go first. Bookkeeping only: keys and values stay in pages of the
// pool, held once more; states lie in spare slots of the recurrent caches, which OpsModel fills.
// What is reused is what a fresh run would have computed, so no bit of a reply depends on it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/slots.h"

namespace bolt {

struct KeptPrefix {
  std::vector<int> ids;
  std::vector<int> pages;  // of its positions; the last may be filled further by others
  int n_lag = 0;           // rows that the recurrent state lags
  // The draft head: hidden rows that it has not absorbed, the last of the prefix, [n, d_model].
  int n_backlog = 0;
  bool head_complete = false;
  std::vector<float> backlog;
  // Separate drafters, by kind: positions before it have no keys. All others' are written.
  std::array<int, 2> block_first_key{};
};

class PrefixCache {
 public:
  // At most n_places prefixes, that together hold at most n_pages pages of the pool.
  PrefixCache(PagePool& pool, int n_places, int n_pages);
  ~PrefixCache();

  int n_places() const { return static_cast<int>(entries_.size()); }
  int n_kept() const;

  // The place of the longest kept prefix that is shorter than the prompt and `fits`; -1 if none is.
  // It counts as used now.
  template <class Fits>
  int find(std::span<const int> prompt, const Fits& fits) {
    int best = -1;
    hash_prefixes(prompt);
    for (int place = 0; place < n_places(); ++place) {
      const std::optional<Entry>& entry = entries_[static_cast<std::size_t>(place)];
      if (!entry || entry->prefix.ids.size() >= prompt.size()) continue;
      if (best >= 0 && at(best).ids.size() >= entry->prefix.ids.size()) continue;
      if (is_prefix(*entry, prompt) && fits(entry->prefix)) best = place;
    }
    if (best >= 0) touch(best);
    return best;
  }
  // The place that holds exactly these ids, -1 if none does. It counts as used now.
  int find_same(std::span<const int> ids);

  const KeptPrefix& at(int place) const {
    return entries_[static_cast<std::size_t>(place)]->prefix;
  }

  // Keeps a prefix, and holds its pages; others are dropped as far as room is needed. Returns its
  // place, whose state is to be filled in; -1 where it is too large.
  int keep(KeptPrefix prefix);
  void drop(int place);

 private:
  struct Entry {
    KeptPrefix prefix;
    std::uint64_t hash = 0, used = 0;
  };
  void hash_prefixes(std::span<const int> ids);
  bool is_prefix(const Entry& entry, std::span<const int> prompt) const;
  void touch(int place) { entries_[static_cast<std::size_t>(place)]->used = ++clock_; }
  int n_new_pages(const KeptPrefix& prefix) const;
  int oldest() const;

  PagePool& pool_;
  const int n_pages_most_;
  int n_pages_ = 0;         // held here, each counted once
  std::vector<int> holds_;  // [page]: prefixes that hold it
  std::vector<std::optional<Entry>> entries_;
  std::vector<std::uint64_t> hashes_;  // [n]: of the first n ids of the prompt at hand
  std::uint64_t clock_ = 0;
};

}  // namespace bolt
