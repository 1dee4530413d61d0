// Digests with domain separation, the token chain, and the Merkle root over rids (RFC 6962).
//   D(tag, parts...) = SHA-256("bolt/1/" tag 0x00, then per part: its length as u64le, its bytes)
// Under a key (redaction keyed or salted) the same bytes go through HMAC-SHA-256 instead.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "receipts/facts.h"

namespace bolt::receipts {

using Digest = std::array<std::uint8_t, 32>;

// Incremental SHA-256 over OpenSSL.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();
  Sha256& update(std::string_view bytes);
  Digest finish();  // and starts afresh

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest sha256(std::string_view bytes);
std::string sha256_hex(std::string_view bytes);
// Streams the file; throws Failure(fault) if it cannot be read.
std::string sha256_file_hex(const std::string& path);
std::string sha256_fd_hex(int fd, const std::string& name);

std::string hex(std::span<const std::uint8_t> bytes);
std::string hex(const Digest& digest);
// Strict: lower case, exactly 64 digits.
std::optional<Digest> digest_from_hex(std::string_view text);
std::optional<std::string> bytes_from_hex(std::string_view text);  // any even length, lower case

std::string u64le(std::uint64_t value);
std::string u32le(std::uint32_t value);
std::string ids_bytes(std::span<const int> ids);  // all ids as u32le

// D, plain or under a key.
class Binder {
 public:
  Binder() = default;  // plain
  explicit Binder(const std::array<std::uint8_t, 32>& key) : key_(key) {}
  static Binder of(const Redaction& redaction);

  Digest bind(std::string_view tag, std::initializer_list<std::string_view> parts) const;
  Digest raw(std::string_view message) const;  // SHA-256 or HMAC of the message itself
  bool keyed() const { return key_.has_value(); }
  // What a body may say of the key without giving it away: D("key", key); empty if plain.
  std::string key_id() const;

 private:
  std::optional<std::array<std::uint8_t, 32>> key_;
};

inline std::string bind_hex(const Binder& binder, std::string_view tag,
                            std::initializer_list<std::string_view> parts) {
  return hex(binder.bind(tag, parts));
}

// h0 = D("chain", task); hi = SHA-256("bolt/1/tok" 0x00 h(i-1) u32le(id)). Once two chains differ
// they always differ, so a binary search over marks finds the first difference.
class Chain {
 public:
  Chain(const Binder& binder, const Digest& task);
  void add(int id);
  const Digest& value() const { return value_; }

 private:
  const Binder& binder_;
  Digest value_;
};

// 16 * 2^k, the smallest that needs at most 4096 marks for n tokens.
std::int64_t chain_stride(std::int64_t n);
// The marks after tokens stride, 2*stride, ... and n: ceil(n/stride) of them.
std::vector<std::string> chain_marks(const Binder& binder, const Digest& task,
                                     std::span<const int> ids, std::int64_t stride);

// RFC 6962 §2.1 over the 32-byte rids: leaves prefixed 0x00, nodes 0x01; empty list: SHA-256("").
Digest merkle_root(std::span<const Digest> leaves);

// D("pkg"): files sorted by path; per file path, role, u64le(bytes), the 32 bytes of sha256.
std::string package_digest(std::vector<PackageFileFact> files);

// D("vocab"): per id, u32le(length) and the bytes; then one byte an id, 1 where it is special.
struct VocabEntry {
  std::string_view bytes;
  bool special = false;
};
std::string vocab_digest(int n_ids, const std::function<VocabEntry(int id)>& entry);

}  // namespace bolt::receipts
