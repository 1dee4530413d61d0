// Keys are tried one after another; a keyid in an envelope is a hint that nobody needs to believe.
#include "receipts/sign.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "receipts/canonical.h"
#include "receipts/digest.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

struct KeyFree {
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
};
struct ContextFree {
  void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
};
using Key = std::unique_ptr<EVP_PKEY, KeyFree>;
using Context = std::unique_ptr<EVP_MD_CTX, ContextFree>;
using Raw = std::array<std::uint8_t, 32>;

// y of the points whose order divides 8, little-endian without the sign bit, and the two of them
// that are at or above p = 2^255 - 19. OpenSSL takes the identity as the key for any message.
constexpr const char* kSmallOrderY[] = {
    "0000000000000000000000000000000000000000000000000000000000000000",  // order 4
    "0100000000000000000000000000000000000000000000000000000000000000",  // order 1
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  // order 8
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",  // order 8
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  // order 2: p - 1
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  // p, that is 0
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  // p + 1, that is 1
};

[[noreturn]] void trust(const std::string& where, const std::string& problem) {
  throw Failure(Status::trust, where + ": " + problem);
}

Key parse_pem(const std::string& path, const std::string& text, bool is_private) {
  BIO* bio = BIO_new_mem_buf(text.data(), static_cast<int>(text.size()));
  // An empty passphrase: OpenSSL must not ask the terminal.
  char none[] = "";
  Key key(is_private ? PEM_read_bio_PrivateKey(bio, nullptr, nullptr, none)
                     : PEM_read_bio_PUBKEY(bio, nullptr, nullptr, none));
  BIO_free(bio);
  if (!key) {
    trust(path, fmt::format("no unencrypted PEM {} key", is_private ? "private" : "public"));
  }
  if (EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519) {
    const char* type = EVP_PKEY_get0_type_name(key.get());
    trust(path, fmt::format("a {} key, expected Ed25519", type != nullptr ? type : "strange"));
  }
  return key;
}

Raw raw_public(EVP_PKEY* key, const std::string& path) {
  Raw raw{};
  std::size_t size = raw.size();
  if (EVP_PKEY_get_raw_public_key(key, raw.data(), &size) != 1 || size != raw.size()) {
    trust(path, "no Ed25519 public key of 32 bytes");
  }
  return raw;
}

std::string base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(bytes.data()),
                                static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(n));
  return out;
}

// Strict: what does not encode back to itself is refused.
std::string from_base64(std::string_view text, const std::string& what) {
  std::string out(text.size(), '\0');
  const int n = text.size() % 4 != 0
                    ? -1
                    : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                      reinterpret_cast<const unsigned char*>(text.data()),
                                      static_cast<int>(text.size()));
  if (n >= 0) {
    std::size_t size = static_cast<std::size_t>(n);  // EVP_DecodeBlock counts the padding
    for (std::size_t i = text.size(); i > 0 && text[i - 1] == '=' && size > 0; --i) --size;
    out.resize(size);
    if (base64(out) == text) return out;
  }
  throw Failure(Status::malformed, what + ": not canonical base64");
}

bool verifies(const PublicKey& public_key, std::string_view message, std::string_view signature) {
  if (signature.size() != 64) return false;
  const Key key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, public_key.bytes.data(),
                                            public_key.bytes.size()));
  const Context context(EVP_MD_CTX_new());
  if (!key || !context) return false;
  if (EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1) return false;
  return EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                          signature.size(), reinterpret_cast<const unsigned char*>(message.data()),
                          message.size()) == 1;
}

}  // namespace

// Opened once and checked through its descriptor, so it cannot be swapped between.
std::string read_key_file(const std::string& path, bool is_private) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) trust(path, fmt::format("cannot open the key: {}", std::strerror(errno)));
  struct stat info {};
  std::string text(1 << 14, '\0');
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t n = regular ? ::read(fd, text.data(), text.size()) : -1;
  ::close(fd);
  if (n < 0) trust(path, "no key file");
  if (is_private && (info.st_mode & 077) != 0) {
    trust(path, fmt::format("mode {:04o}, expected 0600: others may read this private key; "
                            "`chmod 600` it",
                            info.st_mode & 07777));
  }
  text.resize(static_cast<std::size_t>(n));
  return text;
}

