// What receipts say of a package that is open.
#pragma once

#include "core/pack/package.h"
#include "core/text/tokenizer.h"
#include "receipts/facts.h"

namespace bolt {

receipts::PackageFacts package_facts(const Package& package, const Tokenizer& tokenizer);

}  // namespace bolt
