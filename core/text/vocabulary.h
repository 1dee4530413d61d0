// The two tables of byte-level BPE: token bytes to id, and pairs of ids to the merge that joins
// them. Both are open-addressed, so that 131,072 tokens and 269,443 merges load in milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bolt {

// Bounds of what a tokenizer may declare; far above any real one, checked before memory is taken.
inline constexpr int kTokensMax = 1 << 21;
inline constexpr int kMergesMax = (1 << 22) - 2;

// Hash of short byte strings; the same on every machine of one byte order.
std::uint32_t hash_bytes(std::string_view bytes);

// Token bytes by id, and back. Ids may have gaps; a gap's bytes are empty.
class Vocabulary {
 public:
  enum class Added { yes, id_taken, bytes_taken };

  // Makes room for about `n_tokens`.
  void reserve(int n_tokens);
  // Adds a token with 0 <= id < kTokensMax. Without `indexed`, find() will not know it.
  Added add(std::string_view bytes, int id, bool indexed);
  // The id with exactly these bytes, -1 if none.
  int find(std::string_view bytes) const { return find(bytes, hash_bytes(bytes)); }
  int find(std::string_view bytes, std::uint32_t hash) const;  // hash as hash_bytes gives it
  // Asks for the memory that find() will read first.
  void prefetch(std::uint32_t hash) const {
    __builtin_prefetch(slots_.data() + (hash & (slots_.size() - 1)));
  }
  int n_tokens() const { return static_cast<int>(spans_.size()); }  // largest id + 1
  bool has(int id) const;
  std::string_view bytes_of(int id) const;

 private:
  struct Span {
    std::uint32_t offset = 0;
    std::uint32_t length = kAbsent;
  };
  // Most tokens have 8 bytes or fewer, so that one cache line answers for them.
  struct Slot {
    std::uint64_t head = 0;  // the first 8 bytes
    std::uint32_t tag = 0;   // the hash, its low byte replaced by the length (255: that or more)
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kAbsent = ~0u;
  void grow(std::size_t n_slots);
  // The slot that holds these bytes, or the free one where they belong.
  std::size_t slot_of(std::string_view bytes, std::uint32_t hash) const;

  std::string bytes_;        // of all tokens
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t n_indexed_ = 0;
};

// rank < 0: the pair does not merge.
class MergeTable {
 public:
  void reserve(int n_merges);
  // The next rank's merge; a pair that came before takes the new rank, as in `tokenizers`.
  void add(int left, int right, int joined);
  int n_merges() const { return static_cast<int>(joined_.size()); }
  int rank(int left, int right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = slot_of(key);; i = (i + 1) & mask_) {
      const std::uint64_t slot = slots_[i];
      if (slot == 0) return -1;
      if (slot >> 22 == key) return static_cast<int>(slot & ((1u << 22) - 1)) - 1;
    }
  }
  int joined(int rank) const { return joined_[static_cast<std::size_t>(rank)]; }

 private:
  static std::uint64_t key_of(int left, int right) {
    return static_cast<std::uint64_t>(left) << 21 | static_cast<std::uint64_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ull) >> shift_);
  }

  // left << 43 | right << 22 | rank + 1; 0 is free. A power of two, at most half full.
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(2, 0);
  std::size_t mask_ = 1;
  int shift_ = 63;
  std::vector<std::int32_t> joined_;  // by rank
};

}  // namespace bolt
