// SHA-256 over OpenSSL's EVP interface, which picks the processor's SHA instructions.
#include "core/base/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"

namespace bolt {

void Sha256::Free::operator()(evp_md_ctx_st* context) const noexcept { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
          "a SHA-256 context");
}

Sha256& Sha256::update(const void* data, std::size_t n_bytes) {
  require(EVP_DigestUpdate(context_.get(), data, n_bytes) == 1, "a SHA-256 update");
  return *this;
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest;
  require(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1, "a SHA-256 digest");
  require(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "a SHA-256 context");
  return to_hex(digest);
}

std::string sha256_hex(std::string_view bytes) { return Sha256().update(bytes).hex(); }
std::string sha256_hex(std::span<const std::byte> bytes) { return Sha256().update(bytes).hex(); }

std::string to_hex(std::span<const unsigned char> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace bolt
