// The arithmetic contract this program implements: its name, and the digest of its test vectors.
// Every package and receipt carries both; a package of another contract is refused.
#pragma once

namespace bolt {

inline constexpr const char* kContractId = "bolt-exact/1";
// SHA-256 (hex) over all ops' test vectors, as `bolt --version --json` computes it.
inline constexpr const char* kContractSha256 =
    "695f05d44a5199f03da0036e7dc02bae1a2cb7eb2a27e4663f3bf9fcfc8bc726";

}  // namespace bolt
