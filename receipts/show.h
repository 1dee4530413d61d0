// A sealed body for people: a few lines that say what ran, or every field.
#pragma once

#include <vector>

#include "receipts/display.h"
#include "receipts/file.h"

namespace bolt::receipts {

// `whole` lists every field as "path  value" instead of the summary.
std::vector<Line> show(const Receipt& receipt, bool whole);

// "speculative k7", "speculative auto", "ordinary".
std::string mode_name(const Value& body);

}  // namespace bolt::receipts
