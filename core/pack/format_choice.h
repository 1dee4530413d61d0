// Which weights a conversion quantises: `--quant` and `--keep`.
#pragma once

#include "core/pack/binding.h"
#include "core/pack/convert.h"

namespace bolt {

// Every pattern must mean something: Error(usage) for one that matches no weight or tensor.
void check_keep(const ConvertOptions& options, const BoundGraph& bound);

// Sets the formats of what --quant asks for, and names it in facts.quantised.
void choose_formats(const ConvertOptions& options, BoundGraph& bound, ConvertFacts& facts);

}  // namespace bolt