std::string PublicKey::id() const {
  const std::string_view raw(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return "ed25519:" + sha256_hex(raw).substr(0, 16);
}

PublicKey check_public_key(const Raw& bytes, const std::string& where) {
  Raw y = bytes;
  y[31] &= 0x7f;
  const std::string y_hex = hex(y);
  for (const char* small : kSmallOrderY) {
    if (y_hex == small) trust(where, "a public key of small order: it would verify for anybody");
  }
  // y < p, or the same point has two names. p is ed ff..ff 7f.
  const bool high =
      std::all_of(y.begin() + 1, y.end() - 1, [](std::uint8_t b) { return b == 0xff; });
  if (high && y[31] == 0x7f && y[0] >= 0xed) trust(where, "a public key not in canonical form");
  return PublicKey{bytes};
}

PublicKey read_public_key(const std::string& path) {
  const Key key = parse_pem(path, read_key_file(path, false), false);
  return check_public_key(raw_public(key.get(), path), path);
}

PrivateKey read_private_key(const std::string& path) {
  const Key key = parse_pem(path, read_key_file(path, true), true);
  PrivateKey out;
  std::size_t size = out.seed.size();
  if (EVP_PKEY_get_raw_private_key(key.get(), out.seed.data(), &size) != 1 || size != 32) {
    trust(path, "no Ed25519 private key of 32 bytes");
  }
  out.public_key = check_public_key(raw_public(key.get(), path), path);
  return out;
}

std::string statement(const Receipt& receipt) {
  return fmt::format(R"({{"_type":"{}","predicate":{},"predicateType":"{}",)"
                     R"("subject":[{{"digest":{{"sha256":"{}"}},"name":"bolt-receipt"}}]}})",
                     kStatementType, receipt.text, kPredicateType, receipt.rid);
}

std::string pae(std::string_view payload_type, std::string_view payload) {
  return fmt::format("DSSEv1 {} {} {} {}", payload_type.size(), payload_type, payload.size(),
                     payload);
}

std::string envelope_line(const Receipt& receipt, const PrivateKey& key) {
  const std::string payload = statement(receipt), message = pae(kPayloadType, payload);
  const Key handle(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, key.seed.data(), key.seed.size()));
  const Context context(EVP_MD_CTX_new());
  std::string signature(64, '\0');
  std::size_t size = signature.size();
  // The one-shot form with no digest is PureEd25519.
  if (!handle || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, handle.get()) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     reinterpret_cast<const unsigned char*>(message.data()), message.size()) != 1) {
    throw Failure(Status::fault, "Ed25519: OpenSSL refused to sign");
  }
  return fmt::format(R"({{"payload":"{}","payloadType":"{}","signatures":[)"
                     R"({{"keyid":"{}","sig":"{}"}}]}})",
                     base64(payload), kPayloadType, key.public_key.id(), base64(signature));
}

Envelope read_envelope(std::string_view line, const std::string& what) {
  Envelope envelope;
  Cursor cursor(line, what);
  cursor.expect(R"({"payload":)");
  envelope.payload = from_base64(cursor.string(), what + ": payload");
  cursor.expect(R"(,"payloadType":)");
  envelope.payload_type = cursor.string();
  cursor.expect(R"(,"signatures":[)");
  do {
    Envelope::Signature& signature = envelope.signatures.emplace_back();
    cursor.expect(R"({"keyid":)");
    signature.key_id = cursor.string();
    cursor.expect(R"(,"sig":)");
    signature.bytes = from_base64(cursor.string(), what + ": sig");
    cursor.expect('}');
  } while (envelope.signatures.size() < 64 && cursor.accept(','));
  cursor.expect("]}");
  if (!cursor.at_end()) cursor.fail("something after the envelope");
  return envelope;
}

std::vector<PublicKey> signers(const Receipt& receipt, const std::vector<PublicKey>& keys) {
  const std::string expected = statement(receipt);
  std::vector<PublicKey> found;
  for (const std::string& line : receipt.envelopes) {
    const Envelope envelope = read_envelope(line, receipt.what + ": signature");
    if (envelope.payload_type != kPayloadType) {
      trust(receipt.what, "signature: payloadType is not " + std::string(kPayloadType));
    }
    if (envelope.payload != expected) {
      const bool other_predicate =
          envelope.payload.find(fmt::format(R"("predicateType":"{}")", kPredicateType)) ==
          std::string::npos;
      trust(receipt.what,
            other_predicate
                ? fmt::format("signature: predicateType is not {}", kPredicateType)
                : std::string("signature: the signed body or subject is not this receipt's"));
    }
    const std::string message = pae(envelope.payload_type, envelope.payload);
    for (const PublicKey& key : keys) {
      const bool counted = std::ranges::any_of(
          found, [&](const PublicKey& other) { return other.bytes == key.bytes; });
      if (counted) continue;
      for (const Envelope::Signature& signature : envelope.signatures) {
        if (!verifies(key, message, signature.bytes)) continue;
        found.push_back(key);
        break;
      }
    }
  }
  return found;
}

}  // namespace bolt::receipts
