// `bolt convert DRAFT NEW.bolt --drafter-for OLD.bolt`: a package with a separate drafter beside
// its model. The old package's files are linked as they stand, their hashes carried over; the
// drafter brings its own: KIND.json (block_drafter.h) and KIND-NNNNN.bin.
#pragma once

#include "core/pack/convert.h"

namespace bolt {

// Throws Error(usage) for options that do not go with it and a package that has a drafter of the
// kind, Error(input) for a checkpoint that is no drafter for the package's model (drafter_config.h,
// tensors of other shapes, another embedding), Error(fault) for a disk that fails or a value that
// does not verify.
ConvertFacts add_drafter(const ConvertOptions& options);

}  // namespace bolt
