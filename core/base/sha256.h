// SHA-256 (FIPS 180-4) by OpenSSL, streaming and at once. What gets hashed is the callers'
// business.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace bolt {

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept = default;
  Sha256& operator=(Sha256&&) noexcept = default;

  Sha256& update(const void* data, std::size_t n_bytes);
  Sha256& update(std::string_view bytes) { return update(bytes.data(), bytes.size()); }
  Sha256& update(std::span<const std::byte> bytes) { return update(bytes.data(), bytes.size()); }
  // The digest of everything so far, 64 lower-case hex digits; the object starts afresh after it.
  std::string hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string sha256_hex(std::string_view bytes);
std::string sha256_hex(std::span<const std::byte> bytes);

// Lower-case hex of any bytes.
std::string to_hex(std::span<const unsigned char> bytes);
// Whether `text` is 64 lower-case hex digits.
bool is_sha256_hex(std::string_view text);

}  // namespace bolt
