#include "core/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/error.h"

namespace bolt {

namespace {

// Up to 8 bytes as a number; the rest are zero.
std::uint64_t load_head(std::string_view bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), bytes.size() < 8 ? bytes.size() : 8);
  return word;
}

std::uint32_t tag_of(std::string_view bytes, std::uint32_t hash) {
  return (hash & ~0xFFu) | static_cast<std::uint32_t>(std::min<std::size_t>(bytes.size(), 0xFF));
}

}  // namespace

std::uint32_t hash_bytes(std::string_view bytes) {
  constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  std::uint64_t hash = bytes.size() * kPrime;
  while (true) {
    hash = std::rotl((hash ^ load_head(bytes)) * kPrime, 29);
    if (bytes.size() <= 8) return static_cast<std::uint32_t>((hash * kPrime) >> 32);
    bytes.remove_prefix(8);
  }
}

void Vocabulary::reserve(int n_tokens) {
  spans_.reserve(static_cast<std::size_t>(n_tokens));
  bytes_.reserve(static_cast<std::size_t>(n_tokens) * 8);
  grow(std::bit_ceil(static_cast<std::size_t>(n_tokens) * 2 + 2));
}

void Vocabulary::grow(std::size_t n_slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(n_slots, {});
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    const std::string_view bytes = bytes_of(slot.id);
    slots_[slot_of(bytes, hash_bytes(bytes))] = slot;
  }
}

std::size_t Vocabulary::slot_of(std::string_view bytes, std::uint32_t hash) const {
  const std::uint64_t head = load_head(bytes);
  const std::uint32_t tag = tag_of(bytes, hash);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  for (; slots_[i].id >= 0; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.tag != tag || slot.head != head) continue;
    if (bytes.size() <= 8 || bytes_of(slot.id) == bytes) break;
  }
  return i;
}

Vocabulary::Added Vocabulary::add(std::string_view bytes, int id, bool indexed) {
  require(id >= 0 && id < kTokensMax, "a token's id is in range");
  if (has(id)) return Added::id_taken;
  if (indexed) {
    if (2 * (n_indexed_ + 1) > slots_.size()) grow(slots_.empty() ? 16 : slots_.size() * 2);
    const std::uint32_t hash = hash_bytes(bytes);
    Slot& slot = slots_[slot_of(bytes, hash)];
    if (slot.id >= 0) return Added::bytes_taken;
    slot = {load_head(bytes), tag_of(bytes, hash), id};
    ++n_indexed_;
  }
  if (static_cast<std::size_t>(id) >= spans_.size()) {
    spans_.resize(static_cast<std::size_t>(id) + 1);
  }
  spans_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(bytes_.size()),
                                          static_cast<std::uint32_t>(bytes.size())};
  bytes_ += bytes;
  return Added::yes;
}

int Vocabulary::find(std::string_view bytes, std::uint32_t hash) const {
  return slots_.empty() ? -1 : slots_[slot_of(bytes, hash)].id;
}

bool Vocabulary::has(int id) const {
  return id >= 0 && id < n_tokens() && spans_[static_cast<std::size_t>(id)].length != kAbsent;
}

std::string_view Vocabulary::bytes_of(int id) const {
  if (!has(id)) return {};
  const Span& span = spans_[static_cast<std::size_t>(id)];
  return std::string_view(bytes_).substr(span.offset, span.length);
}

void MergeTable::reserve(int n_merges) {
  require(joined_.empty(), "an empty merge table is reserved");
  const std::size_t n_slots = std::bit_ceil(static_cast<std::size_t>(n_merges) * 2 + 2);
  slots_.assign(n_slots, 0);
  mask_ = n_slots - 1;
  shift_ = 64 - std::countr_zero(n_slots);
  joined_.reserve(static_cast<std::size_t>(n_merges));
}

void MergeTable::add(int left, int right, int joined) {
  require(2 * (joined_.size() + 1) <= slots_.size(), "the merge table was reserved");
  joined_.push_back(joined);
  const std::uint64_t key = key_of(left, right);
  std::size_t i = slot_of(key);
  while (slots_[i] != 0 && slots_[i] >> 22 != key) i = (i + 1) & mask_;
  slots_[i] = key << 22 | joined_.size();  // rank + 1
}

}  // namespace bolt
