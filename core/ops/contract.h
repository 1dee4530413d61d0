// The contract's own test vectors: every op on made-up operands, and the digest of all that comes
// out.
#pragma once

#include <string>

#include "core/ops/ops.h"

namespace bolt {

// SHA-256 (hex) over all ops' results and marks: equal for every instruction set, thread count and
// device, or the contract is broken. kContractSha256 (core/base/contract.h) is what it must be.
// `ops` is one made for this: it keeps what is allocated here. Well under a second on a host.
std::string contract_digest(Ops& ops);

}  // namespace bolt
