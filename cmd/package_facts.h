// What receipts say of a package that is open.
#pragma once

#include "core/pack/package.h"
#include "core/text/tokenizer.h"
#include "receipts/facts.h"

namespace bolt {

// package.sha256: names, roles and hashes of all its files, as runs seal it.
std::string package_sha256(const Package& package);

receipts::PackageFacts package_facts(const Package& package, const Tokenizer& tokenizer);

}  // namespace bolt
