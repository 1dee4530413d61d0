// The arithmetic contract this program implements: its name, and the digest of its test vectors.
// Every package and receipt carries both; a package of another contract is refused.
#pragma once

namespace bolt {

inline constexpr const char* kContractId = "bolt-exact/1";
// SHA-256 (hex) over all ops' test vectors, as `bolt --version --json` computes it.
inline constexpr const char* kContractSha256 =
    "c8f757a3843aa4183bfd9635cb3b5f31229e5cbc24f7f97a157777fef0ad76ce";

}  // namespace bolt
