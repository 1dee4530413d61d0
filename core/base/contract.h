// The arithmetic contract this program implements: its name, and the digest of its test vectors.
// Every package and receipt carries both; a package of another contract is refused.
#pragma once

namespace bolt {

inline constexpr const char* kContractId = "bolt-exact/1";
// SHA-256 (hex) over all ops' test vectors, as `bolt --version --json` computes it.
inline constexpr const char* kContractSha256 =
    "3ca178bc50067e5832ddb50dde65fa9aab7b90b8152d53829b543cf222c9498e";

}  // namespace bolt
