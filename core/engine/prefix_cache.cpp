// A hash for each length tells prefixes apart quickly; ids are compared before anything is reused.
#include "core/engine/prefix_cache.h"

#include <algorithm>

#include "core/base/error.h"

namespace bolt {
namespace {

// One id after another, spread by SplitMix64's finaliser (Steele et al., OOPSLA 2014).
std::uint64_t add_id(std::uint64_t hash, int id) {
  std::uint64_t z = (hash ^ static_cast<std::uint64_t>(id)) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, int n_places, int n_pages)
    : pool_(pool),
      n_pages_most_(n_pages),
      holds_(static_cast<std::size_t>(pool.n_pages()), 0),
      entries_(static_cast<std::size_t>(n_places)) {}

PrefixCache::~PrefixCache() = default;

int PrefixCache::n_kept() const {
  return static_cast<int>(std::count_if(entries_.begin(), entries_.end(),
                                        [](const auto& entry) { return entry.has_value(); }));
}

void PrefixCache::hash_prefixes(std::span<const int> ids) {
  hashes_.assign(1, 0);
  for (const int id : ids) hashes_.push_back(add_id(hashes_.back(), id));
}

bool PrefixCache::is_prefix(const Entry& entry, std::span<const int> prompt) const {
  const std::vector<int>& ids = entry.prefix.ids;
  return entry.hash == hashes_[ids.size()] && std::equal(ids.begin(), ids.end(), prompt.begin());
}

int PrefixCache::find_same(std::span<const int> ids) {
  hash_prefixes(ids);
  for (int place = 0; place < n_places(); ++place) {
    const std::optional<Entry>& entry = entries_[static_cast<std::size_t>(place)];
    if (!entry || entry->prefix.ids.size() != ids.size() || !is_prefix(*entry, ids)) continue;
    touch(place);
    return place;
  }
  return -1;
}

int PrefixCache::n_new_pages(const KeptPrefix& prefix) const {
  return static_cast<int>(std::count_if(prefix.pages.begin(), prefix.pages.end(), [this](int page) {
    return holds_[static_cast<std::size_t>(page)] == 0;
  }));
}

int PrefixCache::oldest() const {
  int oldest = -1;
  for (int place = 0; place < n_places(); ++place) {
    const std::optional<Entry>& entry = entries_[static_cast<std::size_t>(place)];
    if (!entry) continue;
    if (oldest < 0 || entry->used < entries_[static_cast<std::size_t>(oldest)]->used) {
      oldest = place;
    }
  }
  return oldest;
}

int PrefixCache::keep(KeptPrefix prefix) {
  if (entries_.empty() || static_cast<int>(prefix.pages.size()) > n_pages_most_) return -1;
  const auto is_free = [](const auto& entry) { return !entry.has_value(); };
  auto place = std::find_if(entries_.begin(), entries_.end(), is_free);
  while (place == entries_.end() || n_pages_ + n_new_pages(prefix) > n_pages_most_) {
    drop(oldest());
    place = std::find_if(entries_.begin(), entries_.end(), is_free);
  }
  n_pages_ += n_new_pages(prefix);
  for (const int page : prefix.pages) {
    pool_.share(page);
    ++holds_[static_cast<std::size_t>(page)];
  }
  hash_prefixes(prefix.ids);
  place->emplace(Entry{std::move(prefix), hashes_.back(), ++clock_});
  return static_cast<int>(place - entries_.begin());
}

void PrefixCache::drop(int place) {
  std::optional<Entry>& entry = entries_[static_cast<std::size_t>(place)];
  require(entry.has_value(), "a dropped prefix was kept");
  for (const int page : entry->prefix.pages) {
    n_pages_ -= --holds_[static_cast<std::size_t>(page)] == 0;
    pool_.give(page);
  }
  entry.reset();
}

}  // namespace bolt
