// A sealed body for people: a few lines that say what ran, or every field.
#pragma once

#include <vector>

#include "receipts/display.h"
#include "receipts/file.h"

namespace bolt::receipts {

// `whole` lists every field as "path  value" instead of the summary. The summary quotes attached
// texts, shortened where `columns` (of a terminal) is not 0. Failure(malformed) if what is attached
// is not what the body binds.
std::vector<Line> show(const Receipt& receipt, bool whole, int columns = 0);

// "speculative k7", "speculative auto", "ordinary".
std::string mode_name(const Value& body);

}  // namespace bolt::receipts
