// `sign` as a verb: verify, sign, append; and the key files of redaction.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "receipts/sign.h"
#include "receipts/verify.h"

namespace bolt::receipts {

// Verifies the receipt again, then puts a file with one envelope more in its place. A receipt of a
// pack or of stdin is refused (Failure usage); one that this key signed before stays as it is.
Answer sign_file(const std::string& name, const PrivateKey& key);

// 64 lower-case hex digits in a file that others may not read. Throws Failure(trust).
std::array<std::uint8_t, 32> read_redaction_key(const std::string& path);

}  // namespace bolt::receipts
