// Signatures: DSSE envelopes around an in-toto Statement whose one subject is the rid and whose
// predicate is the body; PureEd25519. A signature says who, never that it is true.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "receipts/file.h"

namespace bolt::receipts {

inline constexpr std::string_view kPayloadType = "application/vnd.in-toto+json";
inline constexpr std::string_view kStatementType = "https://in-toto.io/Statement/v1";
inline constexpr std::string_view kPredicateType = "urn:bolt:receipt:1";

struct PublicKey {
  std::array<std::uint8_t, 32> bytes{};
  // ed25519: and the first 16 hex digits of the SHA-256 of the raw key.
  std::string id() const;
};

struct PrivateKey {
  std::array<std::uint8_t, 32> seed{};
  PublicKey public_key;
};

// PEM files as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them. Throw
// Failure(trust): another key type, a private key that others may read, a point of small order or
// one that is not in canonical form.
PublicKey read_public_key(const std::string& path);
PrivateKey read_private_key(const std::string& path);
// A key file's text, at most 16 KiB; a private one that others may read is refused.
std::string read_key_file(const std::string& path, bool is_private);
// The same checks on 32 raw bytes; `where` begins the message.
PublicKey check_public_key(const std::array<std::uint8_t, 32>& bytes, const std::string& where);

// {"_type":...,"predicate":BODY,"predicateType":...,"subject":[{"digest":{"sha256":RID},...}]}
std::string statement(const Receipt& receipt);
// DSSE's pre-authentication encoding.
std::string pae(std::string_view payload_type, std::string_view payload);

// One envelope as a line (without LF), to append to the receipt's file.
std::string envelope_line(const Receipt& receipt, const PrivateKey& key);

struct Envelope {
  std::string payload_type, payload;
  struct Signature {
    std::string key_id, bytes;
  };
  std::vector<Signature> signatures;
};
// Throws Failure(malformed) on anything but the one form that envelope_line writes.
Envelope read_envelope(std::string_view line, const std::string& what);

// How many of `keys` (each counted once) signed this receipt. Throws Failure(trust) when an
// envelope is not about this receipt: other payloadType, predicateType, subject or body.
std::vector<PublicKey> signers(const Receipt& receipt, const std::vector<PublicKey>& keys);

}  // namespace bolt::receipts
